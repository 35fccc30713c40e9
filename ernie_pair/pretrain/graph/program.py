"""Build the programs of pretraining: start-up, training, evaluation, and the sums over all ranks."""

import contextlib
import io
from typing import Callable, Dict, NamedTuple, Optional

import paddle
import paddle.distributed.fleet as fleet

from data_tools.files.errors import InputError
from ernie_pair.kernels.choice import KernelChoice
from ernie_pair.kernels.operator import GraphInputs
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
from ernie_pair.pretrain.graph.built_program import PretrainProgram
from ernie_pair.pretrain.graph.fused_layers import PLAIN, fuse_layers
from ernie_pair.pretrain.graph.fusion import (
    FLASH,
    NOTHING_FUSED,
    FusedOps,
    fuse_attention,
    fuse_collectives,
    fuse_softmax,
)
from ernie_pair.pretrain.graph.gloo import drop_stream_syncs, needs_gloo
from ernie_pair.pretrain.graph.model import LossSums, Outputs, build_padded, encoder_of, run_ernie, sum_losses
from ernie_pair.pretrain.graph.optimizers import (
    build_optimizer,
    fuse_updates,
    shard_optimizer,
    state_of,
    updates_of,
)
from ernie_pair.pretrain.graph.step_monitors import (
    PASS_SEED,
    RECORDED_PASSES,
    add_monitors,
    add_records,
    divide_by_labelled,
    replace_seed_ops,
)
from ernie_pair.pretrain.graph.strategy import distributed_strategy, fleet_decorates, precision_of
from ernie_pair.runtime.paddle_patches.static_programs import cut_normals, without_nccl

FEEDS = {
    "input_ids": ([None, None], "int64"),
    "token_type_ids": ([None, None], "int64"),
    "masked_positions": ([None], "int64"),
    "masked_lm_labels": ([None], "int64"),
    "next_sentence_labels": ([None], "int64"),
}
NGRAM_FEEDS = {"ngram_labels": ([None], "int64")}  # also fed if there is an n-gram lexicon
# float32 [2]: the weights of the summed lm and sop losses; with several processes, before they are divided by
# the number of labels of all processes.
LOSS_WEIGHTS, DIVIDED_WEIGHTS = "loss_weights", "loss_weights.divided"


class _Forward(NamedTuple):
    """What the forward pass of a program is made of."""

    model: paddle.nn.Layer
    inputs: GraphInputs
    weights: paddle.static.Variable  # of the two losses, float32 [2]
    outputs: Outputs
    sums: LossSums
    kernels: KernelChoice


def build_program(
    config: PretrainConfig,
    model_config,
    rank: int = 0,
    kernels: KernelChoice = PLAIN,
    fused: FusedOps = NOTHING_FUSED,
) -> PretrainProgram:
    """Build everything for one rank, after ``start_fleet``. Nothing is run yet.

    ``kernels``: the path of the run, by `choose_path`; a model that it does not support takes the plain one.
    ``fused``: the other fused ops, by `choose_fused`.

    The loss is sum(masked) * w[0] + sum(sop) * w[1] with the fed ``loss_weights`` w; masked means tokens and
    n-grams alike. fleet averages over ranks and micro-batches, so the caller chooses w to make it the mean
    over the whole global batch.
    """
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
        forward = _add_forward(config, model_config, kernels)
        test = main.clone(for_test=True)
        if fused.attention:
            _fuse_attention(fused.attention, main, forward)
        rate = _minimize(config, forward.model, forward.outputs, _loss_of(config, forward), fused)
    cut_normals(startup)
    replace_seed_ops(main, forward.inputs.seed)
    block, updates = updates_of(main)
    slots = _slots_of(main, updates)
    monitors = add_monitors(main, startup, block, updates[0])
    if config.sharding_degree > 1:
        shard_optimizer(main, startup, rank % config.sharding_degree, config.sharding_degree)
    if fused.collectives:
        fuse_collectives(main, block, rank % config.sharding_degree)
    if forward.kernels.is_fused:
        fuse_updates(main)
    recorded_passes = max(RECORDED_PASSES, config.accumulation_steps)
    add_records(main, forward.sums.recorded, monitors.gradient_norm, recorded_passes, startup)
    if config.processes > 1:
        divide_by_labelled(main, LOSS_WEIGHTS, DIVIDED_WEIGHTS)
    if needs_gloo(config.device, config.processes):
        drop_stream_syncs(main, startup)
    return PretrainProgram(
        main,
        startup,
        test,
        forward.model.state_dict(),
        slots,
        forward.sums,
        monitors,
        rate,
        config.device,
        recorded_passes,
        forward.kernels,
        narrow=_narrowing(config, test),
        file_rows=model_config.vocab_size if config.optimizer == "lamb" else None,  # they enter its norms
    )


