"""A tiny embedding model, a classifier and texts to search."""

from pathlib import Path
from typing import List

import numpy as np
from tiny_pair import CHARACTERS, write_model

from ernie_pair.model_files.source import open_model
from ernie_pair.pair.model.classifier import build_classifier

HIDDEN = 16


def write_embedder(folder: Path, seed: int = 3) -> Path:
    """A model folder that is asked as it is, by its mean; its length is 48."""
    source_folder = write_model(
        folder.with_name(f"{folder.name}-source"),
        initializer_range=0.5,
        num_hidden_layers=1,
    )
    source = open_model(str(source_folder), model_type="ernie", from_scratch=True)
    folder.mkdir(parents=True)
    build_classifier(source, seed=seed, dropout=0.1).write(folder, source.vocab_file)
    return folder


def texts_of(count: int, seed: int = 0) -> List[str]:
    """Different short texts."""
    rng = np.random.default_rng(seed)
    found = {"".join(rng.choice(list(CHARACTERS), size)) for size in rng.integers(3, 12, 3 * count)}
    return sorted(found)[:count]
