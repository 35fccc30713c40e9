"""What this package computes of a folder beside its own library: ids, hidden states, pooled vectors, logits.

The rows of models.json are the families of the convert pages, each with a tiny model.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import paddle

from ernie_pair.core.errors import ErniePairError
from ernie_pair.embeddings.open_embedder import EmbedderOptions, open_embedder
from ernie_pair.inference.embedder import unit_rows
from ernie_pair.inference.token_rows import EncodedPairs, encode_single_texts, encode_texts, open_tokenizer
from ernie_pair.models.networks.classifier import load_classifier
from ernie_pair.models.networks.encoders import hidden_states, is_token_in
from ernie_pair.models.source import open_model
from other_libraries.client import Peer
from other_libraries.texts import WITH_SYMBOLS, sentences
from other_libraries.tiny_models import MODELS

MOST = 1e-5
COLUMNS = ("load", "ids", "hidden states", "pooled", "head")
LEFT = [*WITH_SYMBOLS, *sentences(40)]
RIGHT = [*sentences(40, seed=1), *WITH_SYMBOLS]
MAX_LENGTH = 40  # some pairs are longer
Texts = Sequence[str]


# The lines of the table: the name of a kind of folder, its family, the settings of `tiny_models.make_model`,
# the files that are removed from what it wrote, and which library makes it: newest, or pinned for what the
# newest transformers no longer has.
USUAL = {"settings": {}, "without": (), "library": "newest"}
ROWS = [SimpleNamespace(**{**USUAL, **row}) for row in MODELS["rows"]]


def measure(peer: Peer, row: SimpleNamespace, place: Path, texts: Texts = ()) -> Dict[str, Any]:
    """Return what differs between this package and ``peer`` on the folders of a row, by COLUMNS.

    ids: how many of ``texts`` and of pairs have others, of: of how many; then the largest differences. A
    refused folder has its message in the column that it was needed for, and None in the others.
    """
    encoder, classifier = (
        peer.make(place / kind, row.family, kind=kind, **row.settings)
        for kind in ("Model", "ForSequenceClassification")
    )
    for path in (folder / name for folder in (encoder, classifier) for name in row.without):
        path.unlink()
    texts = [*LEFT, *texts]
    figures: Dict[str, Any] = dict.fromkeys(COLUMNS)
    at = COLUMNS[0]
    try:
        rows_here(encoder, LEFT, None, MAX_LENGTH)
        figures["load"], at = "yes", "ids"
        different = len(different_rows(peer, encoder, texts))
        different += len(different_rows(peer, classifier, LEFT, RIGHT, MAX_LENGTH))
        figures.update(ids=different, of=len(texts) + len(LEFT))
        at = "hidden states"
        here = classifier_here(classifier, rows_here(classifier, LEFT, RIGHT, MAX_LENGTH))
        settings = {"kind": "AutoModelForSequenceClassification", "max_length": MAX_LENGTH}
        _, there = peer.ask("outputs", folder=classifier, texts=LEFT, pairs=RIGHT, **settings)
        if here["logits"].shape[1] == 1:  # of a reranker the score, as CrossEncoder has it
            there["logits"] = scores_there(peer, classifier, LEFT, RIGHT, MAX_LENGTH)
        inside = there["attention_mask"].astype(bool)
        figures["hidden states"] = _largest(here["last_hidden_state"], there["last_hidden_state"], inside)
        figures["head"], at = _largest(here["logits"], there["logits"]), "pooled"
        figures["pooled"] = _largest(*pooled_vectors(peer, encoder, LEFT, MAX_LENGTH))
    except ErniePairError as error:
        figures[at] = error.message.replace(f"{place}/", "")
    return figures


def _largest(here: np.ndarray, there: np.ndarray, inside: Optional[np.ndarray] = None) -> float:
    """Return the largest difference, of what is ``inside``; infinity for arrays of other shapes."""
    if here.shape != there.shape:
        return float("inf")
    difference = np.abs(here - there)
    return float((difference if inside is None else difference[inside]).max())


def rows_here(folder: Path, texts: Texts, pairs: Optional[Texts], max_length: int) -> EncodedPairs:
    source = open_model(str(folder), model_type="")
    tokenizer = open_tokenizer(source.vocab_file, source.spec, max_length)
    if pairs is None:
        return encode_single_texts(texts, tokenizer, max_length)
    return encode_texts(texts, pairs, None, tokenizer, max_length)


def different_rows(
    peer: Peer, folder: Path, texts: Texts, pairs: Optional[Texts] = None, max_length: int = 64
) -> List[Tuple[int, List[int], List[int]]]:
    """Return (number, ids here, ids there) of the texts, or pairs, whose ids are not those of ``peer``."""
    rows = rows_here(folder, texts, pairs, max_length)
    here = np.split(rows.ids, rows.starts[1:-1])
    there = peer.rows(folder, texts, pairs, max_length=max_length)
    return [
        (number, ours.tolist(), theirs.tolist())
        for number, (ours, theirs) in enumerate(zip(here, there))
        if not np.array_equal(ours, theirs)
    ]


def classifier_here(folder: Path, rows: EncodedPairs) -> Dict[str, np.ndarray]:
    """Return logits [B, C], last_hidden_state [B, S, D] and attention_mask [B, S] of all ``rows``."""
    model, _ = load_classifier(str(folder))
    batch = rows.batch(np.arange(len(rows)))
    ids, types = paddle.to_tensor(batch.input_ids), paddle.to_tensor(batch.token_type_ids)
    with paddle.no_grad():
        states, _ = hidden_states(model.spec, model.encoder, ids, types)
        logits = model(ids, types)
    inside = is_token_in(batch.input_ids, rows.pad_id)
    return {"logits": logits.numpy(), "last_hidden_state": states.numpy(), "attention_mask": inside}


def scores_there(peer: Peer, folder: Path, texts: Texts, pairs: Texts, max_length: int) -> np.ndarray:
    both = [list(pair) for pair in zip(texts, pairs)]
    _, arrays = peer.ask("scores", folder=folder, pairs=both, settings={"max_length": max_length})
    return arrays["scores"].reshape(-1, 1)


def pooled_vectors(peer: Peer, folder: Path, texts: Texts, max_length: int) -> Tuple[np.ndarray, np.ndarray]:
    """Return the means of the hidden states, of norm 1, as `ernie-pair embed` has them and by the library."""
    here = open_embedder(folder, options=EmbedderOptions(max_seq_len=max_length)).embed(texts)
    _, arrays = peer.ask("outputs", folder=folder, texts=texts, max_length=max_length)
    inside = arrays["attention_mask"][..., None]
    there = (arrays["last_hidden_state"] * inside).sum(axis=1) / inside.sum(axis=1)
    return unit_rows(here, str(folder)), unit_rows(there, str(folder))
