"""The static programs of pretraining, with their inputs and state: start-up, training, and evaluation.

What a step is, is said while a program is built: gradients are summed over the processes by an operator, one
for all of them laid end to end, so that no two ranks meet in different sums; each process moves its own
parameters and receives the others; the layers of recompute are computed again from inputs that are cut off
from the graph. A step of several micro-batches has two programs: one adds gradients up in variables of the
scope, the other moves the weights.
"""

from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, Iterable, NamedTuple, Optional

import numpy as np
import paddle

from ernie_pair.kernels.choice import KernelChoice
from ernie_pair.kernels.operator import GraphInputs
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.pretraining.graph.dynamic_program import draw_as_static
from ernie_pair.pretraining.graph.fusion import PLAIN, fuse_layers
from ernie_pair.pretraining.graph.model import LossSums, build_padded, encoder_of, run_ernie, sum_losses
from ernie_pair.pretraining.graph.program_state import (
    BAD_STEPS,
    GOOD_STEPS,
    LOSS_SCALE,
    LOSS_WEIGHTS,
    ProgramState,
    feeds_of,
    slots_of,
)
from ernie_pair.pretraining.graph.step_monitors import (
    GRADIENT_NORM,
    LABELLED,
    PASS_SEED,
    RECORDED_PASSES,
    RECORDS,
    SKIPPED_UPDATES,
    Monitors,
)
from ernie_pair.pretraining.graph.strategy import OPERATOR, AmpPlan, decayed_names, owners_of, precision_of
from ernie_pair.runtime.paddle_patches import static_programs as programs
from ernie_pair.runtime.paddle_patches.layers import own_forward, set_forward
from ernie_pair.weights.weight_files import Arrays

RATE = "learning_rate"
DROPOUTS = 16  # of a layer, at most: each has a place of its own


@dataclass
class PretrainProgram(ProgramState):
    """The programs of a run, on the scope that they share, and the steps that they make."""

    main: paddle.static.Program
    startup: paddle.static.Program
    test: paddle.static.Program
    update: Optional[paddle.static.Program]  # moves the weights; None: ``main`` does
    owned: set[str]  # the optimizer state of this process
    shared: list[str]  # the state that belongs to no parameter
    drawn: Arrays  # the weights at the start, under their structured names
    _feeds_rate: dict[str, np.ndarray] = field(default_factory=lambda: {RATE: np.zeros(1, np.float32)})
    _runners: dict[Any, programs.HeldProgram] = field(default_factory=dict)
    _merged: int = 1  # micro-batches of a step
    _passes: int = 0  # of the step that has begun

    def start(self, seed: int) -> None:
        """Fill the optimizer state, and set the weights that were drawn, the same on every rank."""
        paddle.seed(seed)
        with paddle.static.scope_guard(self.scope):
            self.executor.run(self.startup)
        self.set_weights({self.parameters[name].name: array for name, array in self.drawn.items()})
        self.drawn = {}

    def rate(self, rate: float) -> None:
        """Set the learning rate of the next step."""
        self._feeds_rate = {RATE: np.array([rate], np.float32)}

    def merge(self, passes: int) -> None:
        """Set the micro-batches per step from now on."""
        self._merged = passes

    def run(self, program: paddle.static.Program, feed: dict[str, Any]) -> None:
        """Run ``main`` or ``test`` on one micro-batch; the last one of a step moves the weights."""
        if program is self.main and self.update is None:
            feed = {**feed, **self._feeds_rate}
        self._run(program, feed)
        if program is not self.main or self.update is None:
            return
        self._passes += 1
        if self._passes == self._merged:
            self._run(self.update, self._feeds_rate)
            self._passes = 0

    def _run(self, program: paddle.static.Program, feed: dict[str, Any]) -> None:
        if program not in self._runners:
            self._runners[program] = programs.HeldProgram(self.executor, program, self.scope)
        self._runners[program].run(feed)

    def owned_variables(self, names: Iterable[str]) -> list[str]:
        """Return those of ``names`` that this process has."""
        return [name for name in names if name in self.owned or name in self.shared]

    def shared_state(self) -> list[str]:
        """Return the names of the state that outlives a pass and belongs to no parameter."""
        return self.shared


