"""Cut the documents of a domain as the general corpus, which has them too, is split.

python scripts/results/cut_documents.py --corpus_dir corpus --input_file laws.jsonl --output_dir laws

OUT/
    train.jsonl       the documents of the domain that are training documents of the corpus
    held_out.jsonl    those that are only among its validation and test documents

So a model that was pretrained on the corpus, and continues with train.jsonl, has seen no document of
held_out.jsonl.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List

from data_tools.corpus.format import document_ranges, find_corpus, open_corpus
from ernie_pair.core.cli.cli import run_command
from ernie_pair.core.cli.options import OverwriteFlag, data_option
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.results import Results, settings_of


@dataclass(frozen=True)
class CutDocumentsConfig(OverwriteFlag):
    """Cut the documents of a domain by the split of a corpus that has all of them."""

    EXAMPLE = "--corpus_dir corpus --input_file laws.jsonl --output_dir laws"

    corpus_dir: str = data_option(help="folder of the general corpus and its documents.jsonl", reads="FOLDER")
    input_file: str = data_option(help="the documents of the domain, JSON lines with text", reads="FILE")
    output_dir: str = data_option(help="the files go here", writes="FOLDER")
    split: str = data_option("949,50,1", help="shares of the documents for training, validation, test")


def cut_documents(config: CutDocumentsConfig) -> None:
    """Write the files, unless they exist. Raises InputError for a document that the corpus lacks."""
    general, domain = Path(config.corpus_dir) / "documents.jsonl", Path(config.input_file)
    paths = [Path(config.output_dir) / f"{name}.jsonl" for name in ("train", "held_out")]
    settings = settings_of(config, "corpus_dir", "input_file", "output_dir")
    inputs = {"corpus_dir": [general], "input_file": [domain]}
    results = Results("cut-documents", paths, inputs, settings, config.overwrite)
    if results.are_done():
        return
    known = _texts_of(general)
    documents = open_corpus(find_corpus(config.corpus_dir, "--corpus_dir")).num_documents
    if len(known) != documents:
        raise InputError(f"{general} has {len(known)} documents and its corpus {documents}; make it again")
    trained = document_ranges(config.split, documents)["train"]
    is_trained: Dict[str, bool] = {}
    for number, text in enumerate(known):  # one that occurs twice may be both, and is trained
        is_trained[text] = is_trained.get(text, False) or number in trained
    parts: Dict[bool, List[str]] = {True: [], False: []}
    for number, text in enumerate(_texts_of(domain), start=1):
        if text not in is_trained:
            raise InputError(f"{domain}:{number}: no document of {general}; make both from the same files")
        parts[is_trained[text]].append(text)
    if not (parts[True] and parts[False]):
        raise InputError(f"{domain}: all its documents are in one part of the corpus; change --split")
    with results.published() as drafts:
        for path, draft, texts in zip(paths, drafts, (parts[True], parts[False])):
            lines = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
            draft.write_text("".join(lines), encoding="utf-8")
            print(f"{path}: {len(texts)} documents")


def _texts_of(path: Path) -> List[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line)["text"] for line in file]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: {error!r}; it holds JSON lines with text") from None


if __name__ == "__main__":
    run_command(cut_documents, CutDocumentsConfig)
