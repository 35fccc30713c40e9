"""What a user puts in the place of parts of a run, in Python: arguments of PairTrainer, and overrides.

The names are those of the Trainer of transformers and PaddleNLP.
"""

import math
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from types import CodeType
from typing import Any, Callable, Iterator, Optional, Sequence, Union

import numpy as np
from paddle.optimizer import LBFGS, Optimizer
from paddle.optimizer.lr import LRScheduler, ReduceOnPlateau

from ernie_pair.core.cli.options import refuse_set
from ernie_pair.core.errors import InputError
from ernie_pair.inference.scores import Prediction
from ernie_pair.pairs.config.pair_config import usual_of
from ernie_pair.pairs.data.pair_file import BadRow
from ernie_pair.pairs.targets.metrics import ComputeMetrics, read_own_metrics
from ernie_pair.pairs.train.loss import PairLoss
from ernie_pair.pairs.train.parts import (
    OF_THE_LOSS,
    ComputeLoss,
    Inputs,
    UserLoss,
    loss_of_function,
    loss_of_override,
)
from ernie_pair.runtime.paddle_patches.optimizer_state import parameters_of, scheduler_in
from ernie_pair.runtime.processes.world import gather_results
from ernie_pair.training.process_group import join_process_group

TIMES = ("runtime", "samples_per_second")  # among the metrics of an evaluation that was asked for


@dataclass(frozen=True, eq=False)
class Predictions(Prediction):
    """The prediction of a trainer; `predictions, label_ids, metrics = found` takes it apart.

    ``predictions`` are the logits, as everywhere in Transformers and PaddleNLP. Without labels, ``label_ids``
    is None and ``metrics`` are the times alone. With on_bad_row="skip" a row that is no pair has the class
    and the label -1, NaN for numbers and the name ''.
    """

    predictions: np.ndarray  # the logits, float32 [N, C]
    label_ids: Optional[np.ndarray]  # classes int64 [N], or scores float64 [N]
    metrics: dict[str, float]  # of the likeliest classes, or of the scores; runtime, samples_per_second

    def __iter__(self) -> Iterator[Any]:
        """Iterate over (predictions, label_ids, metrics)."""
        return iter((self.predictions, self.label_ids, self.metrics))

    def __getitem__(self, index: Union[int, slice]) -> Any:
        """Return one of (predictions, label_ids, metrics), or several."""
        return tuple(self)[index]

    def with_bad_rows(self, bad: Sequence[BadRow]) -> "Predictions":
        """Return these predictions with an empty one in place of each row that was left out."""
        if not bad:
            return self
        count = len(self.predictions) + len(bad)
        places = np.setdiff1d(np.arange(count), [row.place for row in bad])

        def spread(values: Optional[np.ndarray], empty: object) -> Any:
            """Return ``values`` [N, ...] in their places among all rows, the others ``empty``."""
            if values is None:
                return None
            shape: tuple[int, ...] = (count, *values.shape[1:])
            all_rows = np.full(shape, empty, dtype=values.dtype)
            all_rows[places] = values
            return all_rows

        numbers = {name: spread(getattr(self, name), np.nan) for name in ("predictions", "scores")}
        if self.labels is None:
            return replace(self, **numbers, label_ids=spread(self.label_ids, np.nan))
        names = spread(np.array(self.labels, dtype=object), "").tolist()
        classes = {name: spread(getattr(self, name), -1) for name in ("classes", "label_ids")}
        probabilities = spread(self.probabilities, np.nan)
        return replace(self, **numbers, **classes, labels=names, probabilities=probabilities)


OF_THE_OPTIMIZER = ("weight_decay", "layer_decay", "grad_clip")
OF_THE_SCHEDULE = ("learning_rate", "lr_scheduler_type", "warmup_rate", "warmup_steps")
CALLED = ("compute_loss", "create_optimizer", "create_scheduler", "evaluate", "get_train_dataloader", "log")


