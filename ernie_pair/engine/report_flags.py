"""The flag that names other tools to show a run in, the same in both kinds of training."""

from dataclasses import dataclass
from typing import Tuple

from data_tools.base.errors import InputError
from data_tools.base.options import Options, option

REPORTERS = ("tensorboard", "wandb", "mlflow")


@dataclass(frozen=True)
class ReportFlags(Options):
    """A part of `PairConfig` and of `PretrainConfig`."""

    report_to: str = option(
        "",
        help="where curves go beside VisualDL: tensorboard, wandb, mlflow, or several with commas",
        group="evaluation",
    )

    def __post_init__(self):
        super().__post_init__()
        unknown = [name for name in self.reporters if name not in REPORTERS]
        if unknown:
            raise InputError(
                f"--report_to {unknown[0]} is none of {', '.join(REPORTERS)}; use some of them, with commas"
            )

    @property
    def reporters(self) -> Tuple[str, ...]:
        """Return the names in ``report_to``, each once; none for an empty one or `none`."""
        words = self.report_to.replace(",", " ").split()
        return tuple(dict.fromkeys(word for word in words if word != "none"))
