"""The flags of mining."""

from dataclasses import dataclass
from typing import Literal, Tuple

from data_tools.base.errors import InputError
from data_tools.base.options import Options, names_in, option, refuse_empty, refuse_unknown_names
from data_tools.text.lines import ENCODINGS
from ernie_pair.device.device import default_device
from ernie_pair.pair.data.pair_columns import FIRST_TEXT_HELP, SECOND_TEXT_HELP
from ernie_pair.pair.data.pair_records import BAD_ROW_HELP, ENCODING_HELP

KINDS = ("transitive", "implied", "near")


@dataclass(frozen=True)
class MineConfig(Options):
    """Derive new training pairs from labelled ones: pairs that they imply, and similar texts that differ."""

    EXAMPLE = (
        "train.tsv --output_file mined.tsv --dev_file dev.tsv --test_file test.tsv --include_labelled true"
    )

    train_file: str = option(
        help="labelled pairs of two classes: a file, or a set such as lcqmc",
        positional=True,
        group="data",
        stdin=(".tsv", ".jsonl"),
    )
    output_file: str = option(
        help="file to write the new pairs to: .tsv, .csv, .json or .jsonl", group="data", stdout=True
    )
    dev_file: str = option(
        "", help="pairs for choosing the best model; none of them is written", group="data"
    )
    test_file: str = option("", help="test pairs, labelled or not; none of them is written", group="data")
    text_a: str = option("", help=FIRST_TEXT_HELP, group="data")
    text_b: str = option("", help=SECOND_TEXT_HELP, group="data")
    label: str = option("", help="the column of the label", group="data")
    encoding: str = option("utf-8", help=ENCODING_HELP, group="data", choices=ENCODINGS)
    on_bad_row: Literal["stop", "skip"] = option("stop", help=BAD_ROW_HELP, group="data")
    label_map: str = option(
        "", help="names of the classes, for example 0=different,1=same; empty: 0 and 1", group="data"
    )
    same: str = option("", help="label of pairs that mean the same; empty: class 1", group="data")
    kinds: str = option(
        "transitive implied near",
        help="transitive: a=b and b=c give a=c; implied: a=b and b!=c give a!=c; near: texts that look alike "
        "but are not known to be equal are labelled different",
        group="data",
    )
    include_labelled: bool = option(
        False,
        help="also write the labelled pairs, first, so that the file can be used for training",
        group="data",
    )
    hops: int = option(
        2,
        help="maximum number of labelled rows in a chain of equal texts",
        group="data",
        unit="rows",
        at_least=2,
    )
    per_text: int = option(
        2, help="maximum new pairs of each kind per text", group="data", unit="pairs", at_least=1
    )
    limit: int = option(
        0,
        help="maximum new pairs of each kind, drawn with --seed; 0: all",
        group="data",
        unit="pairs",
        at_least=0,
    )
    embedding_model: str = option(
        "", help="embedding model that decides which texts are near; empty: character n-grams", group="model"
    )
    max_similarity: float = option(
        0.6,
        help="maximum cosine similarity of near texts; more similar texts may well be equal and are left out",
        group="data",
        above=0,
        at_most=1,
    )
    min_similarity: float = option(
        0.3,
        help="minimum similarity of near texts; less similar texts are not hard negatives",
        group="data",
        at_least=0,
        at_most=1,
    )
    seed: int = option(1234, help="seed of the random draws", group="data", at_least=0)
    device: Literal["cpu", "gpu"] = option(
        default_device(), help="where the embedding model runs", group="devices"
    )
    overwrite: bool = option(False, help="replace an existing result", group="data")

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_file")
        fault = f" is no kind; name some of {', '.join(KINDS)}"
        refuse_unknown_names("kinds", names_in(self.kinds), KINDS, fault)
        if not self.chosen_kinds:
            raise InputError(f"--kinds names none; name some of {', '.join(KINDS)}")
        if self.embedding_model and "near" not in self.chosen_kinds:
            raise InputError(
                f"--embedding_model {self.embedding_model} tells what is near, and --kinds does not name "
                "near; leave one out"
            )
        if self.min_similarity > self.max_similarity:
            raise InputError(
                f"--min_similarity {self.min_similarity} is above --max_similarity {self.max_similarity}: no "
                "texts lie between; lower it"
            )

    @property
    def chosen_kinds(self) -> Tuple[str, ...]:
        """Return the kinds in the order of KINDS."""
        return tuple(kind for kind in KINDS if kind in names_in(self.kinds))