def feeds_of(model_config) -> Dict[str, tuple]:
    """Return {name: (shape, dtype)} of what a batch feeds to the model of ``model_config``."""
    return {**FEEDS, **NGRAM_FEEDS} if model_config.num_ngrams else FEEDS


def _add_forward(config: PretrainConfig, model_config, kernels: KernelChoice) -> _Forward:
    """Add the inputs, the model, and the sums of its losses."""
    fed = feeds_of(model_config)
    feeds = {name: paddle.static.data(name, shape, kind) for name, (shape, kind) in fed.items()}
    weights = paddle.static.data(LOSS_WEIGHTS, [2], "float32")
    if config.processes > 1:
        weights = paddle.static.data(DIVIDED_WEIGHTS, [2], "float32")  # computed by ops that are added last
    inputs = GraphInputs(paddle.static.data(PASS_SEED, [1], "int32"), feeds["masked_positions"])
    model = build_padded(model_config)
    kernels = fuse_layers(encoder_of(model).encoder.layers, kernels, config, inputs)
    outputs = run_ernie(model, feeds)
    return _Forward(model, inputs, weights, outputs, sum_losses(outputs, feeds), kernels)


def _loss_of(config: PretrainConfig, forward: _Forward):
    """Add the loss, float32 [1], that the step minimises."""
    loss = forward.sums.masked_loss * forward.weights[0]
    if config.has_order:  # without it the head and the pooler have no gradient, and stay as they are
        loss = loss + forward.sums.sop_loss * forward.weights[1]
    return loss


def _slots_of(main: paddle.static.Program, updates) -> Dict[str, Dict[str, tuple]]:
    """Return {parameter: {variable of its optimizer state: shape}} of the ops that update the parameters."""
    return {
        update.input("Param")[0]: {name: main.global_block().var(name).shape for name in state_of(update)}
        for update in updates
    }


def _fuse_attention(kind: str, main: paddle.static.Program, forward: _Forward) -> None:
    num_layers = len(forward.outputs.layers)
    found = fuse_attention(main, forward.inputs.seed) if kind == FLASH else fuse_softmax(main)
    if found != num_layers:
        raise InputError(
            f"--fused_ops attention recognizes {found} of the {num_layers} attentions of this model, in this "
            "Paddle; leave it out, or pass --fused_ops none"
        )


def _minimize(
    config: PretrainConfig, model, outputs: Outputs, loss, fused: FusedOps
) -> Callable[[float], None]:
    """Add the backward pass and the optimizer; return the function that sets the learning rate."""
    schedule = _GivenRate()
    optimizer = build_optimizer(config, model, schedule)
    strategy = distributed_strategy(config, outputs.layers, fused)
    decorates = fleet_decorates(precision_of(config), for_gpu=config.device == "gpu")
    by_gloo = needs_gloo(config.device, config.processes)
    meets = without_nccl() if by_gloo else contextlib.nullcontext()
    quiet = contextlib.redirect_stdout(io.StringIO())  # fleet prints which optimizers it uses
    with decorates, meets, quiet:
        fleet.distributed_optimizer(optimizer, strategy).minimize(loss)
    return schedule.set


def _narrowing(config: PretrainConfig, test: paddle.static.Program) -> Optional[Callable]:
    """Return the function that casts the weights in the scope, and the evaluation program, to half precision.

    It is fleet's; None below O2.
    """
    if not config.narrows_weights:
        return None
    optimizer = fleet.fleet  # the one that ``minimize`` went through
    return lambda place, scope: optimizer.amp_init(place, scope=scope, test_program=test)


class _GivenRate(paddle.optimizer.lr.LRScheduler):
    """A learning rate that is set from outside: elsewhere it is a pure function of the step."""

    def __init__(self):
        self.given = 0.0
        super().__init__(learning_rate=0.0)

    def set(self, rate: float) -> None:
        self.given = rate
        self.step()

    def get_lr(self) -> float:
        return self.given
