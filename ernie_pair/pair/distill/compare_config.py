"""The flags of the comparison of trained classifiers."""

from dataclasses import dataclass
from typing import Literal

from data_tools.base.options import Options, option, refuse_empty
from data_tools.text.lines import ENCODINGS
from ernie_pair.pair.data.pair_records import ENCODING_HELP

MODELS_EXAMPLE = 'write it as in --models "teacher=output/best student=small/best"'


@dataclass(frozen=True)
class CompareModelsConfig(Options):
    """Compare trained classifiers, exported, in ONNX Runtime on this machine's CPU.

    Each predicts its most probable class; saved thresholds do not count.
    """

    EXAMPLE = "--models 'teacher=output/best student=small/best' --input_file test.tsv --output_dir compared"

    models: str = option(
        help='names and trained models: "teacher=output/best student=small/best"; the others are compared '
        "with the first; one with spaces needs quotes of its own",
        group="model",
    )
    input_file: str = option(
        help="labelled pairs to measure on: a file, or a set such as lcqmc (its dev part)",
        group="data",
        stdin=(".tsv", ".jsonl"),
    )
    output_dir: str = option(
        help="models.json, models.md and models.html go here, and the exported models", group="data"
    )
    int8: Literal["last", "all", "none"] = option(
        "last", help="which models to measure in int8 as well", group="precision"
    )
    alone: int = option(
        200,
        help="pairs to score one at a time, to measure the latency of a single pair",
        group="evaluation",
        unit="pairs",
        at_least=2,
    )
    bootstrap: int = option(
        1000,
        help="bootstrap resamples for the confidence intervals",
        group="evaluation",
        unit="resamples",
        at_least=1,
    )
    seed: int = option(1234, help="seed of the resamples", group="evaluation", at_least=0)
    threads: int = option(
        0,
        help="threads of one forward pass; 0: the number of cores of this process",
        group="devices",
        unit="threads",
        at_least=0,
    )
    text_a: str = option(
        "", help="the column of the first text; empty: a known name, or the first column", group="data"
    )
    text_b: str = option("", help="the column of the second text", group="data")
    label: str = option("", help="the column of the label", group="data")
    encoding: str = option("utf-8", help=ENCODING_HELP, group="data", choices=ENCODINGS)
    overwrite: bool = option(False, help="replace existing results", group="data")

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_dir")
