"""A folder that ErnieModel, ErnieForPretraining and ErnieTokenizer load with from_pretrained."""

import json
import pickle
import shutil
from pathlib import Path

import numpy as np

from ernie_pair.model_folder import CONFIG, VOCAB, ModelSource
from ernie_pair.weights import Arrays

WEIGHTS = "model_state.pdparams"


def write_model_folder(folder: Path, source: ModelSource, weights: Arrays) -> None:
    """Write config.json, vocab.txt, tokenizer_config.json and model_state.pdparams into ``folder``.

    ``weights``: {structured name: array} of ErnieForPretraining. The last file is what
    `paddle.save` writes of a state dict: a pickle of {name: ndarray}.
    """
    config = {**source.config, "model_type": "ernie", "architectures": ["ErnieForPretraining"]}
    _write_json(folder / CONFIG, config)
    _write_json(
        folder / "tokenizer_config.json", {"do_lower_case": True, "tokenizer_class": "ErnieTokenizer"}
    )
    shutil.copyfile(source.vocab_file, folder / VOCAB)
    with open(folder / WEIGHTS, "wb") as file:
        pickle.dump({name: np.ascontiguousarray(weights[name]) for name in sorted(weights)}, file, protocol=4)


def _write_json(path: Path, value) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
