"""The flags of ernie-pair search-params."""

from dataclasses import dataclass, fields
from typing import Any, Dict, Literal

from data_tools.base.errors import InputError
from data_tools.base.options import option, refuse_empty
from ernie_pair.pair.config.pair_config import TrainConfig


@dataclass(frozen=True)
class SearchParamsConfig(TrainConfig):
    """Train with one set of flags after another, and find the best set. Start it again to resume."""

    EXAMPLE = (
        "--model_name_or_path ernie-gram-zh --train_file lcqmc --dev_file lcqmc --output_dir searched "
        "--search 'learning_rate=1e-5..1e-4:log batch_size=16,32'"
    )

    output_dir: str = option(
        help="a folder per trial, the study, best.yaml, best and the report go here", group="data"
    )
    search: str = option(
        "",
        help="flags to search: 'learning_rate=1e-5..1e-4:log batch_size=16,32 dropout=0..0.3:0.1' (:step)",
        group="optimisation",
    )
    space: str = option(
        "",
        help="a YAML file of flags to search: learning_rate: {low: 1e-5, high: 1e-4, log: true}, batch_size: "
        "[16, 32]",
        group="optimisation",
    )
    trials: int = option(
        20,
        help="total number of trials, over all starts of the command",
        group="optimisation",
        unit="trials",
        at_least=1,
    )
    evaluations: int = option(
        10,
        help="evaluations per trial, evenly spaced over its steps, instead of --eval_freq; a trial may be "
        "pruned at each of them",
        group="evaluation",
        unit="evaluations",
        at_least=1,
    )
    pruner: Literal["median", "asha", "none"] = option(
        "median",
        help="stop a trial that is worse than the median of earlier ones (median), or not in the best third "
        "(asha)",
        group="optimisation",
    )
    startup_trials: int = option(
        5,
        help="first trials, drawn at random; median never prunes them and compares later trials with them",
        group="optimisation",
        unit="trials",
        at_least=1,
    )
    prune_after: int = option(
        1,
        help="evaluations before a trial may be pruned",
        group="optimisation",
        unit="evaluations",
        at_least=0,
    )
    overwrite: bool = option(
        False, help="replace files that this command did not make, or that have changed since", group="data"
    )

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_dir")
        if self.fresh_start:
            raise InputError(
                "--fresh_start true is for a single run; give another --output_dir to start again"
            )
        if self.dry_run:
            raise InputError("--dry_run true is for a single run; try it with ernie-pair train")
        if self.evaluation_strategy in ("epoch", "no"):
            raise InputError(
                f"--evaluation_strategy {self.evaluation_strategy}: trials are compared at --evaluations of "
                "each; leave it out"
            )

    def config_of(self, changes: Dict[str, Any]) -> TrainConfig:
        """Return these flags with ``changes``, for one run. Raises InputError for invalid values."""
        own = {item.name: getattr(self, item.name) for item in fields(TrainConfig)}
        idle = self.idle_in({**own, **changes})  # of a trial without AMP
        return TrainConfig(**{**{name: own[name] for name in own if name not in idle}, **changes})
