"""The static programs of pretraining, with their inputs and state: start-up, training, and evaluation.

What a step is, is said while a program is built: gradients are summed over the processes by an operator, one
for all of them laid end to end, so that no two ranks meet in different sums; each process moves its own
parameters and receives the others; the layers of recompute are computed again from inputs that are cut off
from the graph. A step of several micro-batches has two programs: one adds gradients up in variables of the
scope, the other moves the weights. On a CPU an operator computes the encoder layers, where they are fused.
"""

from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Callable, ContextManager, NamedTuple, Optional, Sequence

import numpy as np
import paddle
from paddle import nn

from ernie_pair.core.errors import MachineError, message_of
from ernie_pair.core.files.keyed_cache import user_cache
from ernie_pair.kernels.choice import KernelChoice, KernelFlags, agree_on_path, choose_kernels, choose_plain
from ernie_pair.kernels.encoder_layer import unsupported_reason
from ernie_pair.kernels.library import open_kernels
from ernie_pair.kernels.operator import GraphInputs, OperatorError, add_encoder_layer, load_operator
from ernie_pair.models.networks.kernel_path import fuse_half_attention
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.pretraining.graph.model import (
    LossSums,
    build_padded,
    draw_static_init,
    encoder_of,
    run_ernie,
    sum_losses,
)
from ernie_pair.pretraining.graph.program_state import (
    LABELLED,
    LOSS_WEIGHTS,
    PASS_SEED,
    RECORDED_PASSES,
    ProgramState,
    RankSums,
    feeds_of,
)
from ernie_pair.pretraining.graph.step import (
    OPERATOR,
    Update,
    loss_of,
    precision_of,
    record_losses,
    record_norm,
    weigh_losses,
)
from ernie_pair.runtime.cpu import cpu_threads
from ernie_pair.runtime.paddle_patches import static_programs as programs
from ernie_pair.runtime.paddle_patches.layers import own_forward, set_forward
from ernie_pair.weights.weight_files import Arrays

RATE = "learning_rate"
PLAIN = KernelChoice("plain", reason="nothing else was requested")
DROPOUTS = 16  # of a layer, at most: each has a place of its own


class StaticGraph:
    """The programs that are being built: their variables are those of a scope, their sums operators."""

    def __init__(self, num_processes: int):
        self._several = num_processes > 1

    def variable(self, name: str, shape: Sequence[int], value: float = 0.0, dtype: str = "float32") -> Any:
        """See `Graph`."""
        return programs.scope_variable(name, shape, value, dtype)

    def sums_over_ranks(self, tensors: Sequence) -> list:
        """See `Graph`."""
        return programs.sums_over_ranks(tensors) if self._several else list(tensors)

    def move_fused(self, pairs: list, slots: list, numbers: list, decays: list[float]) -> None:
        """See `Graph`."""
        vectors = [list(each) for each in (*zip(*pairs), *zip(*(of_one.values() for of_one in slots)))]
        programs.run_custom(OPERATOR, *vectors, *numbers, decays)


@dataclass
class PretrainProgram(ProgramState):
    """The programs of a run, on the scope that they share, and the steps that they make."""

    startup: paddle.static.Program
    mover: Optional[paddle.static.Program]  # moves the weights; None: ``main`` does
    drawn: Arrays  # the weights at the start, under their structured names
    scope: paddle.static.Scope = field(default_factory=paddle.static.Scope)
    _feeds_rate: dict[str, np.ndarray] = field(default_factory=lambda: {RATE: np.zeros(1, np.float32)})
    _runners: dict[Any, programs.HeldProgram] = field(default_factory=dict)

    @cached_property
    def executor(self) -> paddle.static.Executor:
        """Return the executor. The device is opened here: a program can be built without its GPU."""
        gpu = int(paddle.device.get_device().partition(":")[2] or 0)
        return paddle.static.Executor(paddle.CPUPlace() if self.device == "cpu" else paddle.CUDAPlace(gpu))

    def start(self, seed: int) -> None:
        """Fill the optimizer state, and set the weights that were drawn, the same on every rank."""
        paddle.seed(seed)
        with paddle.static.scope_guard(self.scope):
            self.executor.run(self.startup)
        self.set({self.parameters[name].name: array for name, array in self.drawn.items()})
        self.drawn = {}

    def rate(self, rate: float) -> None:
        """Set the learning rate of the next step."""
        self._feeds_rate = {RATE: np.array([rate], np.float32)}

    def _run_pass(self, program: paddle.static.Program, feed: dict[str, Any]) -> None:
        moves = program is self.main and self.mover is None
        self._run(program, {**feed, **self._feeds_rate} if moves else feed)

    def _move(self) -> None:
        if self.mover is not None:
            self._run(self.mover, self._feeds_rate)

    def _run(self, program: paddle.static.Program, feed: dict[str, Any]) -> None:
        if program not in self._runners:
            self._runners[program] = programs.HeldProgram(self.executor, program, self.scope)
        self._runners[program].run(feed)

    def _tensor(self, name: str) -> Any:
        return self.scope.find_var(name).get_tensor()


