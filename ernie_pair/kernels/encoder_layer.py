"""An encoder layer of Paddle, post-norm with gelu or relu, and the embeddings: a call forward, one backward.

`FusedLayer` replaces the forward pass of a TransformerEncoderLayer, `FusedEmbeddings` that of the embeddings
of PaddleNLP's ERNIE, ErnieGram, BERT and RoBERTa: all tables, the norm and the dropout. `attach_kernels`
gives both to the encoder of a model; its parameters stay where they are. B batch, S sequence, D hidden, Q S
or 1, V vocabulary. Where a pass leaves padding out (`ModelState.without_padding`), the embeddings and the
layers give each other the states of the T tokens alone, [1, T, D] for [B, S, D].
"""

import copy
import logging
import sys
from contextlib import contextmanager
from ctypes import byref, c_int64
from dataclasses import dataclass, field
from functools import partial
from types import MethodType
from typing import Any, Iterator, List, Optional, Sequence, Set, Tuple

import numpy as np
import paddle
from paddle import nn
from paddle.autograd import PyLayer

from ernie_pair.core.errors import InputError, MachineError
from ernie_pair.kernels.library import (
    ACTIVATIONS,
    POOL,
    PRECISIONS,
    DropoutSeed,
    EmbeddingCall,
    LayerCall,
    Workspace,
    open_kernels,
    pointers_of,
)
from ernie_pair.kernels.tensors import CheckedTensors, UnpaddedRows, dense, is_float32_on_cpu
from ernie_pair.runtime.paddle_patches.layers import (
    Forward,
    activation_of,
    epsilon_of,
    own_forward,
    padding_id_of,
    parameter_of,
    runs_its_class,
    set_forward,
    sublayer_of,
)

# The parts that have parameters, in the order of fused.h; those of the attention are inside `self_attn`.
ATTENTION_PARTS = ("q_proj", "k_proj", "v_proj", "out_proj")
OTHER_PARTS = {"linear1": nn.Linear, "linear2": nn.Linear, "norm1": nn.LayerNorm, "norm2": nn.LayerNorm}
MAX_DROPPED = 65535 / 65536  # a number of 16 bits draws
DROPOUTS = ("dropout", "dropout1", "dropout2")
ONEDNN_FAILED = "oneDNN refused a product of the fused kernels; pass --kernels plain"
EMBEDDING_CLASSES = {"ErnieEmbeddings", "ErnieGramEmbeddings", "BertEmbeddings", "RobertaEmbeddings"}
INTEGER_TYPES = (paddle.int32, paddle.int64)
NUM_PARAMETERS = 5  # without the task table
# The ids, types and positions of a batch, int64 [B, S]; positions None: 0, 1, ... S - 1.
TokenInputs = Tuple[paddle.Tensor, paddle.Tensor, Optional[paddle.Tensor]]

logger = logging.getLogger(__name__)


def layer_unsupported_reason(layer) -> str:
    """Return why the kernels cannot compute ``layer``, whatever its weights are, in words, or ''."""
    attention = sublayer_of(layer, "self_attn")
    if type(layer) is not nn.TransformerEncoderLayer or type(attention) is not nn.MultiHeadAttention:
        return f"the fused kernels do not support {type(layer).__name__} layers"
    if layer.normalize_before:
        return "the fused kernels do not support pre-norm layers"
    if not activation_of(layer):
        name = getattr(layer.activation, "__name__", "this activation").lstrip("_")  # Paddle 3.3 has `_tanh`
        return f"the fused kernels support gelu and relu, not {name}"
    parts = [("self_attn", attention, nn.MultiHeadAttention)]
    parts += [(name, sublayer_of(attention, name), nn.Linear) for name in ATTENTION_PARTS]
    parts += [(name, sublayer_of(layer, name), kind) for name, kind in OTHER_PARTS.items()]
    parts += [(name, sublayer_of(layer, name), nn.Dropout) for name in DROPOUTS]
    for name, part, kind in parts:
        if part is None or not runs_its_class(part, kind):
            return f"{name} of a layer was replaced or has a hook, which the fused kernels would ignore"
    inner, first, second = (sublayer_of(layer, name) for name in DROPOUTS)
    if inner.p or first.p != second.p or first.training != second.training:
        return "the fused kernels support no dropout within the feed-forward, and one rate outside of it"
    if max(first.p, attention.dropout) > MAX_DROPPED:
        return "the fused kernels support no dropout of everything"
    if epsilon_of(sublayer_of(layer, "norm1")) != epsilon_of(sublayer_of(layer, "norm2")):
        return "the fused kernels support one epsilon for both norms of a layer"
    return ""


