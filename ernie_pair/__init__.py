"""ERNIE pretraining in static graph and sentence-pair classification in dynamic graph, on Paddle."""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING

from data_tools.base.optional_import import missing_of_training
from ernie_pair.device.cpu_env import prepare_cpu_math
from ernie_pair.device.paddle_version import choose_programs
from ernie_pair.version import __version__ as __version__

# Paddle imports distutils before setuptools; setuptools remarks on it at every start.
warnings.filterwarnings("ignore", message="Setuptools is replacing distutils")
# Paddle 3 looks for a compiler's cache at every start.
warnings.filterwarnings("ignore", message="No ccache found")

# Here, because they have no effect once Paddle is loaded.
prepare_cpu_math()
choose_programs()

if TYPE_CHECKING:  # what _OFFERED says, for type checkers and editors
    from ernie_pair.embedding.open_embedder import open_embedder
    from ernie_pair.embedding.train.embedding_config import EmbeddingConfig
    from ernie_pair.embedding.train.embedding_trainer import EmbeddingTrainer
    from ernie_pair.engine.control import TrainerControl
    from ernie_pair.inference.embedder import TextEmbedder
    from ernie_pair.inference.predictor import PairPredictor
    from ernie_pair.inference.vector_files import open_vectors
    from ernie_pair.notebook.notebook_launcher import notebook_launcher
    from ernie_pair.pair.config.pair_config import PairConfig
    from ernie_pair.pair.evaluation.robustness_table import measure_robustness
    from ernie_pair.pair.model.classifier import PairClassifier
    from ernie_pair.pair.train.callbacks import PairCallback, TrainerState
    from ernie_pair.pair.train.trainer import PairTrainer
    from ernie_pair.pair.train.user_metrics import EvalPrediction

__all__ = [
    "EmbeddingConfig",
    "EmbeddingTrainer",
    "EvalPrediction",
    "PairCallback",
    "PairClassifier",
    "PairConfig",
    "PairPredictor",
    "PairTrainer",
    "TextEmbedder",
    "TrainerControl",
    "TrainerState",
    "__version__",
    "measure_robustness",
    "notebook_launcher",
    "open_embedder",
    "open_vectors",
]

# What Python is offered, and where it is: imported when it is asked for, since most of it loads Paddle.
_OFFERED = {
    "EmbeddingConfig": "ernie_pair.embedding.train.embedding_config",
    "EmbeddingTrainer": "ernie_pair.embedding.train.embedding_trainer",
    "EvalPrediction": "ernie_pair.pair.train.user_metrics",
    "PairCallback": "ernie_pair.pair.train.callbacks",
    "PairClassifier": "ernie_pair.pair.model.classifier",
    "PairConfig": "ernie_pair.pair.config.pair_config",
    "PairPredictor": "ernie_pair.inference.predictor",
    "PairTrainer": "ernie_pair.pair.train.trainer",
    "TextEmbedder": "ernie_pair.inference.embedder",
    "TrainerControl": "ernie_pair.engine.control",
    "TrainerState": "ernie_pair.pair.train.callbacks",
    "measure_robustness": "ernie_pair.pair.evaluation.robustness_table",
    "notebook_launcher": "ernie_pair.notebook.notebook_launcher",
    "open_embedder": "ernie_pair.embedding.open_embedder",
    "open_vectors": "ernie_pair.inference.vector_files",
}


def __getattr__(name: str):
    if name not in _OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_OFFERED[name]), name)
    except ModuleNotFoundError as error:
        missing = missing_of_training(error)
        if missing is None:
            raise
        raise ModuleNotFoundError(str(missing), name=error.name) from None


def __dir__():
    return sorted({*globals(), *_OFFERED})
