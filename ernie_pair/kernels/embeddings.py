"""Word, position, token type and task embeddings, their norm and dropout, in one call; and all fused parts.

`FusedEmbeddings` replaces the forward pass of the embeddings of PaddleNLP's ERNIE, ErnieGram, BERT and
RoBERTa. `attach_kernels` gives the encoder of a model the fused kernels; its parameters stay where they are.
B batch, S sequence, D hidden, V vocabulary.
"""

import sys
from ctypes import byref, c_int64
from types import MethodType
from typing import Any, List, Optional, Sequence, Tuple

import numpy as np
import paddle
from paddle import nn
from paddle.autograd import PyLayer

from data_tools.files.errors import InputError
from ernie_pair.kernels.encoder_layer import (
    CheckedTensors,
    FusedLayer,
    ModelState,
    dense,
    refuse_second_derivatives,
    why_unfit,
)
from ernie_pair.kernels.library import POOL, EmbeddingCall, Workspace, open_kernels
from ernie_pair.runtime.paddle_patches.layers import (
    epsilon_of,
    own_forward,
    padding_id_of,
    parameter_of,
    runs_its_class,
    set_forward,
    sublayer_of,
)

KNOWN = {"ErnieEmbeddings", "ErnieGramEmbeddings", "BertEmbeddings", "RobertaEmbeddings"}
WHOLE = (paddle.int32, paddle.int64)
NUM_PARAMETERS = 5  # without the task table
# The ids, types and positions of a batch, int64 [B, S]; positions None: 0, 1, ... S - 1.
Given = Tuple[paddle.Tensor, paddle.Tensor, Optional[paddle.Tensor]]


def are_fit(embeddings) -> bool:
    """Return whether the kernels can compute these embeddings."""
    kind = type(embeddings)
    if kind.__name__ not in KNOWN or not kind.__module__.startswith("paddlenlp."):
        return False
    return not why_changed(embeddings) and CheckedTensors().are_fit(_parameters_of(embeddings), _shapes_of)


def why_changed(embeddings) -> str:
    """Return why the kernels cannot compute embeddings of a known class at the moment, in words, or ''."""
    kinds = {"layer_norm": nn.LayerNorm, "dropout": nn.Dropout}
    for name in (*kinds, *_tables_of(embeddings)):
        part = sublayer_of(embeddings, name)
        if part is None or not runs_its_class(part, kinds.get(name, nn.Embedding)):
            return f"{name} was replaced or has a hook, which the fused kernels would ignore"
    return ""


def _tables_of(embeddings) -> List[str]:
    tasks = ["task_type_embeddings"] if getattr(embeddings, "use_task_id", False) else []
    return ["word_embeddings", "position_embeddings", "token_type_embeddings", *tasks]


def _parameters_of(embeddings) -> List[paddle.Tensor]:
    """Return scale and shift of the norm and the tables; the parts are those that `why_changed` checks."""
    norm = sublayer_of(embeddings, "layer_norm")
    tables = [parameter_of(sublayer_of(embeddings, name), "weight") for name in _tables_of(embeddings)]
    return [parameter_of(norm, "weight"), parameter_of(norm, "bias"), *tables]


def _shapes_of(parameters: Sequence) -> List[List[int]]:
    width = parameters[0].shape[-1]
    return [[width], [width], *([table.shape[0], width] for table in parameters[2:])]