def parameters_of(layer) -> List[Any]:
    """Return the parameters in the order of fused.h; None for a missing one."""
    attention = sublayer_of(layer, "self_attn")
    parts = [sublayer_of(attention, name) for name in ATTENTION_PARTS]
    parts += [sublayer_of(layer, name) for name in OTHER_PARTS]
    return [parameter_of(part, name) for part in parts for name in ("weight", "bias")]


def layer_shapes(parameters: Sequence) -> List[List[int]]:
    """Return the shapes that the ``parameters`` of a layer have if they fit together."""
    hidden, inner = parameters[0].shape[0], parameters[8].shape[-1]
    square, row = [hidden, hidden], [hidden]
    return [*[square, row] * 4, [hidden, inner], [inner], [inner, hidden], *[row] * 5]


@dataclass
class ModelState:
    """How a model is computed, and which forward pass it is in.

    ``weights_epoch`` increases whenever the weights may have changed; then packed copies of them are made
    again. Paddle cannot tell: its optimizers and ``set_value`` do not change ``inplace_version``.
    ``is_constant``: whoever holds the model promises that its weights stay as they are.
    """

    precision: str
    threads: int
    seed: DropoutSeed = field(default_factory=DropoutSeed)
    weights_epoch: int = 0
    unpadded: Optional[UnpaddedRows] = None  # of the batch of the current pass, if its padding is left out
    is_constant: bool = False
    _logged: Set[str] = field(default_factory=set)

    def begin_pass(self) -> None:
        """Begin a forward pass of the model."""
        self.seed.begin_pass()
        if not self.is_constant:
            self.weights_epoch += 1

    def log_once(self, reason: str) -> None:
        """Log that Paddle computes a part of the model from now on, and why; each reason once."""
        if reason not in self._logged:
            self._logged.add(reason)
            logger.warning("a part of the model is left to the plain kernels of Paddle: %s", reason)

    def fit_parameters(self, part, why_unfit, parameters_in, checked: CheckedTensors, shapes_of) -> List:
        """Return the parameters of ``part`` if the kernels can compute it now, otherwise [], and log why."""
        reason = why_unfit(part)
        parameters = [] if reason else parameters_in(part)
        if not reason and checked.are_fit(parameters, shapes_of):
            return parameters
        self.log_once(reason or "its weights are no longer float32 on the CPU")
        return []

    @contextmanager
    def constant_weights(self) -> Iterator[None]:
        """Promise that the weights of the layers stay as they are within this context."""
        before, self.is_constant = self.is_constant, True
        self.weights_epoch += not before
        try:
            yield
        finally:
            self.is_constant = before

    @contextmanager
    def without_padding(self, is_token: np.ndarray) -> Iterator[None]:
        """Let the layers compute no padding of the batch whose tokens bool [B, S] are given, in this context.

        The states of padding are then 0. A batch with nothing to leave out is computed as ever, and so is
        one with an empty sequence.
        """
        is_mixed = not is_token.all() and is_token.any(axis=1).all()
        self.unpadded = UnpaddedRows(is_token) if is_mixed else None
        try:
            yield
        finally:
            self.unpadded = None


