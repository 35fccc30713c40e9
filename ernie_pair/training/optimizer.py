"""AdamW over the trained parameters, its state under structured names, and mixed precision.

classifier.weight.moment1, .moment2           as the parameter
classifier.weight.beta1_pow_acc, .beta2_pow_acc   [1]
classifier.weight.master                      float32, of a parameter that is held in 16 bits

A parameter that does not train has no state.
"""

import contextlib
from typing import ContextManager, Iterable, Optional

import numpy as np
import paddle
from paddle.optimizer import AdamW

from ernie_pair.core.errors import CheckpointError
from ernie_pair.models.networks.encoders import HALVES
from ernie_pair.runtime.amp_flags import AmpFlags
from ernie_pair.runtime.paddle_patches.optimizer_state import (
    AnyDeviceGradScaler,
    is_named_adamw,
    keeps_masters,
    lay_powers_on_cpu,
    masters_of,
    new_master,
    slot_name,
    state_of,
)
from ernie_pair.weights.weight_files import Arrays, check_match

BETAS = {"beta1_pow_acc": 0.9, "beta2_pow_acc": 0.999}  # before the first update
MOMENTS = ("moment1", "moment2")
MASTER = "master"
Parameters = dict[str, paddle.Tensor]


def new_optimizer(
    model, config, *, multi_precision: bool = False, grad_clip=None, kind: type[AdamW] = AdamW
) -> AdamW:
    """Return AdamW over the trained parameters; biases and norms do not decay.

    ``config.layer_decay`` lowers the rate layer by layer: the head learns at the full rate, encoder layer i
    of L at rate * layer_decay^(L - i), the embeddings at rate * layer_decay^(L + 1). ``multi_precision``
    keeps float32 masters of parameters in 16 bits. ``kind``: the class of the optimizer. The rate is 0 until
    ``set_lr``.
    """
    trained = trained_parameters(model)
    factors = rate_factors(model, config.layer_decay)
    for name, parameter in trained.items():
        parameter.optimize_attr = {**parameter.optimize_attr, "learning_rate": factors[name]}
    decayed = {p.name for name, p in trained.items() if decays(name)}
    return kind(
        learning_rate=0.0,
        beta1=BETAS["beta1_pow_acc"],
        beta2=BETAS["beta2_pow_acc"],
        parameters=list(trained.values()),
        weight_decay=config.weight_decay,
        apply_decay_param_fun=decayed.__contains__,
        grad_clip=grad_clip,
        multi_precision=multi_precision,
        name=paddle.utils.unique_name.generate("adamw"),
    )


def trained_parameters(model) -> Parameters:
    """Return {structured name: parameter} of those that are not frozen, in the order of the model."""
    return {name: p for name, p in model.named_parameters() if not p.stop_gradient}


def decays(name: str) -> bool:
    """Return whether weight decay applies to the parameter of this name."""
    return not ("bias" in name.lower() or "norm" in name.lower())


def rate_factors(model, layer_decay: float) -> dict[str, float]:
    """Return {structured name: by what the learning rate is multiplied}, of frozen parameters too."""
    head = len(model.layers()) + 1
    return {name: layer_decay ** (head - model.depth_of(name)) for name, _ in model.named_parameters()}


def optimizer_arrays(model, optimizer, owned: Optional[Parameters] = None) -> Arrays:
    """Return the state as {structured name.slot: array}; float32.

    It is whole even before the first step, or the first after a restore. ``owned``: the parameters whose
    state this rank has; None: all that are trained. Of an optimizer of the user's own: what its steps have
    made.
    """
    state = state_of(optimizer)
    if not is_named_adamw(optimizer):
        # Paddle names the state of any other optimizer by parameter.
        prefixes = {f"{p.name}_": f"{name}." for name, p in trained_parameters(model).items()}
        slots = {name: _owner_of(name, prefixes) for name, t in state.items() if isinstance(t, paddle.Tensor)}
        return {prefixes[o] + name[len(o) :]: state[name].numpy() for name, o in slots.items() if o}
    masters = state.get("master_weights", {})
    arrays: Arrays = {}
    for name, parameter in (trained_parameters(model) if owned is None else owned).items():
        if is_master_kept(optimizer, parameter):
            master = masters.get(parameter.name)
            master = parameter.astype("float32") if master is None else master
            arrays[f"{name}.{MASTER}"] = master.numpy()
        firsts = {slot: np.zeros(parameter.shape, dtype=np.float32) for slot in MOMENTS}
        firsts.update({slot: np.full(1, value, dtype=np.float32) for slot, value in BETAS.items()})
        for slot, first in firsts.items():
            kept = state.get(slot_name(optimizer, parameter, slot))
            arrays[f"{name}.{slot}"] = first if kept is None else kept.numpy()
    return arrays


