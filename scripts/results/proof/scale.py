"""How large the experiments are: the flags of run.py, so that a miniature of the whole is the same code."""

from dataclasses import dataclass
from typing import Optional, Tuple

from data_tools.base.errors import InputError
from data_tools.base.options import Options, option

FIRST_SEED = 1234
USUAL_RATE, USUAL_EPOCHS = 4e-4, 3  # of training on pairs, before the group rates has chosen


@dataclass(frozen=True)
class Scale(Options):
    """The shape of the model, the lengths of the trainings and the sizes of the data.

    The defaults take two cores about two days for all groups.
    """

    layers: int = option(4, help="encoder layers", group="model", unit="layers", at_least=1)
    hidden: int = option(256, help="width of the hidden states", group="model", at_least=1)
    heads: int = option(4, help="heads of each layer", group="model", at_least=1)
    length: int = option(64, help="tokens per sample and per pair", group="data", unit="tokens", at_least=8)
    batch: int = option(128, help="samples per step of pretraining", group="optimisation", at_least=1)
    steps: int = option(5000, help="of pretraining", group="optimisation", unit="steps", at_least=2)
    ablation_steps: int = option(
        600, help="of each row of the ablation", group="optimisation", unit="steps", at_least=1
    )
    further_steps: int = option(
        600, help="of going on with one domain", group="optimisation", unit="steps", at_least=1
    )
    rate: float = option(6e-4, help="highest learning rate of pretraining", group="optimisation", above=0)
    processes: int = option(2, help="of pretraining", group="devices", at_least=1)
    precision: str = option("bf16", help="of pretraining", group="precision", choices=("bf16", "fp32"))
    samples: int = option(
        4000, help="held-out samples that masked words are asked in", group="evaluation", at_least=1
    )
    domain: str = option("laws", help="the file of DATA/text, without .txt, to go on with", group="data")
    other: str = option("stories", help="another, of which is asked what a model has forgotten", group="data")
    small_rows: int = option(5000, help="of the smaller cut of LCQMC", group="data", unit="pairs", at_least=1)
    large_rows: int = option(20000, help="of the larger cut", group="data", unit="pairs", at_least=1)
    choose: int = option(
        2000, help="pairs that choose the best model, of none of the others", group="data", at_least=2
    )
    rest: int = option(40000, help="pairs without labels, for distillation", group="data", at_least=1)
    epochs: Optional[int] = option(
        None,
        help="of training on pairs; none: as the group rates has chosen, 3 where it was not run",
        group="optimisation",
        unit="epochs",
        at_least=1,
    )
    learning_rate: Optional[float] = option(
        None,
        help="of training on pairs; none: as the group rates has chosen, 4e-4 where it was not run",
        group="optimisation",
        above=0,
    )
    trials: int = option(
        8, help="trials of each search of the rate and the epochs", group="optimisation", at_least=1
    )
    seeds: int = option(3, help="runs of each row of pairs", group="optimisation", unit="runs", at_least=1)
    bootstrap: int = option(1000, help="resamples of the intervals", group="evaluation", at_least=1)

    def __post_init__(self):
        super().__post_init__()
        if self.batch % (2 * self.processes):
            raise InputError(
                f"--batch {self.batch} is no multiple of twice --processes {self.processes}, and some rows "
                "have half the batch; change one of them"
            )

    @property
    def pair_epochs(self) -> int:
        """Return the epochs of training on pairs."""
        return USUAL_EPOCHS if self.epochs is None else self.epochs

    @property
    def pair_rate(self) -> float:
        """Return the highest learning rate of training on pairs."""
        return USUAL_RATE if self.learning_rate is None else self.learning_rate

    @property
    def seed_list(self) -> Tuple[int, ...]:
        """Return the seeds of a row of pairs."""
        return tuple(range(FIRST_SEED, FIRST_SEED + self.seeds))