class FusedLayer:
    """The forward pass of ``layer``, the ``number``-th of a model.

    ``is_recomputed``: keep only the input for the backward pass, and compute the rest again there. ``rows``:
    int32, ascending, those of the B x S output rows that are read; the others are 0. None: all are.
    """

    def __init__(self, layer, number: int, state: ModelState):
        self.layer, self.number, self.state = layer, number, state
        self.is_recomputed, self.first_token_only, self.begins_pass = False, False, False
        self.is_last = False
        self.rows: Optional[np.ndarray] = None
        self.packed, self.checked = PackedWeights(), CheckedTensors()
        self.plain: Forward = partial(type(layer).forward, layer)

    def for_first_token(self, plain: Forward) -> "FusedLayer":
        """Return a layer that computes only [B, 1, D], the first token of each sequence, like ``plain``."""
        alone = copy.copy(self)  # the packed weights are shared
        alone.first_token_only, alone.plain = True, plain
        return alone

    def __call__(self, src, src_mask=None, cache=None, output_attentions=False):
        """Return the states [B, Q, D] after the layer from those before it [B, S, D].

        ``src_mask``: float32 [B, 1, 1, S], added to the scores. Whatever else TransformerEncoder may ask for
        is computed by Paddle, and so is a layer that the kernels no longer support.
        """
        if self.begins_pass:
            self.state.begin_pass()
        unpadded = self.state.unpadded
        if unpadded is not None and self.number == 0:
            src = unpadded.take(src)
        is_asked = cache is not None or output_attentions or not paddle.in_dynamic_mode()
        is_known = not is_asked and _are_supported(src, src_mask if unpadded is None else None)
        parameters = self._fit_parameters(src.shape[2]) if is_known else []
        if not parameters:
            src = src if unpadded is None else unpadded.spread(src)
            states = self.plain(src, src_mask, cache, output_attentions)
            return states if unpadded is None or self.is_last else unpadded.take(states)
        states = self._states(dense(src), src_mask, unpadded, parameters)
        is_read = self.is_last and not self.first_token_only  # by others than the layers
        return states if unpadded is None or not is_read else unpadded.spread(states)

    def _states(self, src, src_mask, unpadded: Optional[UnpaddedRows], parameters) -> paddle.Tensor:
        mask = None if src_mask is None or unpadded is not None else dense(src_mask)
        sizes = self._call(src, unpadded, parameters)
        has_gradient = paddle.is_grad_enabled() and not all(t.stop_gradient for t in (src, *parameters))
        drops = sizes.hidden_dropout > 0 or sizes.attention_dropout > 0
        sizes.forward_only = not (has_gradient or drops or self.rows is not None)
        packed = self.packed.of(sizes, self.state.weights_epoch, parameters)
        call = LayerPass(sizes, packed, self.is_recomputed, self.checked, mask, self.rows, unpadded)
        if has_gradient:
            return _Pass.apply(call, src, *parameters)
        states, saved = call.forward(src, *parameters)
        saved.release()
        return states

    def _fit_parameters(self, width: int) -> List[paddle.Tensor]:
        parameters = self.state.fit_parameters(
            self.layer, layer_unsupported_reason, parameters_of, self.checked, layer_shapes
        )
        if not parameters:
            return []
        attention = sublayer_of(self.layer, "self_attn")
        is_wide = width == attention.num_heads * attention.head_dim == parameters[0].shape[0]
        return parameters if is_wide else []  # Paddle raises the error if the widths differ

    def _call(self, src, unpadded: Optional[UnpaddedRows], parameters) -> LayerCall:
        layer, state, attention = self.layer, self.state, sublayer_of(self.layer, "self_attn")
        dropout = sublayer_of(layer, "dropout1")
        batch, length, hidden = src.shape
        if unpadded is not None:
            batch, length = unpadded.batch, unpadded.length
        return LayerCall(
            batch=batch, length=length, hidden=hidden, heads=attention.num_heads,
            inner=parameters[8].shape[1], precision=PRECISIONS[state.precision], threads=state.threads,
            first_token_only=self.first_token_only, layer=self.number, seed=state.seed.value,
            hidden_dropout=dropout.p if dropout.training else 0.0,
            attention_dropout=attention.dropout if attention.training else 0.0,
            epsilon=epsilon_of(sublayer_of(layer, "norm1")), activation=ACTIVATIONS[activation_of(layer)],
            out_rows=0 if self.rows is None else len(self.rows),
            rows=None if self.rows is None else self.rows.ctypes.data,
            starts=None if unpadded is None else unpadded.starts.ctypes.data,
        )  # fmt: skip


