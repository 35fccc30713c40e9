"""From hidden states to a vector: the poolings, and the steps after them, as sentence-transformers has them.

B batch, S sequence, D numbers. ``is_text_BS1`` is 1 for a token and 0 for padding, of the dtype of states.
"""

import paddle
from paddle import nn
from paddle.nn import functional as F

from ernie_pair.models.embedding_json import Step

FAR_BELOW = 6e4  # below any hidden state, and within float16


def pooled(names: str, states_BSD, is_text_BS1):
    """Return the vectors [B, D times their number] of the poolings ``names``, joined by +."""
    parts = [POOLINGS[name](states_BSD, is_text_BS1) for name in names.split("+")]
    return parts[0] if len(parts) == 1 else paddle.concat(parts, axis=-1)


def _first_token(states_BSD, is_text_BS1):
    return states_BSD[:, 0]


def _mean(states_BSD, is_text_BS1):
    return (states_BSD * is_text_BS1).sum(axis=1) / is_text_BS1.sum(axis=1)


def _mean_sqrt_len(states_BSD, is_text_BS1):
    return (states_BSD * is_text_BS1).sum(axis=1) / is_text_BS1.sum(axis=1).sqrt()


def _max(states_BSD, is_text_BS1):
    return (states_BSD * is_text_BS1 - (1 - is_text_BS1) * FAR_BELOW).max(axis=1)


def _weighted_mean(states_BSD, is_text_BS1):
    weights_BS1 = is_text_BS1.cumsum(axis=1) * is_text_BS1  # 1, 2, 3, ...
    return (states_BSD * weights_BS1).sum(axis=1) / weights_BS1.sum(axis=1)


def _last_token(states_BSD, is_text_BS1):
    numbers_BS1 = is_text_BS1.cumsum(axis=1) * is_text_BS1
    is_last_BS1 = (numbers_BS1 == is_text_BS1.sum(axis=1, keepdim=True)).astype(states_BSD.dtype)
    return (states_BSD * is_last_BS1).sum(axis=1)


POOLINGS = {
    "first_token": _first_token,
    "mean": _mean,
    "max": _max,
    "mean_sqrt_len": _mean_sqrt_len,
    "weighted_mean": _weighted_mean,
    "last_token": _last_token,
}
ACTIVATIONS = {
    "tanh": paddle.tanh,
    "identity": lambda vectors: vectors,
    "relu": F.relu,
    "gelu": F.gelu,
    "sigmoid": F.sigmoid,
    "silu": F.silu,
}


class Steps(nn.LayerList):
    """The steps after the pooling of vectors of ``width``; its layers are those of the dense steps.

    ``dim``: the numbers of a vector after them.
    """

    def __init__(self, steps, width: int):
        super().__init__()
        self.steps, self.dim = tuple(steps), width
        for step in self.steps:
            if step.kind == "dense":
                self.append(Dense(self.dim, step))
            self.dim = step.width or self.dim

    def forward(self, vectors_BD):
        """Return the vectors [B, dim] after all steps."""
        layers = iter(self)
        for step in self.steps:
            if step.kind == "dense":
                vectors_BD = next(layers)(vectors_BD)
            elif step.kind == "truncate":
                vectors_BD = vectors_BD[:, : step.width]
            else:
                vectors_BD = F.normalize(vectors_BD, axis=1, epsilon=1e-12)
        return vectors_BD


class Dense(nn.Layer):
    """A dense step: its activation of a linear layer of ``width`` inputs, and where it says so those too."""

    def __init__(self, width: int, step: Step):
        super().__init__()
        self.step = step
        self.linear = nn.Linear(width, step.width, bias_attr=None if step.bias else False)
        if step.residual and step.width != width:
            self.residual = nn.Linear(width, step.width, bias_attr=False)

    def forward(self, vectors_BD):
        """Return the vectors [B, width of the step]."""
        made = ACTIVATIONS[self.step.activation](self.linear(vectors_BD))
        if not self.step.residual:
            return made
        return made + (self.residual(vectors_BD) if hasattr(self, "residual") else vectors_BD)
