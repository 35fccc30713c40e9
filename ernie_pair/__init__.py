"""ERNIE pretraining (static graph) and sentence-pair classification (dynamic graph) on Paddle."""

from importlib import import_module
from typing import TYPE_CHECKING

from data_tools.files.installation import missing_of_training
from ernie_pair.runtime.cpu_env import prepare_cpu_math
from ernie_pair.version import __version__ as __version__

# Here, because it has no effect once Paddle is loaded.
prepare_cpu_math()

if TYPE_CHECKING:  # what _OFFERED says, for type checkers and editors
    from ernie_pair.checkpoint.run_config import load_config
    from ernie_pair.embedding.open_embedder import open_embedder
    from ernie_pair.embedding.train.embedding_config import EmbeddingConfig
    from ernie_pair.embedding.train.embedding_trainer import EmbeddingTrainer
    from ernie_pair.inference.embedder import TextEmbedder
    from ernie_pair.inference.pair_tokenizer import PairTokenizer
    from ernie_pair.inference.predictor import PairPredictor
    from ernie_pair.inference.vector_files import open_vectors
    from ernie_pair.launch.notebook.notebook_launcher import notebook_launcher
    from ernie_pair.models.networks.classifier import PairClassifier
    from ernie_pair.pair.config.distill_config import DistillConfig, StudentConfig
    from ernie_pair.pair.config.pair_config import PairConfig, TrainConfig
    from ernie_pair.pair.distill.distill import distill
    from ernie_pair.pair.targets.metrics import EvalPrediction
    from ernie_pair.pair.train.trainer import PairTrainer
    from ernie_pair.pretrain.filling.evaluate_mlm import EvaluateMlmConfig, evaluate_mlm
    from ernie_pair.pretrain.filling.fill_mask import MaskFiller
    from ernie_pair.runtime.deterministic import set_seed
    from ernie_pair.score.evaluation.robustness_table import measure_robustness
    from ernie_pair.score.export.export_config import ExportConfig
    from ernie_pair.score.export.export_pair import export_pair
    from ernie_pair.search.searcher import PairSearcher
    from ernie_pair.series.config import CrossValidateConfig, SearchParamsConfig
    from ernie_pair.series.cross_validate import cross_validate
    from ernie_pair.series.ensemble import EnsembleConfig, ensemble
    from ernie_pair.series.search_params import search_params
    from ernie_pair.train.callbacks import PairCallback, TrainerState
    from ernie_pair.train.hooks import TrainerControl

__all__ = [
    "CrossValidateConfig",
    "DistillConfig",
    "EmbeddingConfig",
    "EmbeddingTrainer",
    "EnsembleConfig",
    "EvalPrediction",
    "EvaluateMlmConfig",
    "ExportConfig",
    "MaskFiller",
    "PairCallback",
    "PairClassifier",
    "PairConfig",
    "PairPredictor",
    "PairSearcher",
    "PairTokenizer",
    "PairTrainer",
    "SearchParamsConfig",
    "StudentConfig",
    "TextEmbedder",
    "TrainConfig",
    "TrainerControl",
    "TrainerState",
    "__version__",
    "cross_validate",
    "distill",
    "ensemble",
    "evaluate_mlm",
    "export_pair",
    "load_config",
    "measure_robustness",
    "notebook_launcher",
    "open_embedder",
    "open_vectors",
    "search_params",
    "set_seed",
]

# What Python is offered, and where it is: imported when it is asked for, since most of it loads Paddle.
_OFFERED = {
    "CrossValidateConfig": "ernie_pair.series.config",
    "DistillConfig": "ernie_pair.pair.config.distill_config",
    "EmbeddingConfig": "ernie_pair.embedding.train.embedding_config",
    "EmbeddingTrainer": "ernie_pair.embedding.train.embedding_trainer",
    "EnsembleConfig": "ernie_pair.series.ensemble",
    "EvalPrediction": "ernie_pair.pair.targets.metrics",
    "EvaluateMlmConfig": "ernie_pair.pretrain.filling.evaluate_mlm",
    "ExportConfig": "ernie_pair.score.export.export_config",
    "MaskFiller": "ernie_pair.pretrain.filling.fill_mask",
    "PairCallback": "ernie_pair.train.callbacks",
    "PairClassifier": "ernie_pair.models.networks.classifier",
    "PairConfig": "ernie_pair.pair.config.pair_config",
    "PairPredictor": "ernie_pair.inference.predictor",
    "PairSearcher": "ernie_pair.search.searcher",
    "PairTokenizer": "ernie_pair.inference.pair_tokenizer",
    "PairTrainer": "ernie_pair.pair.train.trainer",
    "SearchParamsConfig": "ernie_pair.series.config",
    "StudentConfig": "ernie_pair.pair.config.distill_config",
    "TextEmbedder": "ernie_pair.inference.embedder",
    "TrainConfig": "ernie_pair.pair.config.pair_config",
    "TrainerControl": "ernie_pair.train.hooks",
    "TrainerState": "ernie_pair.train.callbacks",
    "cross_validate": "ernie_pair.series.cross_validate",
    "distill": "ernie_pair.pair.distill.distill",
    "ensemble": "ernie_pair.series.ensemble",
    "evaluate_mlm": "ernie_pair.pretrain.filling.evaluate_mlm",
    "export_pair": "ernie_pair.score.export.export_pair",
    "load_config": "ernie_pair.checkpoint.run_config",
    "measure_robustness": "ernie_pair.score.evaluation.robustness_table",
    "notebook_launcher": "ernie_pair.launch.notebook.notebook_launcher",
    "open_embedder": "ernie_pair.embedding.open_embedder",
    "open_vectors": "ernie_pair.inference.vector_files",
    "search_params": "ernie_pair.series.search_params",
    "set_seed": "ernie_pair.runtime.deterministic",
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
