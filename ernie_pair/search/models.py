"""The models of a search: one computes vectors of texts, another scores pairs of texts."""

from pathlib import Path
from typing import Callable, List, NamedTuple, Sequence

import numpy as np

from data_tools.files.atomic_folder import content_of
from data_tools.files.errors import InputError
from ernie_pair.inference.embedder import TextEmbedder, open_exported_embedder
from ernie_pair.inference.exported_model import EXPORT_MANIFEST
from ernie_pair.inference.predictor import PairPredictor, TextPair
from ernie_pair.inference.scores import ScoreUnit
from ernie_pair.models.embedding_json import read_embedding


class Scorer(NamedTuple):
    """Scores pairs: ``score`` returns float64 [N] for N pairs, probabilities of class 1 or other scores."""

    score: Callable[[Sequence[TextPair]], np.ndarray]
    unit: ScoreUnit


def open_embedding_model(
    folder: str, dim: int, device: str, threads: int, batch_size: int = 64
) -> TextEmbedder:
    """Open an embedding model, trained or exported; an exported one needs no library for training.

    ``dim``: length of the vectors, 0: full length. Raises an ErniePairError.
    """
    if not Path(folder).is_dir():
        raise InputError(f"{folder} is not a folder; give that of an embedding model")
    settings = read_embedding(Path(folder))
    if settings is not None and settings.is_exported:
        if device != "cpu":
            raise InputError(f"{folder} is an exported embedding model, only for CPUs; use --device cpu")
        return open_exported_embedder(folder, dim=dim, threads=threads, batch_size=batch_size)
    from ernie_pair.embedding.open_embedder import EmbedderOptions, open_embedder

    return open_embedder(folder, device, EmbedderOptions(dim=dim, threads=threads, batch_size=batch_size))


def files_of_model(folder: str) -> List[Path]:
    """Return the files that determine the answers of a model, trained or exported; '': no model, no files."""
    settings = read_embedding(Path(folder)) if folder else None
    is_exported = (Path(folder) / EXPORT_MANIFEST).is_file() or bool(settings and settings.is_exported)
    if is_exported or not folder:
        return content_of(folder)
    from ernie_pair.models import source  # which needs the libraries for training

    return source.files_of_model(folder)


def open_scorer(folder: str, device: str, threads: int) -> Scorer:
    """Open a pair classifier with two classes or none, exported or trained, as a scorer.

    Raises an ErniePairError for any other folder.
    """
    if (Path(folder) / EXPORT_MANIFEST).is_file():
        predictor = PairPredictor(folder, threads=threads, device=device)
        predictor.refuse_unrankable()
        return Scorer(predictor.score, predictor.exported.score_unit)
    from ernie_pair.search.trained_scorer import open_trained_scorer  # which loads Paddle

    return Scorer(*open_trained_scorer(folder, device, threads))
