"""The flags of measuring a model on changed pairs, which `evaluate` and `robustness` have."""

from dataclasses import dataclass

from data_tools.base.options import Options, option


@dataclass(frozen=True)
class RobustnessFlags(Options):
    """A part of the flags of commands that judge a model."""

    robustness_rows: int = option(
        2000, help="most rows of each kind; 0: all", group="evaluation", unit="rows", at_least=0
    )
    robustness_file: str = option(
        "", help="the changed pairs go here: .tsv, .csv or .jsonl; empty: nowhere", group="evaluation"
    )
    bootstrap: int = option(
        1000,
        help="resamples for the confidence intervals; 0: no intervals",
        group="evaluation",
        unit="resamples",
        at_least=0,
    )
    seed: int = option(
        1234, help="of the resamples, and of the changed pairs", group="evaluation", at_least=0
    )
