"""The parts of a training run, for the user's own training loop."""

import math
from typing import Callable, Dict, Iterator, List, NamedTuple, Tuple

import paddle

from data_tools.base.errors import InputError
from ernie_pair.engine.lr_schedule import learning_rate
from ernie_pair.inference.token_rows import Batch, EncodedPairs
from ernie_pair.pair.config.pair_config import PairConfig
from ernie_pair.pair.model.classifier import PairClassifier
from ernie_pair.pair.model.kernel_path import choose_path, seed_dropout
from ernie_pair.pair.step.freezing import freeze
from ernie_pair.pair.step.recompute import recompute_layers
from ernie_pair.pair.train.datasets import PairData
from ernie_pair.pair.train.pair_job import open_optimizer, rates_of
from ernie_pair.processes.world import World, seed_of

# What PairTrainer does and a user's own loop does not: {flag: the value that asks for nothing}.
OF_THE_STEP: Dict[str, object] = {
    **{"use_amp": False, "sharding": "none", "class_weights": "", "rdrop_alpha": 0.0, "fgm_epsilon": 0.0},
    "symmetric": "none",
    **{"on_nan": "stop", "early_stopping_patience": 0, "report_to": ""},
}


class TrainingParts(NamedTuple):
    """The objects of a run on one process. A loop that uses them as `PairTrainer` does has its weights.

    ``steps`` yields (number, micro-batches of numpy arrays), from step 1 to the last. ``optimizer`` is AdamW
    with the decay, clipping and layer rates of the configuration; its rate is set by hand, to what
    ``learning_rate`` returns for the number of a step. ``seed`` is called with (step, micro-batch) before a
    forward pass: dropout then draws what it draws in `PairTrainer`. ``dev`` are the encoded dev pairs.
    """

    model: PairClassifier
    optimizer: paddle.optimizer.AdamW
    steps: Iterator[Tuple[int, List[Batch]]]
    learning_rate: Callable[[int], float]
    seed: Callable[[int, int], None]
    dev: EncodedPairs


def open_parts(config: PairConfig, model: PairClassifier, data: PairData) -> TrainingParts:
    """Return the parts of the run that ``config`` describes; ``model`` is frozen as it says.

    Raises InputError for a flag that is of the step of `PairTrainer`, and would not be honoured.
    """
    for name, nothing in OF_THE_STEP.items():
        if getattr(config, name) != nothing:
            raise InputError(
                f"--{name} {getattr(config, name)} is done by PairTrainer.train, and not by a loop of your "
                "own; leave it out"
            )
    if config.to_static is True:
        raise InputError(
            "--to_static true is for PairTrainer.train, and not for a loop of your own; leave it out"
        )
    freeze(model, config)
    choose_path(model, config, config.device)
    recompute_layers(model, config.use_recompute)
    total = total_steps(config, data.num_rows, World())
    rates = rates_of(config, total)

    def seed(step: int, micro_batch: int) -> None:
        seed_dropout(model, seed_of(config.seed, 0, step, micro_batch))

    return TrainingParts(
        model,
        open_optimizer(config, model),
        zip(range(1, total + 1), data.updates(0)),
        lambda step: learning_rate(step, **rates),
        seed,
        data.dev,
    )


def total_steps(config: PairConfig, num_rows: int, world: World) -> int:
    """Return the number of optimizer steps of the whole run."""
    return config.max_steps or math.ceil(config.epochs * num_rows / config.pairs_per_step(world.size))