def overridden(trainer: object, base: type) -> list[str]:
    """Return the methods of CALLED that the class of ``trainer`` defines itself.

    Raises InputError for a public method that is named like those that are called, and that nothing calls,
    its class neither: it overrides what other trainers have, or is misspelt.
    """
    kinds = [kind for kind in type(trainer).__mro__ if issubclass(kind, base) and kind is not base]
    own = {name: value for kind in kinds for name, value in vars(kind).items() if callable(value)}
    codes = [value.__code__ for value in own.values() if hasattr(value, "__code__")]
    used = {name for code in codes for name in _names_in(code)}
    named_like = {stem for name in (*CALLED, "predict", "train") for stem in _stems(name)}
    for name in sorted(own.keys() - used - {*CALLED, *dir(base)}):
        if not name.startswith("_") and named_like & _stems(name):
            (nearest,) = get_close_matches(name, CALLED, n=1, cutoff=0)
            raise InputError(
                f"PairTrainer: nothing calls {type(trainer).__name__}.{name}; what is called of a subclass "
                f"is {', '.join(CALLED)}; use {nearest}, another of these or a callback, or begin the "
                "name of a method of your own with _"
            )
    return [name for name in CALLED if name in own]


def _names_in(code: CodeType) -> set[str]:
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return {*code.co_names, *(name for one in inner for name in _names_in(one))}


def _stems(name: str) -> set[str]:
    return {word[:5] for word in name.split("_") if len(word) > 4}


@dataclass
class OwnParts:
    """The parts of a run that are not as the flags say; None: they are.

    ``make_optimizer`` and ``make_scheduler`` are called once the model is frozen and has its kernels;
    ``evaluate`` replaces the evaluation on the dev pairs, ``log`` is called with each line of the log.
    """

    compute_metrics: Optional[ComputeMetrics] = None
    loss: Optional[PairLoss] = None
    make_optimizer: Optional[Callable[[], Optimizer]] = None
    make_scheduler: Optional[Callable[[int, Any], LRScheduler]] = None  # takes the steps, and an optimizer
    evaluate: Optional[Callable[[], dict[str, float]]] = None
    log: Optional[Callable[[dict[str, float]], None]] = None


def own_parts_of(trainer) -> OwnParts:
    """Return the parts of the next run that a PairTrainer replaces."""
    names = trainer.overridden
    has_optimizer = trainer.optimizer is not None or "create_optimizer" in names
    has_scheduler = trainer.lr_scheduler is not None or "create_scheduler" in names
    return OwnParts(
        compute_metrics=trainer.compute_metrics,
        loss=_own_loss_of(trainer),
        make_optimizer=partial(_make_optimizer, trainer, has_scheduler) if has_optimizer else None,
        make_scheduler=partial(_make_scheduler, trainer) if has_scheduler else None,
        evaluate=partial(_evaluate, trainer) if "evaluate" in names else None,
        log=trainer.log if "log" in names else None,
    )


def _make_optimizer(trainer, has_scheduler: bool) -> Optimizer:
    optimizer = trainer.optimizer or trainer.create_optimizer() or trainer.optimizer
    # LBFGS computes the loss of a step many times; the rate of LookAhead is that of the one inside.
    is_other = isinstance(optimizer, LBFGS) or hasattr(optimizer, "inner_optimizer")
    if not isinstance(optimizer, Optimizer) or is_other:
        raise InputError(
            f"create_optimizer of {type(trainer).__name__} returned {type(optimizer).__name__}; return "
            "an optimizer of Paddle's other than LBFGS and LookAhead"
        )
    known = {id(parameter) for parameter in trainer.model.parameters()}
    if any(id(parameter) not in known for parameter in parameters_of(optimizer)):
        raise InputError(
            "the optimizer moves parameters that this model does not have; make it of those of "
            "trainer.model in create_optimizer, or of a model that is given to PairTrainer"
        )
    own, rate = optimizer.get_lr(), trainer.config.learning_rate
    is_idle = scheduler_in(optimizer) is None and not has_scheduler and own != 0
    if is_idle and not math.isclose(own, rate, rel_tol=1e-6):
        raise InputError(
            f"the optimizer has the learning rate {own:g}, and its steps have that of --learning_rate "
            f"{rate:g}, as --lr_scheduler_type says; pass learning_rate={own:g} in the config, or give the "
            "optimizer a scheduler"
        )
    return optimizer