class _Forward(NamedTuple):
    model: paddle.nn.Layer
    weights: paddle.Tensor  # of the two losses, float32 [2]
    sums: LossSums
    kernels: KernelChoice
    layers: list["_RecomputedLayer"]  # of recompute


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
    drawn = draw_static_init(model_config, config.seed)
    paddle.enable_static()
    graph = StaticGraph(config.processes)
    main, startup, test = (paddle.static.Program() for _ in range(3))
    mover = paddle.static.Program() if config.accumulation_steps > 1 else None
    num_rows = max(RECORDED_PASSES, config.accumulation_steps)
    with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
        forward = _add_forward(config, graph, model_config, kernels, is_test=False)
        parameters, gradients = _add_backward(config, graph, forward)
        if mover is None:
            update, norms = _add_update(config, graph, forward, parameters, gradients, rank)
            record_losses(config, graph, forward.sums, num_rows, norms)
        else:
            for parameter, gradient in zip(parameters, gradients):
                total = _accumulator(graph, parameter)
                paddle.assign(total + gradient, total)
            record_losses(config, graph, forward.sums, num_rows)
    if mover is not None:
        with paddle.static.program_guard(mover, startup), paddle.utils.unique_name.guard():
            parameters = [programs.parameter_here(parameter) for parameter in parameters]
            gradients = [_accumulator(graph, parameter) for parameter in parameters]
            update, norms = _add_update(config, graph, forward, parameters, gradients, rank)
            for total in gradients:
                paddle.assign(paddle.zeros_like(total), total)
            record_norm(graph, norms, num_rows * (len(forward.sums.recorded) + 1))
    with paddle.static.program_guard(test, paddle.static.Program()), paddle.utils.unique_name.guard():
        sums = _add_forward(config, graph, model_config, kernels, is_test=True).sums
        record_losses(config, graph, sums, num_rows)
    return PretrainProgram(
        parameters=forward.model.state_dict(),
        update=update,
        num_recorded=len(forward.sums.recorded) + (config.grad_clip > 0),
        device=config.device,
        recorded_passes=num_rows,
        kernels=forward.kernels,
        merged=config.accumulation_steps,
        main=main,
        startup=startup,
        test=test,
        mover=mover,
        drawn=drawn,
    )


def _add_update(config: PretrainConfig, graph: StaticGraph, forward: _Forward, parameters, gradients, rank):
    update = Update(config, graph, forward.model, parameters, rank, forward.kernels.is_fused)
    return update, update.apply(gradients, paddle.static.data(RATE, [1], "float32"))


def _accumulator(graph: StaticGraph, parameter):
    return graph.variable(f"{parameter.name}.accumulated", parameter.shape)


def _add_forward(
    config: PretrainConfig, graph: StaticGraph, model_config, kernels: KernelChoice, is_test: bool
) -> _Forward:
    fed = feeds_of(model_config)
    feeds = {name: paddle.static.data(name, shape, kind) for name, (shape, kind) in fed.items()}
    seed = paddle.static.data(PASS_SEED, [1], "int32")
    weights = paddle.static.data(LOSS_WEIGHTS, [2], "float32") if not is_test else None
    if config.processes > 1 and not is_test:
        weights = weigh_losses(graph, weights, paddle.static.data(LABELLED, [2], "float64"))
    model = build_padded(model_config)
    model.eval() if is_test else model.train()
    layers, dropout = encoder_of(model).encoder.layers, programs.SeededDropout(seed)
    kernels = fuse_layers(layers, kernels, config, GraphInputs(seed, feeds["masked_positions"]))
    recomputes = config.use_recompute and not is_test
    is_half = config.computes_in_half and not is_test
    if config.device == "gpu" and is_half and not model_config.attention_probs_dropout_prob:
        kernels = fuse_half_attention(layers, kernels)  # whose own dropout no seed of a pass reaches
    cut = [_RecomputedLayer(layer, dropout, place, recomputes) for place, layer in enumerate(layers, start=1)]
    with dropout.used(), _casting(config) if is_half else nullcontext():
        outputs = run_ernie(model, feeds)
        return _Forward(model, weights, sum_losses(outputs, feeds), kernels, cut if recomputes else [])


