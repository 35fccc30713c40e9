"""What this package computes of a folder beside what a peer's process says of the same texts."""

from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np
import paddle

from ernie_pair.embedding.text_encoder import build_text_encoder, load_text_weights
from ernie_pair.inference.token_rows import EncodedPairs, encode_single_texts, encode_texts, open_tokenizer
from ernie_pair.model_files.source import open_model
from ernie_pair.pair.model.classifier_weights import load_classifier
from ernie_pair.pair.model.encoders import hidden_states
from peers.client import Peer

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


def encoder_here(folder: Path, rows: EncodedPairs) -> Dict[str, np.ndarray]:
    """Return the last hidden states float32 [B, S, D] of all ``rows``, and their mean, of norm 1, [B, D]."""
    source = open_model(str(folder), model_type="")
    model = build_text_encoder(source, seed=0, dropout=0.0)
    load_text_weights(model, source)
    model.eval()
    batch = rows.batch(np.arange(len(rows)))
    ids, types = paddle.to_tensor(batch.input_ids), paddle.to_tensor(batch.token_type_ids)
    with paddle.no_grad():
        states, _ = hidden_states(model.family, model.encoder, ids, types, model.pad_id)
        return {"hidden": states.numpy(), "pooled": unit(model(ids, types).numpy())}


def logits_here(folder: Path, rows: EncodedPairs) -> np.ndarray:
    """Return the logits float32 [B, C] of the classifier in ``folder``."""
    model, _ = load_classifier(str(folder))
    batch = rows.batch(np.arange(len(rows)))
    with paddle.no_grad():
        return model(paddle.to_tensor(batch.input_ids), paddle.to_tensor(batch.token_type_ids)).numpy()


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return the rows of [B, D] with norm 1."""
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def encoder_there(peer: Peer, folder: Path, texts: Texts, pairs: Optional[Texts], **asked) -> Dict:
    """Return what `encoder_here` returns, and ``inside``: bool [B, S], what is no padding."""
    _, said = peer.ask("outputs", folder=folder, texts=list(texts), pairs=pairs, **asked)
    states, inside = said["last_hidden_state"], said["attention_mask"].astype(bool)
    mean = (states * inside[..., None]).sum(axis=1) / inside.sum(axis=1, keepdims=True)
    return {"hidden": states, "pooled": unit(mean), "inside": inside}
