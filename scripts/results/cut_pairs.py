"""Cut a data set of pairs into the files of a fair comparison.

python scripts/results/cut_pairs.py --train_file all.tsv --test_file dev.tsv --output_dir cut --rows "50 200"

OUT/
    train_50.jsonl       the first pairs of one shuffled order: a smaller file is part of a larger one
    train_all.jsonl      all of them
    choose.jsonl         none of these pairs: the best model of a run is chosen on them
    rest.jsonl           the pairs that the largest of --rows left over, without labels
    text.txt             the texts of train_all.jsonl without labels, a document for each pair, to pretrain on

choose, train_N and rest share no pair; train_all has the pairs of both train_N and rest. No pair of the test
file is in any of them; pairs are compared as in the audit.
"""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Sequence

from data_tools.files.errors import InputError
from data_tools.files.results import Results, settings_of
from data_tools.options.cli import run_command
from data_tools.options.options import Options, names_in, option, refuse_empty
from ernie_pair.pair.audit.new_pairs import KnownPairs, NewPair, first_places, write_new_pairs
from ernie_pair.pair.audit.pairs_to_text import documents
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.data.pair_records import Columns
from ernie_pair.pair.data.pair_source import PairSource


@dataclass(frozen=True)
class CutConfig(Options):
    """Cut a training file into parts to choose, train and pretrain on, without the pairs of a test file."""

    EXAMPLE = "--train_file train.tsv --test_file dev.tsv --output_dir cut --rows '5000 20000'"

    train_file: str = option(help="labelled pairs", group="data")
    test_file: str = option(help="labelled pairs for the test; none of them is written", group="data")
    output_dir: str = option(help="the files go here", group="data")
    rows: str = option("", help="sizes of the training files: '5000 20000'; all is written too", group="data")
    choose: int = option(2000, help="pairs of choose.jsonl", group="data", unit="pairs", at_least=2)
    rest: int = option(40000, help="maximum pairs of rest.jsonl", group="data", unit="pairs", at_least=1)
    seed: int = option(1234, help="seed of the order", group="data", at_least=0)
    overwrite: bool = option(False, help="replace existing files", group="data")

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_dir")
        if not all(word.isdecimal() and int(word) for word in names_in(self.rows)):
            raise InputError(
                f"--rows {self.rows!r}: not numbers of pairs; write it as in --rows '5000 20000'"
            )

    @property
    def sizes(self) -> List[int]:
        """Return the sizes of the training files, without that of all pairs."""
        return sorted(int(word) for word in names_in(self.rows))


def cut_pairs(config: CutConfig) -> None:
    """Write the files, unless they exist. Raises InputError for too few pairs."""
    folder = Path(config.output_dir)
    names = ["choose", "rest", "train_all", *(f"train_{size}" for size in config.sizes)]
    paths = {name: folder / f"{name}.jsonl" for name in names}
    inputs: Dict[str, Sequence[Path]] = {
        flag: [Path(getattr(config, flag))] for flag in ("train_file", "test_file")
    }
    text = folder / "text.txt"
    settings = settings_of(config, "train_file", "test_file", "output_dir")
    results = Results("cut-pairs", [*paths.values(), text], inputs, settings, config.overwrite)
    if results.are_done():
        return
    parts = _parts(config, _new_pairs(config))
    with results.published() as drafts:
        for (name, path), draft in zip(paths.items(), drafts):
            print(f"{path}: {write_new_pairs(draft, path, parts[name])} pairs")
        texts = documents((pair.left, pair.right) for pair in parts["train_all"])
        drafts[-1].write_text("".join(texts), encoding="utf-8")


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
    order = [place for place in first_places(pairs.left, pairs.right) if unknown[place]]
    random.Random(config.seed).shuffle(order)
    labels = pairs.known_labels
    return [
        NewPair(pairs.left[place], pairs.right[place], str(labels[place]), f"row {place + 1}")
        for place in order
    ]


def _read(flag: str, name: str) -> Pairs:
    from ernie_pair.models.labels import parse_label_map

    return PairSource(flag, name, flag[: -len("_file")], parse_label_map("0=0,1=1"), Columns()).read()


if __name__ == "__main__":
    run_command(cut_pairs, CutConfig)