def _make_scheduler(trainer, steps: int, optimizer: Optional[Optimizer]) -> LRScheduler:
    scheduler = trainer.lr_scheduler or trainer.create_scheduler(steps, optimizer) or trainer.lr_scheduler
    if not isinstance(scheduler, LRScheduler) or isinstance(scheduler, ReduceOnPlateau):
        raise InputError(
            f"{type(scheduler).__name__} is no schedule over steps; give a scheduler of Paddle's other "
            "than ReduceOnPlateau"
        )
    inside = None if optimizer is None else scheduler_in(optimizer)
    if inside is not None and inside is not scheduler:
        raise InputError(
            f"the optimizer has a {type(inside).__name__}, and there is a {type(scheduler).__name__} beside "
            "it; make the optimizer with a number, or leave the other scheduler out"
        )
    return scheduler


def _evaluate(trainer) -> dict[str, float]:
    def own() -> dict[str, float]:
        where = f"evaluate of {type(trainer).__name__}"
        found = read_own_metrics(trainer.evaluate(), trainer.config.best_metric, where)
        return {name: value for name, value in found.items() if name not in TIMES}

    return gather_results(join_process_group(trainer.world).all_reduce, trainer.world, own)[0]


def _own_loss_of(trainer) -> Optional[UserLoss]:
    if "compute_loss" in trainer.overridden:
        name = f"{type(trainer).__name__}.compute_loss"
        compute = _with_flags(trainer, loss_of_override(trainer.compute_loss), name)
    elif trainer.compute_loss_func is not None:
        name, compute = "compute_loss_func", loss_of_function(trainer.compute_loss_func)
    else:
        return None
    return UserLoss(compute, trainer.model, name)


def _with_flags(trainer, compute: ComputeLoss, name: str) -> ComputeLoss:
    """Return ``compute``, which raises InputError if it leaves out flags of the loss that are set."""
    flags = [flag for flag, nothing in OF_THE_LOSS.items() if getattr(trainer.config, flag) != nothing]

    def compute_with_flags(model: Any, inputs: Inputs) -> tuple[Any, Any]:
        trainer.has_used_flags = False
        found = compute(model, inputs)
        if not trainer.has_used_flags:
            raise InputError(
                f"--{flags[0]} {getattr(trainer.config, flags[0])} is of the loss of the flags, which {name} "
                "does not call; call super().compute_loss, or leave it out"
            )
        return found

    return compute_with_flags if flags else compute


def refuse_ignored_flags(trainer) -> None:
    """Raise InputError for a flag that what replaces its part would ignore."""
    ignored: dict[str, object] = {}
    if trainer.compute_loss_func is not None:
        ignored.update(OF_THE_LOSS)
    if trainer.optimizer is not None or "create_optimizer" in trainer.overridden:
        ignored.update(usual_of(["sharding", "dry_run"]))
    if trainer.optimizer is not None:
        ignored.update(usual_of(OF_THE_OPTIMIZER))
    if trainer.lr_scheduler is not None or (trainer.optimizer and scheduler_in(trainer.optimizer)):
        ignored.update(usual_of(OF_THE_SCHEDULE))
    if "get_train_dataloader" in trainer.overridden:
        ignored.update(usual_of(["streaming"]))
    refuse_set(trainer.config, ignored, " is of a part that PairTrainer is given here; leave it out")