def restore_optimizer(
    model, optimizer, arrays: Arrays, where: str, owned: Optional[Parameters] = None
) -> None:
    """Take what ``optimizer_arrays`` gave, for ``owned``. CheckpointError names ``where``: nothing is set."""
    trained = trained_parameters(model) if owned is None else owned
    check_optimizer_state(model, optimizer, arrays, where)
    if not is_named_adamw(optimizer):
        names = {f"{name}.": f"{p.name}_" for name, p in trained.items()}
        state = dict(optimizer.state_dict())  # the rest of it, such as its scheduler's, stays
        for slot, array in arrays.items():
            name = _owner_of(slot, names)
            state[names[name] + slot[len(name) :]] = paddle.to_tensor(array)
        optimizer.set_state_dict(state)
        return
    masters = {}
    for name, parameter in trained.items():
        if is_master_kept(optimizer, parameter):
            masters[parameter.name] = new_master(parameter, arrays[f"{name}.{MASTER}"])
    masters_of(optimizer).update(masters)  # they name the rest of the state
    state = {
        slot_name(optimizer, p, slot): paddle.to_tensor(arrays[f"{name}.{slot}"])
        for name, p in trained.items()
        for slot in (*MOMENTS, *BETAS)
    }
    optimizer.set_state_dict({**state, "master_weights": masters} if masters else state)
    lay_powers_on_cpu(optimizer, list(trained.values()))


def check_optimizer_state(model, optimizer, arrays: Arrays, where: str) -> None:
    """Raise CheckpointError naming ``where`` when ``arrays`` is no state of this optimizer."""
    if is_named_adamw(optimizer):
        check_match(state_shapes(model, optimizer), arrays, where)
        return
    names = [f"{name}." for name in trained_parameters(model)]
    strange = [slot for slot in arrays if not _owner_of(slot, names)]
    if strange:
        raise CheckpointError(
            f"{where}: {strange[0]} belongs to no parameter that this optimizer moves; pass the optimizer "
            "and the model of the run that wrote it"
        )


def _owner_of(name: str, prefixes: Iterable[str]) -> str:
    return max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default="")


def state_shapes(model, optimizer) -> dict[str, tuple]:
    """Return what ``optimizer_arrays`` holds, as {structured name.slot: shape}."""
    shapes = {}
    for name, parameter in trained_parameters(model).items():
        shape = tuple(parameter.shape)
        if is_master_kept(optimizer, parameter):
            shapes[f"{name}.{MASTER}"] = shape
        shapes.update({f"{name}.{slot}": shape for slot in MOMENTS})
        shapes.update({f"{name}.{slot}": (1,) for slot in BETAS})
    return shapes


def is_master_kept(optimizer, parameter) -> bool:
    """Return whether the optimizer keeps a float32 master of the parameter."""
    return keeps_masters(optimizer) and parameter.dtype in HALVES


# Kept in float32, for a sum over many terms loses its small ones in half precision.
FLOAT32_OPS = {"softmax", "softmax_with_cross_entropy", "layer_norm", "reduce_sum"}
LOSS_SCALE_FLAGS = (
    "init_loss_scaling", "incr_ratio", "decr_ratio", "incr_every_n_steps", "decr_every_n_nan_or_inf",
)  # fmt: skip
SCALE, FINITE, INFINITE = "loss_scale", "finite_in_a_row", "infinite_in_a_row"


def autocast(config: AmpFlags, level: str) -> ContextManager:
    """Return a context in which a forward pass computes in half precision where that is safe."""
    if not config.computes_in_half:
        return contextlib.nullcontext()
    return paddle.amp.auto_cast(level=level, dtype=config.amp_dtype, custom_black_list=FLOAT32_OPS)


class LossScale(AnyDeviceGradScaler):
    """Paddle's loss scale; the caller, who has heard all processes, says what is to be skipped."""

    def __init__(self, config: AmpFlags):
        super().__init__(**{name: getattr(config, name) for name in LOSS_SCALE_FLAGS})

    def arrays(self) -> Arrays:
        """Return the state as arrays, which ``restore`` takes: the loss scale and two counts, [1] each."""
        state = self.state_dict()
        counts = {FINITE: state["incr_count"], INFINITE: state["decr_count"]}
        return {SCALE: state["scale"], **{name: np.array([count]) for name, count in counts.items()}}

    def restore(self, arrays: Arrays) -> None:
        """Restore the state that ``arrays`` returned."""
        counts = {"incr_count": int(arrays[FINITE][0]), "decr_count": int(arrays[INFINITE][0])}
        self.load_state_dict({**self.state_dict(), "scale": arrays[SCALE], **counts})
