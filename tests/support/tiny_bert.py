"""A tiny BERT of random weights, as PaddleNLP and as transformers save it, with or without its heads."""

from pathlib import Path
from typing import Tuple

import paddle
from tiny_pretrain import write_model

from ernie_pair.models.commands import ToHuggingFaceConfig, convert_to_hugging_face
from ernie_pair.models.source import open_model, write_model_folder
from ernie_pair.pretraining.graph.model import build_ernie, ernie_config

EPSILON = 1e-3  # far from the 1e-12 that PaddleNLP's other classes compute with
ORDER, POOLER, HEADS = "cls.seq_relationship.", "bert.pooler.", "cls."


def write_bert(folder: Path, without: Tuple[str, ...] = (), theirs: bool = False, **changes) -> Path:
    """Write a BERT whose norms and biases differ clearly from 1 and 0.

    ``without``: what the names of weights begin with that are left out; ``theirs``: as transformers saves it.
    """
    settings = {"model_type": "bert", "hidden_act": "gelu", "initializer_range": 0.2, **changes}
    write_model(folder / "new", layer_norm_eps=EPSILON, **settings)
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
