"""ERNIE pretraining (static graph) and sentence-pair classification (dynamic graph) on Paddle."""

from importlib import import_module
from typing import TYPE_CHECKING

from data_tools.base.optional_import import missing_of_training
from ernie_pair.device.cpu_env import prepare_cpu_math
from ernie_pair.device.paddle_version import choose_programs
from ernie_pair.version import __version__ as __version__

# Here, because they have no effect once Paddle is loaded.
prepare_cpu_math()
choose_programs()

if TYPE_CHECKING:  # what _OFFERED says, for type checkers and editors
    from ernie_pair.device.set_seed import set_seed
    from ernie_pair.embedding.open_embedder import open_embedder
    from ernie_pair.embedding.train.embedding_config import EmbeddingConfig
    from ernie_pair.embedding.train.embedding_trainer import EmbeddingTrainer
    from ernie_pair.engine.control import TrainerControl
    from ernie_pair.inference.embedder import TextEmbedder
    from ernie_pair.inference.pair_tokenizer import PairTokenizer
    from ernie_pair.inference.predictor import PairPredictor
    from ernie_pair.inference.vector_files import open_vectors
    from ernie_pair.notebook.notebook_launcher import notebook_launcher
    from ernie_pair.pair.config.distill_config import DistillConfig, StudentConfig
    from ernie_pair.pair.config.pair_config import PairConfig, TrainConfig
    from ernie_pair.pair.cross_validation.cross_validate import cross_validate
    from ernie_pair.pair.cross_validation.cross_validation_config import CrossValidateConfig
    from ernie_pair.pair.distill.distill import distill
    from ernie_pair.pair.ensemble.ensemble import ensemble
    from ernie_pair.pair.ensemble.ensemble_config import EnsembleConfig
    from ernie_pair.pair.evaluation.robustness_table import measure_robustness
    from ernie_pair.pair.export.export_config import ExportConfig
    from ernie_pair.pair.export.export_pair import export_pair
    from ernie_pair.pair.model.classifier import PairClassifier
    from ernie_pair.pair.param_search.search_config import SearchParamsConfig
    from ernie_pair.pair.param_search.search_params import search_params
    from ernie_pair.pair.targets.user_metrics import EvalPrediction
    from ernie_pair.pair.train.callbacks import PairCallback, TrainerState
    from ernie_pair.pair.train.trainer import PairTrainer
    from ernie_pair.pretrain.filling.evaluate_mlm import EvaluateMlmConfig, evaluate_mlm
    from ernie_pair.pretrain.filling.mask_filler import MaskFiller
    from ernie_pair.run_config.load_config import load_config
    from ernie_pair.search.searcher import PairSearcher

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
    "CrossValidateConfig": "ernie_pair.pair.cross_validation.cross_validation_config",
    "DistillConfig": "ernie_pair.pair.config.distill_config",
    "EmbeddingConfig": "ernie_pair.embedding.train.embedding_config",
    "EmbeddingTrainer": "ernie_pair.embedding.train.embedding_trainer",
    "EnsembleConfig": "ernie_pair.pair.ensemble.ensemble_config",
    "EvalPrediction": "ernie_pair.pair.targets.user_metrics",
    "EvaluateMlmConfig": "ernie_pair.pretrain.filling.evaluate_mlm",
    "ExportConfig": "ernie_pair.pair.export.export_config",
    "MaskFiller": "ernie_pair.pretrain.filling.mask_filler",
    "PairCallback": "ernie_pair.pair.train.callbacks",
    "PairClassifier": "ernie_pair.pair.model.classifier",
    "PairConfig": "ernie_pair.pair.config.pair_config",
    "PairPredictor": "ernie_pair.inference.predictor",
    "PairSearcher": "ernie_pair.search.searcher",
    "PairTokenizer": "ernie_pair.inference.pair_tokenizer",
    "PairTrainer": "ernie_pair.pair.train.trainer",
    "SearchParamsConfig": "ernie_pair.pair.param_search.search_config",
    "StudentConfig": "ernie_pair.pair.config.distill_config",
    "TextEmbedder": "ernie_pair.inference.embedder",
    "TrainConfig": "ernie_pair.pair.config.pair_config",
    "TrainerControl": "ernie_pair.engine.control",
    "TrainerState": "ernie_pair.pair.train.callbacks",
    "cross_validate": "ernie_pair.pair.cross_validation.cross_validate",
    "distill": "ernie_pair.pair.distill.distill",
    "ensemble": "ernie_pair.pair.ensemble.ensemble",
    "evaluate_mlm": "ernie_pair.pretrain.filling.evaluate_mlm",
    "export_pair": "ernie_pair.pair.export.export_pair",
    "load_config": "ernie_pair.run_config.load_config",
    "measure_robustness": "ernie_pair.pair.evaluation.robustness_table",
    "notebook_launcher": "ernie_pair.notebook.notebook_launcher",
    "open_embedder": "ernie_pair.embedding.open_embedder",
    "open_vectors": "ernie_pair.inference.vector_files",
    "search_params": "ernie_pair.pair.param_search.search_params",
    "set_seed": "ernie_pair.device.set_seed",
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
