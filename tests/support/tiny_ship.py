"""Tiny trained models to export, and what they say."""

from pathlib import Path
from typing import List, Tuple

import numpy as np
from tiny_pair import CHARACTERS, write_model

from data_tools.text.wordpiece import WordPiece
from ernie_pair.deployment.export_pair import ExportConfig, export_pair
from ernie_pair.inference.token_rows import encode_texts
from ernie_pair.models.networks.classifier import build_classifier, load_classifier
from ernie_pair.models.networks.encoders import predict_logits
from ernie_pair.models.source import open_model
from ernie_pair.training.process_group import ProcessGroup

MAX_SEQ_LEN = 40
# What Paddle's own format is called.
PROGRAM = "model.json"
PADDLE = {PROGRAM, "model.pdiparams"}


def write_trained(folder: Path, family: str = "ernie", **changes) -> Path:
    """A model folder with weights, large enough that its logits differ from pair to pair."""
    changes = {"initializer_range": 0.3, "num_hidden_layers": 1, **changes}
    source_folder = write_model(folder.with_name(f"{folder.name}-source"), **changes)
    source = open_model(str(source_folder), model_type=family, from_scratch=True)
    folder.mkdir(parents=True)
    build_classifier(source, seed=3, dropout=0.1).write(folder, source.vocab_file)
    return folder


def ship(model: Path, folder: Path, format: str = "paddle", max_seq_len: int = MAX_SEQ_LEN, **flags) -> Path:
    export_pair(ExportConfig(str(model), str(folder), format, max_seq_len, **flags))
    return folder


def random_texts(count: int, seed: int = 0, longest: int = 60) -> List[Tuple[str, str]]:
    """Pairs of all lengths; the longest do not fit into MAX_SEQ_LEN."""
    rng = np.random.default_rng(seed)
    return [
        tuple("".join(rng.choice(list(CHARACTERS), size)) for size in rng.integers(1, longest, 2))
        for _ in range(count)
    ]


def logits_of_trained(model_path: Path, pairs) -> np.ndarray:
    model, vocab_file = load_classifier(str(model_path))
    left, right = zip(*pairs)
    rows = encode_texts(left, right, None, WordPiece.from_file(vocab_file), MAX_SEQ_LEN)
    return predict_logits(model, rows, 64, ProcessGroup())
