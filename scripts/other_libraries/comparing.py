"""What this package computes of a folder beside what a peer's process says of the same texts."""

from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np
import paddle

from ernie_pair.embedding.open_embedder import EmbedderOptions, open_embedder
from ernie_pair.inference.embedder import unit_rows
from ernie_pair.inference.token_rows import EncodedPairs, encode_single_texts, encode_texts, open_tokenizer
from ernie_pair.models.networks.classifier import load_classifier
from ernie_pair.models.networks.encoders import hidden_states
from ernie_pair.models.source import open_model
from other_libraries.client import Peer

Texts = Sequence[str]


def rows_here(folder: Path, texts: Texts, pairs: Optional[Texts], max_length: int) -> EncodedPairs:
    """Return the encoded texts, or pairs, by the tokenizer that this package opens for ``folder``."""
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
    _, said = peer.ask("token_ids", folder=folder, texts=texts, pairs=pairs, max_length=max_length)
    if np.array_equal(rows.lengths, said["lengths"]) and np.array_equal(rows.ids, said["ids"]):
        return []
    here = np.split(rows.ids, rows.starts[1:-1])
    there = np.split(said["ids"], np.cumsum(said["lengths"])[:-1])
    return [
        (number, ours.tolist(), theirs.tolist())
        for number, (ours, theirs) in enumerate(zip(here, there))
        if not np.array_equal(ours, theirs)
    ]


def classifier_here(folder: Path, rows: EncodedPairs) -> Dict[str, np.ndarray]:
    """Return what the classifier in ``folder`` says of all ``rows``.

    logits float32 [B, C], of a reranker its scores [B, 1]; last_hidden_state float32 [B, S, D] and
    attention_mask bool [B, S].
    """
    model, _ = load_classifier(str(folder))
    batch = rows.batch(np.arange(len(rows)))
    ids, types = paddle.to_tensor(batch.input_ids), paddle.to_tensor(batch.token_type_ids)
    with paddle.no_grad():
        states, _ = hidden_states(model.family, model.encoder, ids, types, model.pad_id)
        logits = model(ids, types)
    inside = batch.input_ids != rows.pad_id
    return {"logits": logits.numpy(), "last_hidden_state": states.numpy(), "attention_mask": inside}


def classifier_there(
    peer: Peer, folder: Path, texts: Texts, pairs: Texts, max_length: int
) -> Dict[str, np.ndarray]:
    """Return the arrays of `classifier_here` by the folder's own library, which also cuts the pairs.

    One output is that of a reranker: its score is the sigmoid, as of CrossEncoder.
    """
    asked = {"kind": "AutoModelForSequenceClassification", "max_length": max_length}
    _, said = peer.ask("outputs", folder=folder, texts=texts, pairs=pairs, **asked)
    if said["logits"].shape[1] == 1:
        said["logits"] = 1 / (1 + np.exp(-said["logits"]))
    return {**said, "attention_mask": said["attention_mask"].astype(bool)}


def scores_there(peer: Peer, folder: Path, texts: Texts, pairs: Texts, max_length: int) -> np.ndarray:
    """Return the scores float32 [B, 1] of CrossEncoder(folder)."""
    both = [list(pair) for pair in zip(texts, pairs)]
    _, said = peer.ask("scores", folder=folder, pairs=both, settings={"max_length": max_length})
    return said["scores"].reshape(-1, 1)


def pooled_here(folder: Path, texts: Texts, max_length: int) -> np.ndarray:
    """Return the vectors of the encoder in ``folder`` as `ernie-pair embed` makes them: means of norm 1."""
    return unit_rows(
        open_embedder(folder, options=EmbedderOptions(max_seq_len=max_length)).embed(texts), str(folder)
    )


def pooled_there(peer: Peer, folder: Path, texts: Texts, max_length: int) -> np.ndarray:
    """Return the means, of norm 1, of the hidden states that the folder's own library computes."""
    _, said = peer.ask("outputs", folder=folder, texts=texts, max_length=max_length)
    inside = said["attention_mask"][..., None]
    return unit_rows((said["last_hidden_state"] * inside).sum(axis=1) / inside.sum(axis=1), str(folder))
