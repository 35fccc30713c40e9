"""Cut a data set of pairs into the files of a fair comparison.

python scripts/results/cut_pairs.py --train_file all.tsv --test_file dev.tsv --output_dir cut --rows "50 200"

OUT/
    train_50.jsonl       the first pairs of one shuffled order: a smaller file is a part of a larger one
    train_all.jsonl      all of them
    choose.jsonl         pairs of none of these: the best model of a run is chosen on them
    rest.jsonl           the pairs that the largest of --rows left over, without labels

No pair stands in two of these, or in the file that measures; pairs are compared as the audit compares them.
"""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Sequence

from data_tools.base.cli import run_command
from data_tools.base.errors import InputError
from data_tools.base.options import Options, names_in, option, refuse_empty
from data_tools.files.results import Results, settings_of
from ernie_pair.pair.audit.links import compared_texts
from ernie_pair.pair.data.pair_columns import Columns
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.data.pair_source import PairSource
from ernie_pair.pair.new_pairs.known_pairs import KnownPairs
from ernie_pair.pair.new_pairs.pair_writer import NewPair, write_new_pairs


@dataclass(frozen=True)
class CutConfig(Options):
    """Cut a training file into parts that share no pair with each other or with the test file."""

    EXAMPLE = "--train_file train.tsv --test_file dev.tsv --output_dir cut --rows '5000 20000'"

    train_file: str = option(help="labelled pairs", group="data")
    test_file: str = option(help="labelled pairs that measure; none of them is written", group="data")
    output_dir: str = option(help="the files go here", group="data")
    rows: str = option("", help="sizes of the training files: '5000 20000'; all is made too", group="data")
    choose: int = option(2000, help="pairs of choose.jsonl", group="data", unit="pairs", at_least=2)
    rest: int = option(40000, help="most pairs of rest.jsonl", group="data", unit="pairs", at_least=1)
    seed: int = option(1234, help="of the order", group="data", at_least=0)
    overwrite: bool = option(False, help="replace other files that are there", group="data")

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_dir")
        if not all(word.isdigit() and int(word) for word in names_in(self.rows)):
            raise InputError(
                f"--rows {self.rows!r}: not numbers of pairs; write it as in --rows '5000 20000'"
            )

    @property
    def sizes(self) -> List[int]:
        """Return the sizes of the training files that are no whole."""
        return sorted(int(word) for word in names_in(self.rows))


def cut_pairs(config: CutConfig) -> None:
    """Write the files, unless they are there. Raises InputError for too few pairs."""
    folder = Path(config.output_dir)
    names = ["choose", "rest", "train_all", *(f"train_{size}" for size in config.sizes)]
    paths = {name: folder / f"{name}.jsonl" for name in names}
    inputs: Dict[str, Sequence[Path]] = {
        flag: [Path(getattr(config, flag))] for flag in ("train_file", "test_file")
    }
    settings = settings_of(config, "train_file", "test_file", "output_dir")
    results = Results("cut-pairs", list(paths.values()), inputs, settings, config.overwrite)
    if results.are_done():
        return
    parts = _parts(config, _new_pairs(config))
    with results.published() as drafts:
        for (name, path), draft in zip(paths.items(), drafts):
            print(f"{path}: {write_new_pairs(draft, path, parts[name])} pairs")


def _parts(config: CutConfig, pairs: List[NewPair]) -> Dict[str, List[NewPair]]:
    """Return the pairs of each file."""
    largest = max([0, *config.sizes])
    if len(pairs) <= config.choose + largest:
        raise InputError(
            f"{config.train_file} has {len(pairs)} different pairs that {config.test_file} lacks, and "
            f"{config.choose + largest + 1} are needed; lower --choose or --rows"
        )
    chosen, left = pairs[: config.choose], pairs[config.choose :]
    rest = [pair._replace(label="") for pair in left[largest : largest + config.rest]]
    parts = {f"train_{size}": left[:size] for size in config.sizes}
    return {"choose": chosen, "rest": rest, "train_all": left, **parts}


def _new_pairs(config: CutConfig) -> List[NewPair]:
    """Return the pairs that the test file lacks, each once, in the order of the seed."""
    known = KnownPairs({"test": _read("test_file", config.test_file)})
    pairs = _read("train_file", config.train_file)
    unknown = known.unknown(pairs.left, pairs.right)
    compared = zip(compared_texts(list(pairs.left)), compared_texts(list(pairs.right)))
    places = {(min(pair), max(pair)): place for place, pair in reversed(list(enumerate(compared)))}
    order = sorted(place for place in places.values() if unknown[place])
    random.Random(config.seed).shuffle(order)
    labels = pairs.known_labels
    return [
        NewPair(pairs.left[place], pairs.right[place], str(labels[place]), f"row {place + 1}")
        for place in order
    ]


def _read(flag: str, name: str) -> Pairs:
    from ernie_pair.model_files.labels import parse_label_map

    return PairSource(flag, name, flag[: -len("_file")], parse_label_map("0=0,1=1"), Columns()).read()


def main() -> None:
    run_command(cut_pairs, CutConfig)


if __name__ == "__main__":
    main()