class _Forward(NamedTuple):
    model: paddle.nn.Layer
    weights: paddle.Tensor  # of the two losses, float32 [2]
    sums: LossSums
    kernels: KernelChoice
    layers: list["_CutLayer"]  # of recompute


@programs.without_advice()
def build_program(
    config: PretrainConfig, model_config, rank: int = 0, kernels: KernelChoice = PLAIN
) -> PretrainProgram:
    """Build everything for one rank, after ``start_fleet``. Nothing is run yet.

    ``kernels``: the path of the run, by `choose_path`; a model that it does not support takes the plain one.
    The loss is sum(masked) * w[0] + sum(sop) * w[1] with the fed ``loss_weights`` w; masked means tokens and
    n-grams alike. It is averaged over ranks and micro-batches, so the caller chooses w to make it the mean
    over the whole global batch.
    """
    programs.keep_order()
    paddle.disable_static(paddle.device.get_device())
    drawn = draw_as_static(model_config, config.seed)
    paddle.enable_static()
    main, startup, test = (paddle.static.Program() for _ in range(3))
    several = config.accumulation_steps > 1
    update = paddle.static.Program() if several else main
    num_rows = max(RECORDED_PASSES, config.accumulation_steps)
    has_norm = config.grad_clip > 0
    with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
        forward = _add_forward(config, model_config, kernels, is_test=False)
        parameters, gradients = _add_backward(config, forward)
        if several:
            for parameter, gradient in zip(parameters, gradients):
                total = _accumulated(parameter)
                paddle.assign(total + gradient, total)
            _add_record(forward.sums, [paddle.zeros([1])] * has_norm, num_rows)
    with paddle.static.program_guard(update, startup), paddle.utils.unique_name.guard():
        if several:
            parameters = [programs.parameter_here(parameter) for parameter in parameters]
            gradients = [_accumulated(parameter) for parameter in parameters]
        decays = {name: config.weight_decay for name in decayed_names(forward.model)}
        slots, owned, shared, monitors, norm = _add_update(
            config, parameters, gradients, decays, rank, forward.kernels.is_fused
        )
        norms = [norm] if norm is not None else []
        if several:
            for total in gradients:
                paddle.assign(paddle.zeros_like(total), total)
            _add_norm(forward.sums, norms, num_rows)
        else:
            _add_record(forward.sums, norms, num_rows)
    with paddle.static.program_guard(test, paddle.static.Program()), paddle.utils.unique_name.guard():
        sums = _add_forward(config, model_config, kernels, is_test=True).sums
        _add_record(sums, [paddle.zeros([1])] * has_norm, num_rows)
    return PretrainProgram(
        parameters=forward.model.state_dict(),
        slots=slots,
        num_recorded=len(forward.sums.recorded) + has_norm,
        monitors=monitors,
        device=config.device,
        recorded_passes=num_rows,
        kernels=forward.kernels,
        main=main,
        startup=startup,
        test=test,
        update=update if several else None,
        owned=owned,
        shared=shared,
        drawn=drawn,
        _merged=config.accumulation_steps,
    )


def _add_forward(config: PretrainConfig, model_config, kernels: KernelChoice, is_test: bool) -> _Forward:
    fed = feeds_of(model_config)
    feeds = {name: paddle.static.data(name, shape, kind) for name, (shape, kind) in fed.items()}
    seed = paddle.static.data(PASS_SEED, [1], "int32")
    weights = paddle.static.data(LOSS_WEIGHTS, [2], "float32") if not is_test else None
    if config.processes > 1 and not is_test:
        labelled = programs.sum_over_ranks(paddle.static.data(LABELLED, [2], "float64"))
        labelled = paddle.clip(labelled, 1.0, 3e38)
        weights = paddle.cast(paddle.cast(weights, "float64") / labelled, "float32")
    model = build_padded(model_config)
    model.eval() if is_test else model.train()
    layers, dropout = encoder_of(model).encoder.layers, programs.SeededDropout(seed)
    kernels = fuse_layers(layers, kernels, config, GraphInputs(seed, feeds["masked_positions"]))
    recomputes = config.use_recompute and not is_test
    cut = [_CutLayer(layer, dropout, place, recomputes) for place, layer in enumerate(layers, start=1)]
    plan = precision_of(config)
    casts = nullcontext()
    if plan is not None and plan.dtype != "float32" and not is_test:
        casts = paddle.amp.auto_cast(custom_black_list=plan.float32_ops, dtype=plan.dtype)
    with dropout.used(), casts:
        outputs = run_ernie(model, feeds)
        return _Forward(model, weights, sum_losses(outputs, feeds), kernels, cut if recomputes else [])