class PackedWeights:
    """The weights of a layer as its products read them: copies in bfloat16; nothing in float32."""

    def __init__(self) -> None:
        self.epoch = -1
        self.space: Optional[Workspace] = None

    def __deepcopy__(self, memo) -> "PackedWeights":
        return PackedWeights()  # the copy has other weights

    def of(self, call: LayerCall, epoch: int, parameters) -> Optional[Workspace]:
        """Return the copies of the weights of this ``epoch``."""
        if call.precision == PRECISIONS["fp32"]:
            return None
        if self.epoch != epoch or self.space is None:
            functions = open_kernels().functions
            size = functions.fused_packed_bytes(byref(call))
            if self.space is None or self.space.size < size:  # a layer may have been given other weights
                self.space = POOL.take(size)
            functions.fused_layer_pack(byref(call), pointers_of(parameters), self.space.address)
            self.epoch = epoch
        return self.space


@dataclass
class LayerPass:
    """One pass through a layer, forward and, if requested, backward; ``rows``: see `FusedLayer`.

    ``unpadded``: of a pass without padding; x is then [1, T, D] instead of [B, S, D].
    """

    call: LayerCall
    packed: Optional[Workspace]
    is_recomputed: bool
    checked: CheckedTensors
    mask: Optional[paddle.Tensor]
    rows: Optional[np.ndarray]
    unpadded: Optional[UnpaddedRows]
    kept: Any = None  # input, parameters, and what is saved unless it is recomputed

    def begin(self, tensors) -> paddle.Tensor:
        """Return the states after the layer, and keep what `backward` needs."""
        states, saved = self.forward(*tensors)
        if self.is_recomputed:
            saved.release()
        self.kept = (*tensors, None if self.is_recomputed else saved)
        return states

    def forward(self, x_BSD, *parameters) -> Tuple[paddle.Tensor, Workspace]:
        """Return the states [B, Q, D] and what the backward pass needs."""
        call, functions = self.call, open_kernels().functions
        saved = POOL.take(functions.fused_saved_bytes(byref(call)))
        work = POOL.take(functions.fused_work_bytes(byref(call)))
        y_BQD = paddle.empty([call.batch, 1, call.hidden] if call.first_token_only else x_BSD.shape)
        if self.rows is not None:
            y_BQD = paddle.empty([len(self.rows), call.hidden])
        inputs = (x_BSD.data_ptr(), 0 if self.mask is None else self.mask.data_ptr(), pointers_of(parameters))
        outputs = (self.packed and self.packed.address, saved.address, work.address, y_BQD.data_ptr())
        refused = functions.fused_layer_forward(byref(call), *inputs, *outputs)
        work.release()
        if refused:
            raise MachineError(ONEDNN_FAILED)
        if self.rows is not None:
            zeros = paddle.zeros_like(x_BSD).reshape([-1, call.hidden])
            y_BQD = paddle.scatter(zeros, paddle.to_tensor(self.rows), y_BQD).reshape(x_BSD.shape)
        return y_BQD, saved

    def backward(self, dy_BQD) -> List[paddle.Tensor]:
        """Return the gradients of the input [B, S, D] and of the parameters."""
        if self.kept is None:
            raise RuntimeError("the gradients of a fused layer are computed once; use --kernels plain")
        (x_BSD, *parameters, saved), self.kept = self.kept, None
        self.checked.check_unchanged(parameters, layer_shapes)
        if saved is None:  # dropout by Philox repeats itself
            saved = self.forward(x_BSD, *parameters)[1]
        call, functions = self.call, open_kernels().functions
        if self.rows is not None:
            dy_BQD = paddle.gather(dy_BQD.reshape([-1, call.hidden]), paddle.to_tensor(self.rows))
        work = POOL.take(functions.fused_work_bytes(byref(call)))
        dx_BSD, gradients = paddle.empty_like(x_BSD), [paddle.empty_like(p) for p in parameters]
        inputs = (
            x_BSD.data_ptr(),
            pointers_of(parameters),
            self.packed and self.packed.address,
            saved.address,
        )
        outputs = (dy_BQD.data_ptr(), work.address, dx_BSD.data_ptr(), pointers_of(gradients))
        refused = functions.fused_layer_backward(byref(call), *inputs, *outputs)
        work.release()
        saved.release()
        if refused:
            raise MachineError(ONEDNN_FAILED)
        return [dx_BSD, *gradients]


