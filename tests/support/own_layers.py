"""Layers of a reader's own that PairTrainer takes, and one of PaddleNLP."""

import paddle
from paddle import nn
from paddle.nn import functional as F
from paddlenlp.transformers import (
    BertConfig,
    BertForSequenceClassification,
    ErnieConfig,
    ErnieForSequenceClassification,
    ErnieGramConfig,
    ErnieGramModel,
)
from tiny_pair import VOCAB

NUM_IDS = len(VOCAB)
TINY = {
    "vocab_size": NUM_IDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 64, "type_vocab_size": 2,
}  # fmt: skip


class TeachingPlanModel(nn.Layer):
    """An encoder of PaddleNLP, dropout and a linear layer, as the LCQMC tutorial writes it."""

    def __init__(self, pretrained_model, dropout=None):
        super().__init__()
        self.ptm = pretrained_model
        self.dropout = nn.Dropout(dropout if dropout is not None else 0.1)
        self.clf = nn.Linear(self.ptm.config["hidden_size"], 2)

    def forward(self, input_ids, token_type_ids=None, position_ids=None, attention_mask=None):
        """Return probabilities [B, 2]."""
        _, vectors = self.ptm(input_ids, token_type_ids, position_ids, attention_mask)
        return F.softmax(self.clf(self.dropout(vectors)))


class Bag(nn.Layer):
    """The sum of word vectors of each text, and a linear layer; no encoder."""

    def __init__(self, num_outputs=2, answer=lambda logits: logits, num_ids=NUM_IDS):
        super().__init__()
        self.words, self.answer = nn.Embedding(num_ids, 16, padding_idx=0), answer
        self.out = nn.Linear(32, num_outputs)

    def forward(self, input_ids, token_type_ids):
        """Return what ``answer`` makes of the logits."""
        words = self.words(input_ids)
        second = token_type_ids.astype("float32").unsqueeze(-1)
        texts = paddle.concat([(words * (1 - second)).sum(axis=1), (words * second).sum(axis=1)], axis=-1)
        return self.answer(self.out(texts))


def tutorial_model(seed=0, dropout=None, **changes):
    paddle.seed(seed)
    config = ErnieGramConfig(**{**TINY, "embedding_size": 32, **changes})
    return TeachingPlanModel(ErnieGramModel(config), dropout)


def bag(seed=0, **changes):
    paddle.seed(seed)
    return Bag(**changes)


def paddlenlp_model(family="ernie", seed=0, **changes):
    paddle.seed(seed)
    if family == "bert":
        return BertForSequenceClassification(BertConfig(**{**TINY, **changes}))
    return ErnieForSequenceClassification(ErnieConfig(**{**TINY, **changes}))


def state(layer):
    return {name: tensor.numpy() for name, tensor in layer.state_dict().items()}