class _CutLayer:
    """The forward pass of an encoder layer, its dropout at its own place in the model.

    With recompute, input and output are cut off from the graph: the backward pass computes the layer again.
    """

    def __init__(self, layer: paddle.nn.Layer, dropout: programs.SeededDropout, place: int, is_cut: bool):
        self.layer, self.dropout, self.place, self.is_cut = layer, dropout, place, is_cut
        self.plain = own_forward(layer) or layer.forward
        self.again: Callable = layer.forward  # computes the output from `source`
        set_forward(layer, self)

    def __call__(self, x, *args, **kwargs):
        if not self.is_cut:
            return self._run(x, *args, **kwargs)
        self.x = x
        self.source, x = _cut_off(x)
        self.again = partial(self._run, x, *args, **kwargs)
        self.target, y = _cut_off(self.again())
        return y

    def _run(self, *args, **kwargs):
        self.dropout.place = DROPOUTS * self.place
        return self.plain(*args, **kwargs)


def _cut_off(value) -> tuple[Any, Any]:
    """Return ``value`` without what it was computed from, and an identity of that for the layers to read.

    Of a value that several operators read, Paddle would return the gradient by one of them alone.
    """
    source = value.detach()
    source.stop_gradient = False
    return source, paddle.assign(source)


def _add_backward(config: PretrainConfig, forward: _Forward) -> tuple[list, list]:
    """Return the parameters that have a gradient, and their gradients by the loss of this micro-batch.

    The caller's weights count for an average over all ranks and micro-batches of a step.
    """
    loss = forward.sums.weighted(forward.weights, config.has_order)
    loss = loss * (1.0 / (config.processes * config.accumulation_steps))
    plan = precision_of(config)
    if plan is not None and plan.skips:
        loss = loss * programs.scope_variable(LOSS_SCALE, [1], plan.init_loss_scaling)
    parameters = {parameter.name: parameter for parameter in forward.model.parameters()}
    gradients = dict(zip(parameters, _gradients_through(forward, loss, list(parameters.values()))))
    trained = [name for name, gradient in gradients.items() if gradient is not None]
    return [parameters[name] for name in trained], [gradients[name] for name in trained]


def _gradients_through(forward: _Forward, loss, parameters: list) -> list:
    """Return the gradients of ``loss``, with recompute layer by layer; None where there is no influence."""
    if not forward.layers:
        return programs.gradients_of([loss], parameters)
    last, first = forward.layers[-1], forward.layers[0]
    of_output, *gradients = programs.gradients_of([loss], [last.target, *parameters])
    found = dict(zip((parameter.name for parameter in parameters), gradients))
    for cut in reversed(forward.layers):
        own = cut.layer.parameters()
        with cut.dropout.used():
            of_output, *gradients = programs.gradients_of([cut.again()], [cut.source, *own], [of_output])
        found.update(zip((parameter.name for parameter in own), gradients))
    for parameter, gradient in zip(parameters, programs.gradients_of([first.x], parameters, [of_output])):
        if gradient is not None:  # an embedding, which the decoder may share
            of_head = found[parameter.name]
            found[parameter.name] = gradient if of_head is None else of_head + gradient
    return [found[parameter.name] for parameter in parameters]


def _accumulated(parameter):
    return programs.scope_variable(f"{parameter.name}.accumulated", parameter.shape)


