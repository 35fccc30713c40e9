"""ERNIE pretraining (static graph) and sentence-pair classification (dynamic graph) on Paddle."""

import ast
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ernie_pair.commands import python_function, python_names
from ernie_pair.core.installation import missing_of_training
from ernie_pair.runtime.cpu import prepare_cpu_math
from ernie_pair.version import __version__ as __version__

# Here, because it has no effect once Paddle is loaded.
prepare_cpu_math()

if TYPE_CHECKING:  # imported when a name is asked for, since most of it loads Paddle; see `_offered`
    from collections.abc import Callable
    from typing import Any, Union

    import numpy as np
    from optuna.study import Study

    from data_tools.audit_text import AuditConfig
    from data_tools.build_vocab import VocabConfig
    from data_tools.make_sample import SampleConfig
    from data_tools.prepare import PrepareConfig
    from ernie_pair.api import load
    from ernie_pair.checkpoint.run_config import load_config
    from ernie_pair.checks.pipeline_inputs import PipelineConfig
    from ernie_pair.core.errors import (
        CheckpointError,
        ErniePairError,
        InputError,
        LostProcessError,
        MachineError,
        NumbersError,
    )
    from ernie_pair.deployment.export_config import ExportConfig
    from ernie_pair.deployment.export_pair import export_pair
    from ernie_pair.embeddings.embed_config import EmbedConfig, EvaluateEmbeddingConfig, ExportEmbeddingConfig
    from ernie_pair.embeddings.mteb_encoder import MtebEncoder
    from ernie_pair.embeddings.open_embedder import open_embedder
    from ernie_pair.embeddings.train.embedding_config import EmbeddingConfig, TrainEmbeddingConfig
    from ernie_pair.embeddings.train.embedding_trainer import EmbeddingTrainer
    from ernie_pair.evaluation.robustness_table import measure_robustness
    from ernie_pair.experiments.config import CrossValidateConfig, LearningCurveConfig, SearchParamsConfig
    from ernie_pair.experiments.cross_validate import CrossValidation
    from ernie_pair.experiments.split_pairs import SplitPairsConfig
    from ernie_pair.inference.embedder import TextEmbedder
    from ernie_pair.inference.explanation import Explanation
    from ernie_pair.inference.pair_tokenizer import PairTokenizer
    from ernie_pair.inference.predictor import PairPredictor
    from ernie_pair.inference.scores import Prediction
    from ernie_pair.inference.vector_files import open_vectors
    from ernie_pair.labelling.asked_labels import AuditLabelsConfig, SelectConfig
    from ernie_pair.launch.notebook import notebook_launcher
    from ernie_pair.models.commands import NewModelConfig
    from ernie_pair.models.networks.classifier import PairClassifier
    from ernie_pair.pairs.audit.audit_pairs import AuditPairsConfig
    from ernie_pair.pairs.config.ask_config import EvaluateConfig, ExplainConfig, PredictConfig
    from ernie_pair.pairs.config.distill_config import DistillConfig, StudentConfig
    from ernie_pair.pairs.config.pair_config import PairConfig, TrainConfig
    from ernie_pair.pairs.targets.metrics import EvalPrediction
    from ernie_pair.pairs.train.trainer import PairTrainer
    from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
    from ernie_pair.pretraining.convert.convert import Conversion, ConvertConfig
    from ernie_pair.pretraining.mlm.evaluate_mlm import EvaluateMlmConfig
    from ernie_pair.pretraining.mlm.fill_mask import MaskFiller
    from ernie_pair.pretraining.pretrain import PretrainResult
    from ernie_pair.retrieval.build_index import IndexConfig
    from ernie_pair.retrieval.duplicates import AuditDuplicatesConfig
    from ernie_pair.retrieval.evaluate_search import EvaluateSearchConfig
    from ernie_pair.retrieval.search_texts import SearchConfig
    from ernie_pair.retrieval.searcher import Hit, PairSearcher
    from ernie_pair.runtime.device import set_seed
    from ernie_pair.service.drift import DriftConfig
    from ernie_pair.service.serve import ServeConfig
    from ernie_pair.training.callbacks import PairCallback, TrainerControl, TrainerState
    from ernie_pair.training.task import TrainResult

    # The functions of Python, which `COMMANDS` of ernie_pair.commands declares, for type checkers.
    audit_duplicates: Callable[..., Path]
    audit_labels: Callable[..., dict[str, Any]]
    audit_pairs: Callable[..., dict[str, Any]]
    audit_text: Callable[..., dict[str, Any]]
    build_vocab: Callable[..., Path]
    convert: Callable[..., Conversion]
    cross_validate: Callable[..., CrossValidation]
    distill: Callable[..., TrainResult]
    drift: Callable[..., dict[str, Any]]
    embed: Callable[..., np.ndarray]
    evaluate: Callable[..., dict[str, Any]]
    evaluate_mlm: Callable[..., dict[str, Any]]
    explain: Callable[..., dict[str, Any]]
    export: Callable[..., Path]
    index: Callable[..., Path]
    learning_curve: Callable[..., dict[str, Any]]
    make_sample: Callable[..., Path]
    new_model: Callable[..., Path]
    pipeline: Callable[..., dict[str, Any]]
    predict: Callable[..., list[dict[str, Any]]]
    prepare: Callable[..., dict[str, Any]]
    pretrain: Callable[..., PretrainResult]
    search: Callable[..., Union[list[Hit], list[list[Hit]]]]
    search_params: Callable[..., Study]
    select: Callable[..., Path]
    serve: Callable[..., None]
    split_pairs: Callable[..., Path]
    train: Callable[..., TrainResult]
    train_embedding: Callable[..., TrainResult]