def _casting(config: PretrainConfig) -> ContextManager:
    """Return a context in which products are built in the half precision of ``config``, if it has one."""
    plan = precision_of(config)
    if plan is None or not config.computes_in_half:
        return nullcontext()
    return paddle.amp.auto_cast(custom_black_list=plan.float32_ops, dtype=plan.dtype)


class _RecomputedLayer:
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
        self.source, x = _detach_input(x)
        self.again = partial(self._run, x, *args, **kwargs)
        self.target, y = _detach_input(self.again())
        return y

    def _run(self, *args, **kwargs):
        self.dropout.place = DROPOUTS * self.place
        return self.plain(*args, **kwargs)


def _detach_input(value) -> tuple[Any, Any]:
    """Return ``value`` without what it was computed from, and an identity of that for the layers to read.

    Of a value that several operators read, Paddle would return the gradient by one of them alone.
    """
    source = value.detach()
    source.stop_gradient = False
    return source, paddle.assign(source)


def _add_backward(config: PretrainConfig, graph: StaticGraph, forward: _Forward) -> tuple[list, list]:
    """Return the parameters that have a gradient, and their gradients by the loss of this micro-batch."""
    loss = loss_of(config, graph, forward.sums, forward.weights)
    parameters = {parameter.name: parameter for parameter in forward.model.parameters()}
    gradients = dict(zip(parameters, _gradients_through(config, forward, loss, list(parameters.values()))))
    trained = [name for name, gradient in gradients.items() if gradient is not None]
    return [parameters[name] for name in trained], [gradients[name] for name in trained]


def _gradients_through(config: PretrainConfig, forward: _Forward, loss, parameters: list) -> list:
    """Return the gradients of ``loss``, with recompute layer by layer; None where there is no influence."""
    if not forward.layers:
        return programs.gradients_of([loss], parameters)
    last, first = forward.layers[-1], forward.layers[0]
    of_output, *gradients = programs.gradients_of([loss], [last.target, *parameters])
    found = dict(zip((parameter.name for parameter in parameters), gradients))
    for cut in reversed(forward.layers):
        own = cut.layer.parameters()
        with cut.dropout.used(), _casting(config):
            of_output, *gradients = programs.gradients_of([cut.again()], [cut.source, *own], [of_output])
        found.update(zip((parameter.name for parameter in own), gradients))
    for parameter, gradient in zip(parameters, programs.gradients_of([first.x], parameters, [of_output])):
        if gradient is not None:  # an embedding, which the decoder may share
            of_head = found[parameter.name]
            found[parameter.name] = gradient if of_head is None else of_head + gradient
    return [found[parameter.name] for parameter in parameters]


def choose_path(flags: KernelFlags, device: str, num_processes: int) -> KernelChoice:
    """Return the path of a run on ``device``, the same in all its processes; call it after ``start_static``.

    The operator is compiled at first use. Raises InputError if the flags require what is unavailable.
    """

    def choose() -> KernelChoice:
        choice = choose_kernels(flags, device)
        if not choice.is_fused:
            return choice
        try:
            load_operator(open_kernels(), cpu_threads(), user_cache())
        except (OperatorError, MachineError) as error:
            reason = f"the operator for the static graph is not available: {message_of(error)}"
            return choose_plain(flags, reason, device)
        return choice.with_note("embeddings by Paddle")

    def all_reduce(values: np.ndarray) -> np.ndarray:
        return RankSums(num_processes, paddle.static.Executor(paddle.CPUPlace()))(values)

    return agree_on_path(choose, flags, device, num_processes, all_reduce)


def fuse_layers(
    layers: Sequence[nn.Layer], choice: KernelChoice, flags: KernelFlags, inputs: GraphInputs
) -> KernelChoice:
    """Let the operator compute ``layers`` if ``choice`` is fused and it supports them.

    Returns the path that the model takes. Raises InputError if the flags require the fused one but it cannot.
    """
    unfit = unsupported_reason(layers) if choice.is_fused else ""
    if unfit:
        return choose_plain(flags, unfit, "cpu")
    if choice.is_fused:
        for number, layer in enumerate(layers):
            is_last = number == len(layers) - 1
            fused = partial(add_encoder_layer, layer, number, choice.precision, is_last, inputs)
            set_forward(layer, partial(_run_fused, fused))
    return choice


def _run_fused(fused, src, src_mask=None, cache=None, output_attentions=False):
    assert cache is None and not output_attentions  # pretraining uses neither
    return fused(src, src_mask)
