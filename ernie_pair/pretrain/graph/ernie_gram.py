"""ErnieGram with the two pretraining heads of ERNIE: PaddleNLP only has its encoder.

ERNIE-Gram was trained with masked n-grams of a second vocabulary and a generator beside it, and
neither was published. This is what further pretraining needs: the masked tokens, predicted through the
tied embedding, and the sentence order, predicted from the pooled output. The encoder and the heads are
PaddleNLP's, under ERNIE's names.
"""

from typing import Optional

import paddle

from ernie_pair.device.paddle_patches.paddlenlp_import import transformers


class ErnieGramForPretraining(transformers.ErnieGramPretrainedModel):
    """ErnieGram with the heads of pretraining.

    ernie_gram.* is an ErnieGramModel, cls.* is named as in ErnieForPretraining.
    """

    def __init__(self, config):
        super().__init__(config)
        self.ernie_gram = transformers.ErnieGramModel(config)
        self.cls = transformers.ernie.modeling.ErniePretrainingHeads(config)
        self.tie_weights()

    def get_input_embeddings(self):
        """Return the embedding that the decoder is tied to."""
        return self.ernie_gram.embeddings.word_embeddings

    def get_output_embeddings(self):
        """Return the decoder of the masked tokens."""
        return self.cls.predictions.decoder

    def forward(self, input_ids, token_type_ids=None, masked_positions: Optional[paddle.Tensor] = None):
        """Compute the logits of masked tokens [P, V] and of the sentence order [B, 2].

        ``input_ids``, ``token_type_ids``: int64 [B, S]; ``masked_positions``: int64 [P], indices into the B x
        S tokens. Without them the first logits are [B, S, V].
        """
        with paddle.static.amp.fp16_guard():
            sequence, pooled = self.ernie_gram(input_ids, token_type_ids=token_type_ids)
            return self.cls(sequence, pooled, masked_positions)
