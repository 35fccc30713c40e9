"""The flags of pseudo-labelling."""

from dataclasses import dataclass

from data_tools.base.options import option
from ernie_pair.pair.config.ask_config import AskConfig


@dataclass(frozen=True)
class PseudoLabelConfig(AskConfig):
    """Label pairs by a trained classifier where it is sure enough; the others stay out."""

    EXAMPLE = "--model_path output/best --input_file unlabelled.tsv --dev_file dev.tsv --output_file new.tsv"

    input_file: str = option(
        help="pairs to label: a file, or a set such as lcqmc (its test part); labels in it are not read",
        group="data",
        stdin=(".tsv", ".jsonl"),
    )
    output_file: str = option(help="the labelled pairs go here: .tsv, .csv, .json or .jsonl", group="data")
    dev_file: str = option(
        help="labelled pairs that the model has not learned: the thresholds are chosen on them, and none of "
        "them is written",
        group="data",
    )
    test_file: str = option("", help="pairs of the last measurement; none of them is written", group="data")
    at_precision: float = option(
        0.95,
        help="share of the labels of each class that is to be right, as far as dev_file tells",
        group="evaluation",
        above=0,
        below=1,
    )
    confidence: float = option(
        0.95,
        help="with which the precision is told: a lower bound of it is what must reach --at_precision",
        group="evaluation",
        above=0,
        below=1,
    )
