"""How large the experiments are: the flags of run.py, so that a small test runs the same code."""

from dataclasses import dataclass
from typing import Tuple

from data_tools.files.errors import InputError
from data_tools.options.options import Options, option

FIRST_SEED = 1234


@dataclass(frozen=True)
class Scale(Options):
    """The shape of the model, the lengths of the trainings and the sizes of the data.

    The defaults take two cores of AVX2 about half a day for all groups.
    """

    layers: int = option(4, help="encoder layers", group="model", unit="layers", at_least=1)
    hidden: int = option(192, help="width of the hidden states", group="model", at_least=1)
    heads: int = option(3, help="heads of each layer", group="model", at_least=1)
    length: int = option(64, help="tokens per sample and per pair", group="data", unit="tokens", at_least=8)
    batch: int = option(128, help="samples per step of pretraining", group="optimisation", at_least=1)
    steps: int = option(2000, help="pretraining steps", group="optimisation", unit="steps", at_least=2)
    ablation_steps: int = option(
        300, help="steps of each row of the ablation", group="optimisation", unit="steps", at_least=1
    )
    further_steps: int = option(
        300,
        help="steps of continued pretraining on one domain",
        group="optimisation",
        unit="steps",
        at_least=1,
    )
    task_steps: int = option(
        1000,
        help="steps of continued pretraining on the texts of pairs, at half the length and twice the batch",
        group="optimisation",
        unit="steps",
        at_least=1,
    )
    rate: float = option(1e-3, help="highest learning rate of pretraining", group="optimisation", above=0)
    processes: int = option(2, help="processes of pretraining", group="devices", at_least=1)
    precision: str = option(
        "fp32", help="precision of pretraining", group="precision", choices=("bf16", "fp32")
    )
    samples: int = option(
        4000, help="held-out samples on which masked words are predicted", group="evaluation", at_least=1
    )
    domain: str = option(
        "laws", help="the domain to continue on: the name of a file in DATA/text, without .txt", group="data"
    )
    other: str = option("stories", help="another domain, to measure what a model has forgotten", group="data")
    small_rows: int = option(
        5000, help="training pairs of the smaller cut of LCQMC", group="data", unit="pairs", at_least=1
    )
    large_rows: int = option(
        20000, help="training pairs of the larger cut of LCQMC", group="data", unit="pairs", at_least=1
    )
    choose: int = option(
        2000, help="held-out training pairs that select the best checkpoint", group="data", at_least=2
    )
    rest: int = option(
        40000, help="pairs whose labels are not used, for distillation", group="data", at_least=1
    )
    epochs: int = option(
        3, help="epochs of training on pairs", group="optimisation", unit="epochs", at_least=1
    )
    learning_rate: float = option(
        3e-4, help="highest learning rate of training on pairs", group="optimisation", above=0
    )
    trials: int = option(
        8,
        help="trials of each search of the rate, the epochs and the warm-up",
        group="optimisation",
        at_least=1,
    )
    seeds: int = option(3, help="runs of each row of pairs", group="optimisation", unit="runs", at_least=1)
    bootstrap: int = option(1000, help="bootstrap resamples of each interval", group="evaluation", at_least=1)

    def __post_init__(self):
        super().__post_init__()
        if self.batch % (2 * self.processes):
            raise InputError(
                f"--batch {self.batch} is not a multiple of twice --processes {self.processes}, and some "
                "rows have half the batch; change one of them"
            )

    @property
    def seed_list(self) -> Tuple[int, ...]:
        """Return the seeds of a row of pairs."""
        return tuple(range(FIRST_SEED, FIRST_SEED + self.seeds))