class _Pass(PyLayer):
    """A pass through a layer or the embeddings, ``call``, as a function of Paddle's autograd."""

    @staticmethod
    def forward(ctx, call, *tensors):
        ctx.call, ctx.frozen = call, [tensor.stop_gradient for tensor in tensors]
        return call.begin(tensors)

    @staticmethod
    def backward(ctx, dy):
        if paddle.is_grad_enabled():  # of ``create_graph``
            raise RuntimeError("the fused kernels have no second derivatives; pass --kernels plain")
        gradients = ctx.call.backward(dense(dy))
        return tuple(None if stays else gradient for stays, gradient in zip(ctx.frozen, gradients))


def _are_supported(src, src_mask) -> bool:
    """Return whether the kernels support these states and this mask: float32, a mask without gradient."""
    shape = src.shape
    if len(shape) != 3 or 0 in shape or not is_float32_on_cpu(src):
        return False
    return src_mask is None or (
        src_mask.shape == [shape[0], 1, 1, shape[1]]
        and src_mask.stop_gradient
        and is_float32_on_cpu(src_mask)
    )


def are_fit(embeddings) -> bool:
    """Return whether the kernels can compute these embeddings."""
    kind = type(embeddings)
    if kind.__name__ not in EMBEDDING_CLASSES or not kind.__module__.startswith("paddlenlp."):
        return False
    return not embeddings_unsupported_reason(embeddings) and CheckedTensors().are_fit(
        _parameters_of(embeddings), _shapes_of
    )


def embeddings_unsupported_reason(embeddings) -> str:
    """Return why the kernels cannot compute embeddings of a known class at the moment, in words, or ''."""
    kinds = {"layer_norm": nn.LayerNorm, "dropout": nn.Dropout}
    for name in (*kinds, *_tables_of(embeddings)):
        part = sublayer_of(embeddings, name)
        if part is None or not runs_its_class(part, kinds.get(name, nn.Embedding)):
            return f"{name} was replaced or has a hook, which the fused kernels would ignore"
    if sublayer_of(embeddings, "dropout").p > MAX_DROPPED:
        return "the fused kernels support no dropout of everything"
    return ""


def _tables_of(embeddings) -> List[str]:
    tasks = ["task_type_embeddings"] if getattr(embeddings, "use_task_id", False) else []
    return ["word_embeddings", "position_embeddings", "token_type_embeddings", *tasks]


def _parameters_of(embeddings) -> List[paddle.Tensor]:
    """Return scale and shift of the norm and the tables; the parts were checked before."""
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
        parameters = []
        if not is_plain:
            parameters = self.state.fit_parameters(
                self.embeddings, embeddings_unsupported_reason, _parameters_of, self.checked, _shapes_of
            )
        given = self._copy_inputs(input_ids, token_type_ids, position_ids) if parameters else None
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
        length, most = given[0].shape[1], parameters[3].shape[0]
        if given[2] is None and length > most:
            raise InputError(
                f"{length} tokens per pair are more than the {most} positions of the model; use a smaller "
                "--max_seq_len"
            )
        if self.state.unpadded is not None:
            given = _unpad_inputs(given, self.state.unpadded)
        call = EmbeddingPass(self._call(given, parameters), given, task_id, self.checked)
        if paddle.is_grad_enabled() and not all(parameter.stop_gradient for parameter in parameters):
            return _Pass.apply(call, *parameters)
        states, saved = call.forward(parameters)
        saved.release()
        return states

    def _copy_inputs(self, ids, types, positions) -> Optional[TokenInputs]:
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
            if tensor.dtype not in INTEGER_TYPES or not tensor.place.is_cpu_place() or not is_spread:
                return None
            copies.append(dense(tensor.astype("int64").expand(ids.shape)))
        return copies[0], copies[1], copies[2]

    def _call(self, given: TokenInputs, parameters) -> EmbeddingCall:
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
        _check_ids(given, call)
        return call


def _unpad_inputs(given: TokenInputs, unpadded: UnpaddedRows) -> TokenInputs:
    """Return the ids, types and positions of tokens alone, int64 [1, T]."""
    ids, types, positions = given
    positions = paddle.arange(ids.shape[1]).expand(ids.shape) if positions is None else positions
    return unpadded.take(ids), unpadded.take(types), unpadded.take(positions)


