"""Tokenize pairs of texts side by side: with the tokenizer of this package and that of the peer."""

from itertools import islice
from pathlib import Path
from typing import List

from data_tools.text.wordpiece import WordPiece
from ernie_pair.inference.token_rows import encode_texts
from side_by_side.flags import SideBySideFlags
from side_by_side.lanes import Lane, Work
from side_by_side.starting import our_lane, peer_lane

MAX_SEQ_LEN = 128


def encode_lanes(
    flags: SideBySideFlags, texts: List[str], pairs: int, folder: Path, vocab_file: str
) -> List[Lane]:
    """Return the lanes that encode ``pairs`` pairs of neighbouring lines of ``texts``."""
    lines = [line for text in texts for line in text.split("\n") if "\t" not in line]
    rows = list(islice(zip(lines[::2], lines[1::2]), pairs))
    path = folder / "pairs.tsv"
    path.write_text("".join(f"{left}\t{right}\n" for left, right in rows), encoding="utf-8")
    spec = {"task": "encode", "texts": str(path), "vocab_file": vocab_file, "max_seq_len": MAX_SEQ_LEN}
    left, right = [row[0] for row in rows], [row[1] for row in rows]
    encoded = encode_texts(left, right, None, WordPiece.from_file(Path(vocab_file)), MAX_SEQ_LEN)
    tokens = int(encoded.lengths.sum())
    work = [Work(len(rows), tokens, tokens, 0)] * flags.rounds
    lanes = [our_lane(folder, "encode", "fp32", spec, work)]
    if flags.peer_python:
        lanes.append(peer_lane(flags, folder, "peer fp32", spec, work))
    return lanes
