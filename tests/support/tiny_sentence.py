"""Tiny folders of sentence-transformers, made here without the library."""

import json
from pathlib import Path

import numpy as np
import paddle
from tiny_pair import write_model

from ernie_pair.models.embedding_json import NORMALIZE, EmbeddingSettings, width_after
from ernie_pair.models.networks.text_encoder import build_text_encoder
from ernie_pair.models.source import open_model

WIDTH = 32


def write_sentence(folder: Path, pooling: str = "mean", steps=(NORMALIZE,), seed: int = 3, **told) -> Path:
    """A BERT with random weights, its modules.json and what that names; no embedding.json."""
    base = write_model(folder.with_name(f"{folder.name}-base"), model_type="bert", initializer_range=0.3)
    source = open_model(str(base), model_type="bert", from_scratch=True)
    settings = settings_for(pooling, steps, **told)
    model = build_text_encoder(source, seed, 0.0, pooling, settings.graph_steps)
    for parameter in model.dense.parameters():
        values = np.random.default_rng(parameter.shape[0]).normal(0, 0.3, parameter.shape)
        parameter.set_value(paddle.to_tensor(values.astype(np.float32)))
    folder.mkdir()
    model.write_embedding(folder, source.vocab_file, settings, "hf")
    (folder / "embedding.json").unlink()
    return folder


def settings_for(pooling: str = "mean", steps=(NORMALIZE,), **told) -> EmbeddingSettings:
    dim = width_after(pooling, WIDTH, steps)
    told = {"dims": (dim,), "max_seq_len": 20, "temperature": 0.05, **told}
    return EmbeddingSettings(pooling, dim, steps=tuple(steps), **told)


def change(path: Path, **changes) -> None:
    """Set keys of a JSON object; None removes one."""
    found = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    path.write_text(json.dumps({key: value for key, value in found.items() if value is not None}))
