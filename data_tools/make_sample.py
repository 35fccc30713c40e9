"""Write the built-in sample: documents for pretraining, labelled sentence pairs for fine-tuning.

Both are made from the phrase tables of ``text/sample.txt`` and speak the same language, so that
pretraining on the one helps with the other. The same flags give the same bytes on every Python.

    python data_tools/make_sample.py --output_dir sample
"""

import random
from dataclasses import dataclass
from pathlib import Path

from data_tools.text import sample
from ernie_pair.core.cli.cli import run_command
from ernie_pair.core.cli.options import OverwriteFlag, data_option
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.results import Results, settings_of
from ernie_pair.core.progress import say

MAX_DOCUMENTS = 100_000


@dataclass(frozen=True)
class SampleConfig(OverwriteFlag):
    """Write the built-in sample: a Chinese corpus and a data set of Chinese sentence pairs."""

    EXAMPLE = "--output_dir sample"

    output_dir: str = data_option(help="corpus.txt and pairs/{train,dev,test}.tsv go here", writes="FOLDER")
    seed: int = data_option(1234, help="another seed gives another sample", at_least=0)
    documents: int = data_option(
        600,
        help="documents of the corpus, each of 4 to 9 sentences",
        unit="documents",
        at_least=1,
        at_most=MAX_DOCUMENTS,
    )
    pairs: int = data_option(
        3600,
        help="sentence pairs; dev and test each get a ninth of them",
        unit="pairs",
        at_least=sample.SMALLEST_DATA_SET,
    )

    def __post_init__(self):
        super().__post_init__()
        if self.pairs % 2:
            raise InputError(f"--pairs {self.pairs} is odd and half have label 1; use {self.pairs + 1}")


def make_sample(config: SampleConfig) -> None:
    """Write the texts and the labelled pairs of the quickstart.

    ``output_dir`` holds corpus.txt and pairs/train.tsv, dev.tsv and test.tsv.

    Raises InputError if the tables cannot give so many pairs, or if another sample exists.
    """
    names = ("corpus.txt", "pairs/train.tsv", "pairs/dev.tsv", "pairs/test.tsv")
    results = Results(
        command="make_sample",
        outputs=[Path(config.output_dir, name) for name in names],
        inputs={"tables": [Path(__file__), Path(sample.__file__), sample.TABLES]},
        settings=settings_of(config, "output_dir"),
        overwrite=config.overwrite,
    )
    if results.are_done():
        return
    rng = random.Random(config.seed)
    corpus = sample.make_documents(config.documents, rng)
    splits = sample.make_splits(config.pairs, rng)
    folder = Path(config.output_dir)
    texts = ["\n\n".join(corpus) + "\n"]
    texts += ["".join(f"{a}\t{b}\t{label}\n" for a, b, label in rows) for rows in splits]
    with results.published() as drafts:
        for draft, text in zip(drafts, texts):
            draft.write_bytes(text.encode("utf-8"))
    counts = " + ".join(str(len(rows)) for rows in splits)
    say(f"wrote {len(corpus)} documents to {folder}/corpus.txt, {counts} pairs to {folder}/pairs")


if __name__ == "__main__":
    run_command(make_sample, SampleConfig)