__all__ = [
    "AuditConfig", "AuditDuplicatesConfig", "AuditLabelsConfig", "AuditPairsConfig", "CheckpointError",
    "Conversion", "ConvertConfig", "CrossValidateConfig", "DistillConfig", "DriftConfig", "EmbedConfig",
    "EmbeddingConfig", "EmbeddingTrainer", "ErniePairError", "EvalPrediction", "EvaluateConfig",
    "EvaluateEmbeddingConfig", "EvaluateMlmConfig", "EvaluateSearchConfig", "ExplainConfig",
    "Explanation", "ExportConfig", "ExportEmbeddingConfig", "Hit", "IndexConfig", "InputError",
    "LearningCurveConfig", "LostProcessError", "MachineError", "MaskFiller", "MtebEncoder",
    "NewModelConfig", "NumbersError", "PairCallback", "PairClassifier", "PairConfig", "PairPredictor",
    "PairSearcher", "PairTokenizer", "PairTrainer", "PipelineConfig", "PredictConfig", "Prediction",
    "PrepareConfig", "PretrainConfig", "PretrainResult", "SampleConfig", "SearchConfig",
    "SearchParamsConfig", "SelectConfig", "ServeConfig", "SplitPairsConfig", "StudentConfig",
    "TextEmbedder", "TrainConfig", "TrainEmbeddingConfig", "TrainResult", "TrainerControl",
    "TrainerState", "VocabConfig", "__version__", "audit_duplicates", "audit_labels", "audit_pairs",
    "audit_text", "build_vocab", "convert", "cross_validate", "distill", "drift", "embed", "evaluate",
    "evaluate_mlm", "explain", "export", "export_pair", "index", "learning_curve", "load", "load_config",
    "make_sample", "measure_robustness", "new_model", "notebook_launcher", "open_embedder",
    "open_vectors", "pipeline", "predict", "prepare", "pretrain", "search", "search_params", "select",
    "serve", "set_seed", "split_pairs", "train", "train_embedding",
]  # fmt: skip


@cache
def _offered() -> dict[str, str]:
    """Return {name: its module} of what is imported for type checkers alone, above."""
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    (block,) = (node.body for node in tree.body if isinstance(node, ast.If))
    lines = [line for line in block if isinstance(line, ast.ImportFrom)]
    return {name.name: str(line.module) for line in lines for name in line.names if name.name in __all__}


def __getattr__(name: str):
    try:
        if name in _offered():
            return getattr(import_module(_offered()[name]), name)
        if name in python_names():
            return python_function(name)
    except ModuleNotFoundError as error:
        missing = missing_of_training(error)
        if missing is None:
            raise
        raise ModuleNotFoundError(str(missing), name=error.name) from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*__all__, *python_names()})
