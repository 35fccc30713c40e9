"""A loss of the user's own: `PairTrainer.compute_loss` of a subclass, or ``compute_loss_func``.

B rows, C classes.
"""

import inspect
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

import numpy as np
import paddle
from paddle import nn

from data_tools.base.errors import InputError
from ernie_pair.inference.token_rows import Batch
from ernie_pair.pair.model.classifier import PairClassifier
from ernie_pair.pair.step.loss import Forward, LossParts, PairLoss, ToDevice

INPUTS = ("input_ids", "token_type_ids", "labels")
# What the loss of the flags does and one of the user's own does not: {flag: the value that asks for nothing}.
OF_THE_LOSS: Dict[str, object] = {
    "class_weights": "",
    "rdrop_alpha": 0.0,
    "symmetric": "none",
    "ranking_loss": "listwise",
}
Inputs = Dict[str, Any]
# Takes a model and its inputs, and returns the loss of a micro-batch with the outputs of the model, or None.
ComputeLoss = Callable[[Any, Inputs], Tuple[Any, Any]]


class TrainedModel:
    """The model that a loss of the user's own calls, as the training step computes it.

    A call returns what ``model`` returns, with the precision and the processes of the run; everything else
    is an attribute of ``model``.
    """

    def __init__(self, forward: Callable, model: PairClassifier):
        self._forward, self._model = forward, model

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Return what the model returns."""
        return self._forward(*inputs, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class UserLoss(PairLoss):
    """The loss that ``compute`` returns, in the place of that of the flags.

    ``metric`` is empty where the outputs do not show which rows were right.
    """

    def __init__(self, compute: ComputeLoss, model: PairClassifier, name: str):
        super().__init__()
        self.compute, self.model, self.name = compute, model, name
        self.metric = "accuracy" if model.spec.labels.has_classes else ""

    def __call__(self, forward: Forward, batch: Batch, to_device: ToDevice = paddle.to_tensor) -> LossParts:
        """Return the loss of a micro-batch; see `PairLoss`. Raises InputError for what is no loss."""
        assert batch.labels is not None  # training reads them
        arrays = batch.input_ids, batch.token_type_ids, batch.labels
        inputs = {name: to_device(array) for name, array in zip(INPUTS, arrays)}
        loss, outputs = self.compute(TrainedModel(forward, self.model), inputs)
        if not isinstance(loss, paddle.Tensor) or loss.size != 1 or loss.stop_gradient:
            what = f"a tensor {loss.shape}" if isinstance(loss, paddle.Tensor) else type(loss).__name__
            raise InputError(
                f"{self.name} returned {what}, not a loss; return one number with its gradient, a tensor of "
                "shape [] or [1]"
            )
        loss = loss.reshape([]).astype("float32")
        logits = logits_in(outputs, len(batch.labels)) if self.metric else None
        with paddle.no_grad():
            if logits is None:
                self.metric, right = "", loss.detach() * 0
            else:
                right = (logits.argmax(axis=1) == paddle.to_tensor(batch.labels)).astype("float32").sum()
            numbers = paddle.stack([loss.detach(), loss.detach() * 0, right.reshape([])])
        return LossParts(loss, numbers, len(batch.labels))


def logits_in(outputs: Any, rows: int) -> Optional[paddle.Tensor]:
    """Return the logits [B, C] among what a model returned: a tensor, a tuple, ``logits`` of it; or None."""
    if isinstance(outputs, Mapping):
        outputs = outputs.get("logits")
    outputs = getattr(outputs, "logits", outputs)
    for found in outputs if isinstance(outputs, (tuple, list)) else [outputs]:
        if isinstance(found, paddle.Tensor) and found.ndim == 2 and found.shape[0] == rows:
            return found
    return None


def loss_of_override(compute_loss: Callable) -> ComputeLoss:
    """Return what calls ``compute_loss`` of a subclass, with return_outputs where it takes that."""
    parameters = inspect.signature(compute_loss).parameters.values()
    takes_it = any(p.name == "return_outputs" or p.kind is p.VAR_KEYWORD for p in parameters)

    def compute(model: Any, inputs: Inputs) -> Tuple[Any, Any]:
        found = compute_loss(model, inputs, **({"return_outputs": True} if takes_it else {}))
        return (found[0], found[1]) if isinstance(found, (tuple, list)) and len(found) == 2 else (found, None)

    return compute


def loss_of_function(function: Callable) -> ComputeLoss:
    """Return what calls ``function`` with the outputs of the model, which have ``logits``, and the labels.

    A loss of Paddle's, a layer such as `paddle.nn.CrossEntropyLoss`, gets the logits themselves.
    """

    def compute(model: Any, inputs: Inputs) -> Tuple[Any, Any]:
        labels = inputs.pop("labels")
        logits = model(**inputs)
        if isinstance(function, nn.Layer):
            return function(logits, labels), logits
        from paddlenlp.transformers.model_outputs import SequenceClassifierOutput

        return function(SequenceClassifierOutput(logits=logits), labels), logits

    return compute


def loss_of_flags(
    loss: PairLoss, model: Callable, inputs: Mapping[str, Any]
) -> Tuple[paddle.Tensor, paddle.Tensor]:
    """Return the loss of the flags on the ``inputs`` of ``model``, and its logits [B, C].

    Raises InputError where the inputs lack something.
    """
    missing = [name for name in INPUTS if inputs.get(name) is None]
    if missing:
        raise InputError(f"compute_loss: the inputs have no {missing[0]}; pass the inputs as they were given")
    seen = []

    def forward(input_ids, token_type_ids):
        seen.append(model(input_ids, token_type_ids))
        return seen[-1]

    batch = Batch(*(np.asarray(inputs[name]) for name in INPUTS))
    found = loss(forward, batch).loss
    return found, seen[0][: len(batch.input_ids)]
