"""Compare the vectors of a published model with those of sentence-transformers, on real texts with symbols.

python scripts/compare_vectors.py --peer_python peer/bin/python --model_path minilm --data my_data \
    --output_file vectors.json

The texts are of the files in DATA/text and DATA/pairs: lines and texts of pairs that have a symbol, a
character of Unicode's S (currency, mathematics, emoji, ...). Of each file in turn the next is taken, in the
order of the SHA-256 of the texts: neither is chosen by what it gives.
"""

import hashlib
import json
import unicodedata
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import List, Set

import numpy as np
from other_libraries.client import Peer

from data_tools.text.wordpiece import WordPiece
from ernie_pair.core.cli.cli import run_command
from ernie_pair.core.cli.options import Options, data_option, model_option, option
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.json_file import write_json


@dataclass(frozen=True)
class CompareVectorsConfig(Options):
    """Compare the vectors and cosines of a published model with those of sentence-transformers."""

    EXAMPLE = "--peer_python peer/bin/python --model_path minilm --data my_data --output_file vectors.json"

    peer_python: str = option(help="a Python that has torch and sentence-transformers")
    model_path: str = model_option(help="a folder of sentence-transformers", reads="PATH")
    data: str = data_option(help="a folder of text/NAME.txt and pairs/SET/NAME.tsv")
    output_file: str = data_option(help="the figures go here, as JSON", writes="FILE")
    count: int = data_option(1000, help="texts, fewer if there are not so many", at_least=2)


def compare_vectors(config: CompareVectorsConfig) -> None:
    """Write the figures. Raises InputError for no such texts, or LibraryError."""
    from ernie_pair.embeddings.open_embedder import open_embedder  # which loads Paddle

    texts = chosen_texts(files_of(Path(config.data)), config.count)
    embedder = open_embedder(config.model_path)
    here = embedder.embed(texts)
    with Peer(Path(config.peer_python)) as peer:
        result, arrays = peer.ask("vectors", folder=config.model_path, texts=texts)
        rows, versions = peer.rows(Path(config.model_path), texts), peer.versions
    there, most = arrays["vectors"], result["max_seq_length"]
    cosines = [(vectors[:-1] * vectors[1:]).sum(axis=1) for vectors in (here, there)]  # they are of norm 1
    # ERNIE's rule read every vocab.txt before folders were read with their own tokenizer.
    rule = WordPiece.from_file(Path(config.model_path) / "vocab.txt")
    by_rule = ([rule.cls_id, *rule.encode(text), rule.sep_id] for text in texts)
    symbols = list(map(symbols_in, texts))
    figures = {
        "texts": len(texts),
        "beyond_ascii": sum(not each.isascii() for each in symbols),
        "symbols": len(set("".join(symbols))),
        "cut_ours": embedder.num_cut,
        "cut_theirs": sum(len(row) > most for row in rows),
        "max_seq_len_ours": embedder.max_seq_len,
        "max_seq_len_theirs": most,
        "cut_otherwise_by_ernie": sum(one != other.tolist() for one, other in zip(by_rule, rows)),
        "vectors": float(np.abs(here - there).max()),
        "cosines": float(np.abs(cosines[0] - cosines[1]).max()),
        "peer": ", ".join(f"{library} {version}" for library, version in versions.items()),
    }
    write_json(Path(config.output_file), figures)
    print(f"wrote {config.output_file}: vectors differ by {figures['vectors']:.1e} at most")


def files_of(data: Path) -> List[Path]:
    """Return the files of texts and of pairs. Raises InputError where there is none."""
    files = sorted([*data.glob("text/*.txt"), *data.glob("pairs/*/*.tsv"), *data.glob("pairs/*/*.json")])
    if not files:
        raise InputError(f"--data {data}: no text/NAME.txt and no pairs/SET/NAME.tsv are there")
    return files


def chosen_texts(files: List[Path], count: int) -> List[str]:
    """Return ``count`` different texts with symbols, or fewer, of each file in turn; or InputError."""

    def digest(text: str) -> str:
        return hashlib.sha256(text.encode("utf-8")).hexdigest()

    of_files = [sorted(filter(symbols_in, texts_of(path)), key=digest) for path in files]
    chosen = list(islice(dict.fromkeys(filter(None, chain.from_iterable(zip_longest(*of_files)))), count))
    if len(chosen) < 2:
        raise InputError(f"{files[0].parent}: {len(chosen)} texts have a symbol; give other files by --data")
    return chosen


def texts_of(path: Path) -> Set[str]:
    """Return the lines of a text, the cells of a table, or the strings of JSON lines."""
    with open(path, encoding="utf-8") as file:
        lines = [line.strip() for line in file]
    if path.suffix == ".json":
        return {str(value) for line in lines for value in json.loads(line).values()}
    return {cell for line in lines for cell in (line.split("\t") if path.suffix == ".tsv" else [line])}


def symbols_in(text: str) -> str:
    return "".join(sign for sign in text if unicodedata.category(sign).startswith("S"))


if __name__ == "__main__":
    run_command(compare_vectors, CompareVectorsConfig)
