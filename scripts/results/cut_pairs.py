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
from typing import Dict, List

from proof.figures import read_pairs

from ernie_pair.core.cli.cli import run_command
from ernie_pair.core.cli.options import OverwriteFlag, data_option, names_in
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.results import Results, settings_of
from ernie_pair.pairs.audit.new_pairs import KnownPairs, NewPair, documents, first_places, write_new_pairs


@dataclass(frozen=True)
class CutConfig(OverwriteFlag):
    """Cut a training file into parts to choose, train and pretrain on, without the pairs of a test file."""

    EXAMPLE = "--train_file train.tsv --test_file dev.tsv --output_dir cut --rows '5000 20000'"

    train_file: str = data_option(help="labelled pairs", reads="FILE")
    test_file: str = data_option(help="labelled pairs for the test; none of them is written", reads="FILE")
    output_dir: str = data_option(help="the files go here", writes="FOLDER")
    rows: str = data_option("", help="sizes of the training files: '5000 20000'; all is written too")
    choose: int = data_option(2000, help="pairs of choose.jsonl", unit="pairs", at_least=2)
    rest: int = data_option(40000, help="maximum pairs of rest.jsonl", unit="pairs", at_least=1)
    seed: int = data_option(1234, help="seed of the order", at_least=0)

    def __post_init__(self):
        super().__post_init__()
        if not all(word.isdecimal() and int(word) for word in names_in(self.rows)):
            raise InputError(
                f"--rows {self.rows!r}: not numbers of pairs; write it as in --rows '5000 20000'"
            )

    @property
    def sizes(self) -> List[int]:
        return sorted(int(word) for word in names_in(self.rows))


def cut_pairs(config: CutConfig) -> None:
    """Write the files, unless they exist. Raises InputError for too few pairs."""
    folder = Path(config.output_dir)
    names = ["choose", "rest", "train_all", *(f"train_{size}" for size in config.sizes)]
    paths = {name: folder / f"{name}.jsonl" for name in names}
    inputs = {flag: [Path(getattr(config, flag))] for flag in ("train_file", "test_file")}
    settings = settings_of(config, "train_file", "test_file", "output_dir")
    results = Results("cut-pairs", [*paths.values(), folder / "text.txt"], inputs, settings, config.overwrite)
    if results.are_done():
        return
    parts = _parts(config)
    with results.published() as drafts:
        for (name, path), draft in zip(paths.items(), drafts):
            print(f"{path}: {write_new_pairs(draft, path, parts[name])} pairs")
        texts = documents((pair.left, pair.right) for pair in parts["train_all"])
        drafts[-1].write_text("".join(texts), encoding="utf-8")


def _parts(config: CutConfig) -> Dict[str, List[NewPair]]:
    """Return the pairs of each file: those that the test file lacks, each once, in the order of the seed."""
    known = KnownPairs({"test": read_pairs(Path(config.test_file))})
    pairs = read_pairs(Path(config.train_file), "train_file")
    unknown, labels = known.unknown(pairs.left, pairs.right), pairs.known_labels
    order = [place for place in first_places(pairs.left, pairs.right) if unknown[place]]
    random.Random(config.seed).shuffle(order)
    new = [
        NewPair(pairs.left[place], pairs.right[place], str(labels[place]), f"row {place + 1}")
        for place in order
    ]
    largest = max([0, *config.sizes])
    if len(new) <= config.choose + largest:
        raise InputError(
            f"{config.train_file} has {len(new)} different pairs that {config.test_file} lacks, and "
            f"{config.choose + largest + 1} are needed; lower --choose or --rows"
        )
    chosen, left = new[: config.choose], new[config.choose :]
    rest = [pair._replace(label="") for pair in left[largest : largest + config.rest]]
    parts = {f"train_{size}": left[:size] for size in config.sizes}
    return {"choose": chosen, "rest": rest, "train_all": left, **parts}


if __name__ == "__main__":
    run_command(cut_pairs, CutConfig)
