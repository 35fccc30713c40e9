"""The head of ERNIE-Gram's objective: it predicts the n-gram behind a [MASK], one of a lexicon.

Behind a [MASK] may be a token or an n-gram, so one softmax goes over both: the V tokens of the
vocabulary, by the decoder that is tied to the embedding, and the K n-grams, by a matrix of their own over the
same transformed states. The loss of a mask is -log p of the one identity that it hides (Xiao et al.,
"ERNIE-Gram", 2021, section 3.2). ERNIE-Gram's own matrix was not published; here it starts random.
"""

import paddle
from paddle import nn


class NgramHead(nn.Layer):
    """The logits of ``num_ngrams`` n-grams from transformed states of ``hidden_size``."""

    def __init__(self, num_ngrams: int, hidden_size: int, initializer_range: float):
        super().__init__()
        self.num_ngrams = num_ngrams
        draw = nn.initializer.TruncatedNormal(0.0, initializer_range)
        self.weight = self.create_parameter([num_ngrams, hidden_size], default_initializer=draw)
        self.bias = self.create_parameter([num_ngrams], is_bias=True)

    def forward(self, states: paddle.Tensor) -> paddle.Tensor:
        """Return the logits [P, K] of ``states`` [P, H]."""
        return paddle.matmul(states, self.weight, transpose_y=True) + self.bias


def add_ngram_head(model: nn.Layer, num_ngrams: int) -> None:
    """Add an n-gram head to ``model``, next to its pretraining heads: ``cls.ngrams``, see `ngram_names`."""
    with paddle.utils.unique_name.guard():
        config = model.config
        model.cls.ngrams = NgramHead(num_ngrams, config.hidden_size, config.initializer_range)


def union_labels(labels: paddle.Tensor, ngram_labels: paddle.Tensor, num_tokens: int) -> paddle.Tensor:
    """Return joint labels of tokens and n-grams, int64 [P]: n-gram k is ``num_tokens`` + k; -1 is none."""
    return paddle.where(ngram_labels >= 0, ngram_labels + num_tokens, labels)
