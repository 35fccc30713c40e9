"""The flags for measuring a model on perturbed pairs, shared by `evaluate` and `robustness`."""

from dataclasses import dataclass

from data_tools.base.options import Options, option


@dataclass(frozen=True)
class RobustnessFlags(Options):
    """A part of the flags of commands that evaluate a model."""

    robustness_rows: int = option(
        2000, help="maximum rows of each kind; 0: all", group="evaluation", unit="rows", at_least=0
    )
    robustness_file: str = option(
        "", help="file to write the perturbed pairs to: .tsv, .csv or .jsonl; empty: none", group="evaluation"
    )
    bootstrap: int = option(
        1000,
        help="bootstrap resamples for the confidence intervals; 0: no intervals",
        group="evaluation",
        unit="resamples",
        at_least=0,
    )
    seed: int = option(
        1234, help="seed of the resamples and of the perturbed pairs", group="evaluation", at_least=0
    )
