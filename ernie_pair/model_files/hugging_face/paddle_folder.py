"""Write the folder of a model that PaddleNLP loads with from_pretrained, from one of transformers."""

import json
import pickle
from pathlib import Path
from typing import Any, Mapping, Tuple

import numpy as np

from data_tools.base.errors import CheckpointError
from ernie_pair.model_files.hugging_face.counterparts import COUNTERPARTS
from ernie_pair.model_files.hugging_face.folder import (
    CONFIG,
    FAST_TOKENIZER,
    TOKENIZER,
    VOCAB,
)
from ernie_pair.model_files.hugging_face.names import COMPUTED, missing_names, own_heads
from ernie_pair.weights.weight_files import Arrays, as_float32

MODEL_STATE = "model_state.pdparams"
OWN_FILES = (CONFIG, TOKENIZER, VOCAB, FAST_TOKENIZER, MODEL_STATE)


def split_heads(arrays: Arrays, family: str, num_layers: int, where: str) -> Tuple[Arrays, Tuple[str, ...]]:
    """Return the weights that PaddleNLP's classes of ``family`` have, and the names of the other heads.

    Raises CheckpointError when the encoder is not whole, or holds what PaddleNLP's has not.
    """
    missing = [name for name in missing_names(arrays, family, num_layers) if ".pooler." not in name]
    if missing:
        raise CheckpointError(
            f"{where}: {len(missing)} weights of the encoder are missing, {missing[0]} for example; give a "
            "whole model"
        )
    inside = COUNTERPARTS[family].own_prefix
    heads = own_heads(family)
    kept = {name: array for name, array in arrays.items() if name.startswith((inside, *heads))}
    return kept, tuple(sorted(arrays.keys() - kept.keys()))


def write_own_folder(
    folder: Path, config: Mapping[str, Any], tokenizer: Mapping[str, bytes], arrays: Arrays
) -> None:
    """Fill ``folder`` with config.json, the files ``tokenizer`` {name: content} and model_state.pdparams.

    The last is what `paddle.save` writes of a state dict: a pickle of {name: ndarray}.
    """
    text = json.dumps(dict(config), indent=2, ensure_ascii=False) + "\n"
    (folder / CONFIG).write_text(text, encoding="utf-8")
    for name, content in tokenizer.items():
        (folder / name).write_bytes(content)
    wide = as_float32(arrays, str(folder))
    peer = COUNTERPARTS[config["model_type"]]
    if peer.keeps_positions:
        positions = np.arange(config["max_position_embeddings"], dtype=np.int64)
        wide[f"{peer.own_prefix}{COMPUTED[0]}"] = positions[None]
    with open(folder / MODEL_STATE, "wb") as file:
        pickle.dump({name: np.ascontiguousarray(wide[name]) for name in sorted(wide)}, file, protocol=4)
