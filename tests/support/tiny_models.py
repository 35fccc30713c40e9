"""Tiny folders of a BERT, as PaddleNLP and transformers save it, and of sentence-transformers."""

import json
from pathlib import Path
from typing import Tuple

import numpy as np
import paddle
import tiny_pretrain
from tiny_pair import write_model

from ernie_pair.models.commands import ToHuggingFaceConfig, convert_to_hugging_face
from ernie_pair.models.embedding_json import NORMALIZE, EmbeddingSettings, width_after
from ernie_pair.models.networks.text_encoder import build_text_encoder
from ernie_pair.models.source import open_model, write_model_folder
from ernie_pair.pretraining.graph.model import build_ernie, ernie_config

EPSILON = 1e-3  # far from the 1e-12 that PaddleNLP's other classes compute with
ORDER, POOLER, HEADS = "cls.seq_relationship.", "bert.pooler.", "cls."


def write_bert(folder: Path, without: Tuple[str, ...] = (), theirs: bool = False, **changes) -> Path:
    """Write a BERT whose norms and biases differ clearly from 1 and 0.

    ``without``: what the names of weights begin with that are left out; ``theirs``: as transformers saves it.
    """
    settings = {"model_type": "bert", "hidden_act": "gelu", "initializer_range": 0.2, **changes}
    tiny_pretrain.write_model(folder / "new", layer_norm_eps=EPSILON, **settings)
    source = open_model(str(folder / "new"), model_type="", from_scratch=True)
    paddle.seed(0)
    model = build_ernie(ernie_config(source.spec, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.set_value(paddle.normal(0.5, 0.3, parameter.shape))
    arrays = {name: value.numpy() for name, value in model.state_dict().items()}
    kept = {name: array for name, array in arrays.items() if not (without and name.startswith(without))}
    ours = folder / "paddle" if theirs else folder
    ours.mkdir(exist_ok=True)
    write_model_folder(ours, source, kept)
    if theirs:
        convert_to_hugging_face(ToHuggingFaceConfig(str(ours), str(folder / "hf")))
        return folder / "hf"
    return ours


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
    found = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    path.write_text(json.dumps({key: value for key, value in found.items() if value is not None}))