def _add_update(
    config: PretrainConfig, parameters: list, gradients: list, decays: dict, rank: int, is_fused: bool
) -> tuple:
    """Add what follows the backward pass of a step: sums over ranks, loss scale, clipping, AdamW or LAMB.

    Returns the slots, the optimizer state of this process, the state that belongs to no parameter, the
    monitors, and the gradient norm, None if it is not clipped.
    """
    rate = paddle.static.data(RATE, [1], "float32")
    if config.processes > 1:
        gradients = programs.sums_over_ranks(gradients)
    shared: list[str] = []
    skip, plan = None, precision_of(config)
    if plan is not None and plan.skips:
        gradients, skip = _add_scaling(plan, gradients, shared)
    norm = factor = None
    if config.grad_clip > 0:
        squares = [programs.squared_norm(gradient) for gradient in gradients]
        norm = paddle.sqrt(paddle.add_n(squares)).reshape([1])
        limit = paddle.full([1], config.grad_clip)
        factor = limit / paddle.maximum(norm, limit)
        paddle.assign(norm, programs.scope_variable(GRADIENT_NORM, [1]))
    sizes = {parameter.name: int(np.prod(parameter.shape)) for parameter in parameters}
    owners = owners_of(sizes, config.sharding_degree)
    part = rank % config.sharding_degree
    own = [pair for pair in zip(parameters, gradients) if owners[pair[0].name] == part]
    slots = slots_of(parameters)
    starts = (0.0, 0.0, config.adam_beta1, config.adam_beta2)
    state: list[dict[str, Any]] = []
    for parameter, _ in own:
        places = zip(slots[parameter.name].items(), starts)
        state.append({name: programs.scope_variable(name, shape, start) for (name, shape), start in places})
    betas = config.adam_beta1, config.adam_beta2, config.adam_epsilon
    of_each = [decays.get(parameter.name, 0.0) for parameter, _ in own]
    if is_fused and config.optimizer == "adamw":
        vectors = [list(each) for each in (*zip(*own), *zip(*(of_one.values() for of_one in state)))]
        programs.run_custom(OPERATOR, *vectors, rate, factor, skip, *betas, of_each)
    else:
        for (parameter, gradient), of_one, decay in zip(own, state, of_each):
            gradient = gradient if factor is None else gradient * factor
            programs.move(config.optimizer, (parameter, gradient), of_one, rate, skip, betas, decay)
    if config.sharding_degree > 1:
        moves = rank < config.sharding_degree  # the first group of ranks that holds all parts gives them
        given = [p if moves and owners[p.name] == part else paddle.zeros_like(p) for p in parameters]
        for parameter, moved in zip(parameters, programs.sums_over_ranks(given)):
            paddle.assign(moved, parameter)
    owned = {name for parameter, _ in own for name in slots[parameter.name]}
    scales = plan is not None and plan.is_dynamic
    monitors = Monitors(
        None if norm is None else GRADIENT_NORM,
        None if skip is None else SKIPPED_UPDATES,
        LOSS_SCALE if scales else None,
    )
    return slots, owned, shared, monitors, norm


def _add_scaling(plan: AmpPlan, gradients: list, shared: list) -> tuple[list, Any]:
    """Return the gradients without their scale, and whether the step is skipped, which is counted."""
    scale = programs.scope_variable(LOSS_SCALE, [1], plan.init_loss_scaling)
    gradients, is_infinite = programs.unscale(gradients, scale)
    count = programs.scope_variable(SKIPPED_UPDATES, [1])
    paddle.assign(count + paddle.cast(is_infinite, "float32"), count)
    shared.append(SKIPPED_UPDATES)
    if plan.is_dynamic:
        good, bad = (programs.scope_variable(name, [1], dtype="int32") for name in (GOOD_STEPS, BAD_STEPS))
        settings = (
            plan.incr_every_n_steps, plan.decr_every_n_nan_or_inf, plan.incr_ratio, plan.decr_ratio,
        )  # fmt: skip
        programs.update_scale(gradients, is_infinite, scale, good, bad, settings)
        shared.extend((LOSS_SCALE, GOOD_STEPS, BAD_STEPS))
    return gradients, is_infinite


def _add_record(sums: LossSums, norms: list, num_rows: int) -> None:
    """Append a row to the records of the scope: the ``sums``, each [], and the gradient norm [1] or none."""
    width = len(sums.recorded) + len(norms)
    records = programs.scope_variable(RECORDS, [num_rows * width])
    row = paddle.stack([paddle.cast(each, "float32") for each in sums.recorded])
    paddle.assign(paddle.concat([records[width:], row, *norms]), records)


def _add_norm(sums: LossSums, norms: list, num_rows: int) -> None:
    """Write the gradient norm of the step into the last row."""
    if norms:
        records = programs.scope_variable(RECORDS, [num_rows * (len(sums.recorded) + 1)])
        paddle.assign(paddle.concat([records[:-1], *norms]), records)