class FusedEmbeddings:
    """The forward pass of ``embeddings``, the first part of the model's forward pass."""

    def __init__(self, embeddings, state: ModelState):
        self.embeddings, self.state, self.checked = embeddings, state, CheckedTensors()

    def __call__(self, input_ids=None, token_type_ids=None, position_ids=None, **others):
        """Return the states [B, S, D] of ids int64 [B, S]; Paddle computes what the kernels do not support.

        Raises InputError for an id that is outside of its table.
        """
        self.state.begin_pass()
        is_asked = any(one is not None and not (isinstance(one, int) and one == 0) for one in others.values())
        is_plain = input_ids is None or is_asked or not paddle.in_dynamic_mode()
        parameters = [] if is_plain else self._fit_parameters()
        given = self._given(input_ids, token_type_ids, position_ids) if parameters else None
        if given is None:
            kind = type(self.embeddings)
            return kind.forward(self.embeddings, input_ids, token_type_ids, position_ids, **others)
        task_id = 0  # the row of the task table to add
        if len(parameters) > NUM_PARAMETERS:
            task_id, size = self.embeddings.task_id, parameters[NUM_PARAMETERS].shape[0]
            if not (isinstance(task_id, int) and 0 <= task_id < size):
                raise InputError(
                    f"the task_id {task_id} is not one of the model's {size}; correct config.json"
                )
        call = OneEmbedding(self._call(given, parameters), given, task_id, self.checked)
        if paddle.is_grad_enabled() and not all(parameter.stop_gradient for parameter in parameters):
            return _Function.apply(call, *parameters)
        return call.forward(parameters)

    def _fit_parameters(self) -> List[paddle.Tensor]:
        reason = why_changed(self.embeddings)
        parameters = [] if reason else _parameters_of(self.embeddings)
        if not reason and not self.checked.are_fit(parameters, _shapes_of):
            reason = "the embeddings are no longer float32 on the CPU"
        if reason:
            self.state.tell_once(reason)
            return []
        return parameters

    def _given(self, ids, types, positions) -> Optional[Given]:
        """Return copies in the shape of ``ids``; None for what Paddle must broadcast, or refuse."""
        if len(ids.shape) != 2 or 0 in ids.shape:
            return None
        types = paddle.zeros_like(ids) if types is None else types
        if positions is None:  # those of RoBERTa skip padding
            modeling = sys.modules[type(self.embeddings).__module__]
            made = getattr(modeling, "create_position_ids_from_input_ids", None)
            positions = None if made is None else made(ids, self.embeddings.padding_idx, None)
        copies: List[Any] = []  # which cannot change before the backward pass
        for tensor in (ids, types, positions):
            if tensor is None:
                copies.append(None)
                continue
            shape = tensor.shape  # Paddle would broadcast the tensor to the shape of the ids, not vice versa
            pairs = zip(shape, ids.shape[len(ids.shape) - len(shape) :])
            is_spread = len(shape) in (1, 2) and all(size in (1, most) for size, most in pairs)
            if tensor.dtype not in WHOLE or not tensor.place.is_cpu_place() or not is_spread:
                return None
            copies.append(dense(tensor.astype("int64").expand(ids.shape)))
        return copies[0], copies[1], copies[2]

    def _call(self, given: Given, parameters) -> EmbeddingCall:
        of, state = self.embeddings, self.state
        dropout = sublayer_of(of, "dropout")
        batch, length = given[0].shape
        hidden, _, *tables = (parameter.shape[0] for parameter in parameters)
        call = EmbeddingCall(
            batch=batch, length=length, hidden=hidden, vocab_size=tables[0], num_positions=tables[1],
            num_types=tables[2], threads=state.threads, seed=state.seed.value,
            dropout=dropout.p if dropout.training else 0.0,
            epsilon=epsilon_of(sublayer_of(of, "layer_norm")),
            padding_id=padding_id_of(sublayer_of(of, "word_embeddings")),
        )  # fmt: skip
        _refuse_outside(given, call)
        return call


@paddle.jit.not_to_static
def run_fused(embeddings, input_ids=None, token_type_ids=None, position_ids=None, **others):
    """Return the output of a layer's `FusedEmbeddings` for ids; its forward pass, which Paddle may trace."""
    return embeddings.fused(input_ids, token_type_ids, position_ids, **others)