@paddle.jit.not_to_static
def run_fused(embeddings, input_ids=None, token_type_ids=None, position_ids=None, **others):
    """Return the output of a layer's `FusedEmbeddings` for ids; its forward pass, which Paddle may trace."""
    return embeddings.fused(input_ids, token_type_ids, position_ids, **others)


class EmbeddingPass:
    """One pass through the embeddings.

    Its parameters: scale and shift, the word, position and type tables, and the task table if there is one.
    """

    def __init__(self, call: EmbeddingCall, given: TokenInputs, task_id: int, checked: CheckedTensors):
        self.call, self.given, self.task_id, self.checked = call, given, task_id, checked
        self.kept: Any = None

    def _addresses(self, tensors) -> List[int]:
        """Return the addresses of words, positions, types, the row of the task, scale and shift."""
        scale, shift, words, places, kinds, *tasks = tensors
        task = tasks[0].data_ptr() + 4 * self.task_id * self.call.hidden if tasks else 0
        tables = [tensor.data_ptr() for tensor in (words, places, kinds)]
        return [*tables, task, scale.data_ptr(), shift.data_ptr()]

    def _ids(self) -> List[int]:
        return [0 if tensor is None else tensor.data_ptr() for tensor in self.given]

    def begin(self, parameters) -> paddle.Tensor:
        """Return the states, and keep what `backward` needs."""
        states, saved = self.forward(parameters)
        self.kept = parameters, saved
        return states

    def forward(self, parameters) -> Tuple[paddle.Tensor, Workspace]:
        """Return the states [B, S, D], and what the backward pass needs."""
        call, functions = self.call, open_kernels().functions
        saved = POOL.take(functions.fused_embedding_saved_bytes(byref(call)))
        y_BSD = paddle.empty([call.batch, call.length, call.hidden])
        addresses = (*self._ids(), *self._addresses(parameters), saved.address, y_BSD.data_ptr())
        functions.fused_embedding_forward(byref(call), *addresses)
        return y_BSD, saved

    def backward(self, dy_BSD) -> List[paddle.Tensor]:
        """Return the gradients of the parameters."""
        if self.kept is None:
            raise RuntimeError("the gradients of fused embeddings are computed once; use --kernels plain")
        (parameters, saved), self.kept = self.kept, None
        self.checked.check_unchanged(parameters, _shapes_of)
        call, functions = self.call, open_kernels().functions
        work = POOL.take(functions.fused_embedding_work_bytes(byref(call)))
        gradients = [paddle.empty_like(parameter) for parameter in parameters[:NUM_PARAMETERS]]
        # Only one row of the task table has a gradient.
        gradients += [paddle.zeros_like(parameter) for parameter in parameters[NUM_PARAMETERS:]]
        inputs = (parameters[0].data_ptr(), saved.address, dy_BSD.data_ptr(), work.address)
        functions.fused_embedding_backward(byref(call), *self._ids(), *inputs, *self._addresses(gradients))
        work.release()
        saved.release()
        return gradients


def _check_ids(given: TokenInputs, call: EmbeddingCall) -> None:
    """Raise InputError for an id outside of its table: reading there could crash the process, or worse."""
    sizes = (call.vocab_size, call.num_types, call.num_positions)
    for name, tensor, size in zip(("token id", "token type", "position"), given, sizes):
        if tensor is None or tensor.size == 0:
            continue
        numbers = np.ctypeslib.as_array((c_int64 * tensor.size).from_address(tensor.data_ptr()))
        least, most = int(numbers.min()), int(numbers.max())
        if least < 0 or most >= size:
            wrong = least if least < 0 else most
            raise InputError(f"the {name} {wrong} is not one of the model's {size}; correct the input")


def unsupported_reason(layers: Sequence) -> str:
    """Return why the kernels cannot compute these layers of an encoder, in words, or ''."""
    for layer in layers:
        reason = layer_unsupported_reason(layer)
        if reason:
            return reason
        if any(p is None or p.dtype != paddle.float32 for p in parameters_of(layer)):
            return "the fused kernels need every weight and bias in float32"
    return ""


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
        fused.begins_pass, fused.is_last = begins and number == 0, number == len(layers) - 1
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
