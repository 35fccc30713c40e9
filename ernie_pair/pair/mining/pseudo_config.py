"""The flags of pseudo-labelling."""

from dataclasses import dataclass

from data_tools.base.options import option
from ernie_pair.pair.config.ask_config import AskConfig


@dataclass(frozen=True)
class PseudoLabelConfig(AskConfig):
    """Label pairs with a trained classifier where it is confident enough; other pairs are dropped."""

    EXAMPLE = "--model_path output/best --input_file unlabelled.tsv --dev_file dev.tsv --output_file new.tsv"

    input_file: str = option(
        help="pairs to label: a file, or a set such as lcqmc (its test part); existing labels are ignored",
        group="data",
        stdin=(".tsv", ".jsonl"),
    )
    output_file: str = option(
        help="file to write the labelled pairs to: .tsv, .csv, .json or .jsonl", group="data"
    )
    dev_file: str = option(
        help="labelled pairs that the model was not trained on, for choosing the thresholds; none of them is "
        "written",
        group="data",
    )
    test_file: str = option("", help="test pairs; none of them is written", group="data")
    at_precision: float = option(
        0.95,
        help="share of the labels of each class that must be correct, as measured on dev_file",
        group="evaluation",
        above=0,
        below=1,
    )
    confidence: float = option(
        0.95,
        help="confidence level of the lower bound of the precision that must reach --at_precision",
        group="evaluation",
        above=0,
        below=1,
    )