class OneEmbedding:
    """One pass through the embeddings.

    Its parameters: scale and shift, the word, position and type tables, and the task table if there is one.
    """

    def __init__(self, call: EmbeddingCall, given: Given, task_id: int, checked: CheckedTensors):
        self.call, self.given, self.task_id, self.checked = call, given, task_id, checked
        self.saved: Optional[Workspace] = None

    def _addresses(self, tensors) -> List[int]:
        """Return the addresses of words, positions, types, the row of the task, scale and shift."""
        scale, shift, words, places, kinds, *tasks = tensors
        task = tasks[0].data_ptr() + 4 * self.task_id * self.call.hidden if tasks else 0
        tables = [tensor.data_ptr() for tensor in (words, places, kinds)]
        return [*tables, task, scale.data_ptr(), shift.data_ptr()]

    def _ids(self) -> List[int]:
        return [0 if tensor is None else tensor.data_ptr() for tensor in self.given]

    def forward(self, parameters, is_kept: bool = False) -> paddle.Tensor:
        """Return the states [B, S, D]; ``is_kept``: for a backward pass."""
        call, functions = self.call, open_kernels().functions
        saved = POOL.take(functions.fused_embedding_saved_bytes(byref(call)))
        y_BSD = paddle.empty([call.batch, call.length, call.hidden])
        addresses = (*self._ids(), *self._addresses(parameters), saved.address, y_BSD.data_ptr())
        functions.fused_embedding_forward(byref(call), *addresses)
        if is_kept:
            self.saved = saved
        else:
            saved.release()
        return y_BSD

    def backward(self, parameters, dy_BSD) -> List[paddle.Tensor]:
        """Return the gradients of the parameters."""
        if self.saved is None:
            raise RuntimeError("the gradients of fused embeddings are computed once; use --kernels plain")
        self.checked.refuse_changed(parameters, _shapes_of)
        call, functions = self.call, open_kernels().functions
        work = POOL.take(functions.fused_embedding_work_bytes(byref(call)))
        gradients = [paddle.empty_like(parameter) for parameter in parameters[:NUM_PARAMETERS]]
        # Only one row of the task table has a gradient.
        gradients += [paddle.zeros_like(parameter) for parameter in parameters[NUM_PARAMETERS:]]
        inputs = (parameters[0].data_ptr(), self.saved.address, dy_BSD.data_ptr(), work.address)
        functions.fused_embedding_backward(byref(call), *self._ids(), *inputs, *self._addresses(gradients))
        work.release()
        self.saved.release()
        self.saved = None
        return gradients


class _Function(PyLayer):
    """`OneEmbedding` as a function of Paddle's autograd."""

    @staticmethod
    def forward(ctx, call: OneEmbedding, *parameters):
        ctx.call, ctx.parameters = call, parameters
        ctx.frozen = [parameter.stop_gradient for parameter in parameters]
        return call.forward(parameters, is_kept=True)

    @staticmethod
    def backward(ctx, dy_BSD):
        refuse_second_derivatives()
        gradients = ctx.call.backward(ctx.parameters, dense(dy_BSD))
        return tuple(None if stays else gradient for stays, gradient in zip(ctx.frozen, gradients))


def _refuse_outside(given: Given, call: EmbeddingCall) -> None:
    """Raise InputError for an id outside of its table: reading there could crash the process, or worse."""
    if given[2] is None and call.length > call.num_positions:
        raise InputError(
            f"{call.length} tokens per pair are more than the {call.num_positions} positions of the model; "
            "use a smaller --max_seq_len"
        )
    sizes = (call.vocab_size, call.num_types, call.num_positions)
    for name, tensor, size in zip(("token id", "token type", "position"), given, sizes):
        if tensor is None or tensor.size == 0:
            continue
        numbers = np.ctypeslib.as_array((c_int64 * tensor.size).from_address(tensor.data_ptr()))
        least, most = int(numbers.min()), int(numbers.max())
        if least < 0 or most >= size:
            wrong = least if least < 0 else most
            raise InputError(f"the {name} {wrong} is not one of the model's {size}; correct the input")


def why_layers_unfit(layers: Sequence) -> str:
    """Return why the kernels cannot compute these layers of an encoder, in words, or ''."""
    return next(filter(None, map(why_unfit, layers)), "")


def describe_unfit(embeddings: Sequence) -> str:
    """Return which of these parts the kernels leave to Paddle, in words, or ''."""
    return "" if all(map(are_fit, embeddings)) else "embeddings by Paddle"


def attach_kernels(layers: Sequence, embeddings: Sequence, state: ModelState) -> None:
    """Let the kernels compute ``layers``, and the ``embeddings`` before them if they can."""
    begins = True
    for part in embeddings:
        if are_fit(part):
            part.fused = FusedEmbeddings(part, state)
            set_forward(part, MethodType(run_fused, part))
            begins = False
    for number, layer in enumerate(layers):
        fused = FusedLayer(layer, number, state)
        fused.begins_pass = begins and number == 0
        set_forward(layer, fused)


def detach_kernels(layers: Sequence, embeddings: Sequence) -> None:
    """Let Paddle compute these parts again."""
    for layer in layers:
        if isinstance(own_forward(layer), FusedLayer):
            set_forward(layer, None)
    for part in embeddings:
        if isinstance(getattr(part, "fused", None), FusedEmbeddings):
            set_forward(part, None)
            del part.fused
