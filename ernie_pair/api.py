"""The line from raw text to a service as functions of Python: each is a command, and returns its result.

    from ernie_pair import PrepareConfig, prepare

    prepare(input_path="raw/", output_prefix="data/baike", vocab_file="vocab.txt", chinese=True)
    prepare(PrepareConfig("raw/", "data/baike", vocab_file="vocab.txt", chinese=True))  # the same

The options are those of the command, and mean the same. A function prints nothing unless ``verbose=True``,
and raises an `ErniePairError` for whatever the user can fix. What has been done before is not done again, but
returned. Training may be started by a launcher, as that of the commands; otherwise it is done in this
process. Outside the main thread, signals are left to the caller.

Stands above the layers, like __main__.py.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Type, Union

from data_tools.audit_text import AuditConfig
from data_tools.build_vocab import VocabConfig
from data_tools.corpus.format import corpus_paths
from data_tools.make_sample import SampleConfig
from data_tools.prepare import PrepareConfig
from ernie_pair.__main__ import COMMANDS
from ernie_pair.checks.pipeline_inputs import PipelineConfig
from ernie_pair.commands import form_of_model, function_of
from ernie_pair.core.cli.options import DASH, Options
from ernie_pair.core.cli.python_call import NOWHERE, takes_options
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.json_file import read_json_object
from ernie_pair.deployment.export_config import ExportConfig
from ernie_pair.embeddings.embed_config import EmbedConfig, EvaluateEmbeddingConfig, ExportEmbeddingConfig
from ernie_pair.embeddings.train.embedding_config import TrainEmbeddingConfig
from ernie_pair.experiments.config import CrossValidateConfig, SearchParamsConfig
from ernie_pair.experiments.split_pairs import SplitPairsConfig
from ernie_pair.models.commands import NewModelConfig
from ernie_pair.pairs.audit.audit_pairs import AuditPairsConfig
from ernie_pair.pairs.config.ask_config import EvaluateConfig, PredictConfig
from ernie_pair.pairs.config.distill_config import DistillConfig, StudentConfig
from ernie_pair.pairs.config.pair_config import TrainConfig
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.pretraining.convert.convert import ConvertConfig
from ernie_pair.pretraining.mlm.evaluate_mlm import EvaluateMlmConfig
from ernie_pair.retrieval.build_index import IndexConfig
from ernie_pair.retrieval.search_texts import TYPED, SearchConfig
from ernie_pair.service.serve import ServeConfig

if TYPE_CHECKING:  # what loads Paddle, or is only returned
    import numpy as np
    from optuna.study import Study

    from ernie_pair.experiments.cross_validate import CrossValidation
    from ernie_pair.pairs.train.trainer import PairDataset
    from ernie_pair.pretraining.convert.convert import Conversion
    from ernie_pair.pretraining.pretrain import PretrainResult
    from ernie_pair.retrieval.searcher import Hit
    from ernie_pair.training.callbacks import PairCallback
    from ernie_pair.training.task import TrainResult


def _run(command: str, config: Options) -> Any:
    """Return what the function of a command does; its module, which may load Paddle, is imported now."""
    return function_of(COMMANDS[command])(config)


@takes_options(SampleConfig)
def make_sample(config: SampleConfig) -> Path:
    """Write the texts and the labelled pairs of the quickstart, and return their folder.

    It holds corpus.txt and pairs/train.tsv, dev.tsv and test.tsv.
    """
    _run("make-sample", config)
    return Path(config.output_dir)


@takes_options(VocabConfig)
def build_vocab(config: VocabConfig) -> Path:
    """Build a vocabulary from text, and return its file."""
    _run("build vocab", config)
    return Path(config.output_file)


@takes_options(PrepareConfig)
def prepare(config: PrepareConfig) -> Dict[str, Any]:
    """Convert raw text or JSON lines to a corpus of token ids, and return what PREFIX.manifest.json holds.

    Its ``counts`` are the documents, the sentences, the tokens and the unknown ones among them. The folder of
    PREFIX is the ``input_dir`` of `pretrain`.
    """
    _run("prepare", config)
    return read_json_object(corpus_paths(config.output_prefix).manifest, "make the corpus again")


@takes_options(AuditConfig)
def audit_text(config: AuditConfig) -> Dict[str, Any]:
    """Look for duplicates and odd characters in raw text, and return what is found.

    It is what the report of ``output_dir`` holds.
    """
    return _run("audit text", config)


@takes_options(AuditPairsConfig)
def audit_pairs(config: AuditPairsConfig) -> Dict[str, Any]:
    """Look for duplicates, leaks and contradictions in labelled pairs, and return what is found.

    It is what the report of ``output_dir`` holds.
    """
    return _run("audit pairs", config)


@takes_options(SplitPairsConfig)
def split_pairs(config: SplitPairsConfig) -> Path:
    """Split labelled pairs into train, dev and test files without common texts, and return the folder."""
    _run("prepare pairs", config)
    return Path(config.output_dir)


@takes_options(PipelineConfig)
def pipeline(config: PipelineConfig) -> Dict[str, Any]:
    """Turn texts and labelled pairs into a model that serves, and return what was reached.

    {"model": the exported folder, "report": its page, "result": a line, "metrics": of `evaluate`}. The
    commands run in processes of their own; what they say is added to pipeline.log in ``output_dir``.
    """
    return _run("pipeline", config)


@takes_options(NewModelConfig)
def new_model(config: NewModelConfig) -> Path:
    """Create a model folder with a configuration of your own, to pretrain from scratch, and return it."""
    _run("new-model", config)
    return Path(config.output_dir)


@takes_options(PretrainConfig)
def pretrain(config: PretrainConfig) -> "PretrainResult":
    """Pretrain an ERNIE model on a corpus, from its newest checkpoint if there is one.

    The ``model_last`` of the result is the folder whose static_vars `convert` takes. Paddle is in the dynamic
    graph afterwards.
    """
    from ernie_pair.runtime.paddle_patches.process_groups import dynamic_afterwards

    with dynamic_afterwards():
        return _run("pretrain", config)


@takes_options(ConvertConfig)
def convert(config: ConvertConfig) -> "Conversion":
    """Convert pretrained static weights to a model folder, and return the folder and the differences.

    These are {output: {batch: the largest difference from the static model}}.
    """
    return _run("convert", config)


@takes_options(TrainConfig)
def train(config: TrainConfig) -> "TrainResult":
    """Train a sentence-pair classifier on files, and return what `PairTrainer.train` does.

    `PairTrainer` takes lists, DataFrames and models in memory, and answers afterwards.
    """
    return _run("train", config)


@takes_options(TrainEmbeddingConfig)
def train_embedding(config: TrainEmbeddingConfig) -> "TrainResult":
    """Train a sentence-embedding model on files, and return what `EmbeddingTrainer.train` does."""
    return _run("train-embedding", config)


@takes_options(  # without a file, the pairs are datasets
    DistillConfig,
    StudentConfig,
    choose=lambda options: DistillConfig if "train_file" in options else StudentConfig,
)
def distill(
    config: StudentConfig,
    train_dataset: "Optional[PairDataset]" = None,
    eval_dataset: "Optional[PairDataset]" = None,
    unlabelled_dataset: "Optional[PairDataset]" = None,
    *,
    callbacks: "Sequence[Union[PairCallback, Type[PairCallback]]]" = (),
) -> "TrainResult":
    """Train a smaller classifier from a trained one; the best model of the result is the student.

        from ernie_pair import distill

        files = {"train_file": "train.tsv", "dev_file": "dev.tsv"}
        print(distill(output_dir="small", teacher="output/best", layers=4, **files).best_model)

    Datasets, in any form that `PairTrainer` accepts, may replace the files. Rows of ``train_dataset`` may
    lack a label (None); labels of ``unlabelled_dataset`` are ignored. ``callbacks``: see PairCallback.

        pairs = [("怎么开户", "如何开户", 1), ("怎么开户", "今天下雨", None)]
        distill(StudentConfig("small", teacher="output/best"), pairs, "dev.tsv", callbacks=[Stop])

    Under `paddle.distributed.launch` or `notebook_launcher` all processes must make the same call.
    Ctrl-C finishes the current step, saves, and raises KeyboardInterrupt.
    """
    from ernie_pair.pairs.distill.distill import distill_pair

    datasets = {"train": train_dataset, "dev": eval_dataset, "unlabelled": unlabelled_dataset}
    return distill_pair(config, datasets, callbacks)


@takes_options(CrossValidateConfig)
def cross_validate(config: CrossValidateConfig) -> "CrossValidation":
    """Cross-validate a classifier: each fold is predicted by the run that has not seen it."""
    return _run("cross-validate", config)


@takes_options(SearchParamsConfig)
def search_params(config: SearchParamsConfig) -> "Study":
    """Search for the best training options, and return all trials and the best of them."""
    return _run("search-params", config)


def _by_folder(command: str, **classes: Type[Options]) -> Callable[[Dict[str, Any]], Type[Options]]:
    """Return what chooses the class of a command's options by the folder of model_path, as the command does.

    ``classes``: {the last word of a form: its class}, of models of pairs first.
    """
    forms = dict(zip((command, *(f"{command} {kind}" for kind in list(classes)[1:])), classes.values()))

    def choose(options: Dict[str, Any]) -> Type[Options]:
        from ernie_pair.models.model_folder import kind_of_folder

        folder = str(options.get("model_path") or "")
        return forms[form_of_model(options, folder, forms, kind_of_folder)]

    return choose


@takes_options(
    EvaluateConfig,
    EvaluateEmbeddingConfig,
    EvaluateMlmConfig,
    choose=_by_folder(
        "evaluate", pairs=EvaluateConfig, embedding=EvaluateEmbeddingConfig, mlm=EvaluateMlmConfig
    ),
)
def evaluate(config: Union[EvaluateConfig, EvaluateEmbeddingConfig, EvaluateMlmConfig]) -> Dict[str, Any]:
    """Measure a model of pairs, of vectors or of masked words, and return the metrics.

    They are what ``output_file`` holds where it is given: of pairs accuracy, f1, auc, loss, rows and more, of
    vectors ``metrics`` and those of each length in ``dims``. Of several processes the first returns them.
    """
    if isinstance(config, EvaluateMlmConfig):
        return _run("evaluate mlm", config)
    return _run("evaluate embedding" if isinstance(config, EvaluateEmbeddingConfig) else "evaluate", config)


@takes_options(EvaluateMlmConfig)
def evaluate_mlm(config: EvaluateMlmConfig) -> Dict[str, Any]:
    """Measure how well a pretrained model predicts masked tokens and sentence order of held-out text.

    Losses are in nats: means over the masked tokens, and over the samples for the sentence order, which is
    omitted if the model has no head for it or ``binary_head`` is False.
    """
    return _run("evaluate mlm", config)


@takes_options(PredictConfig, returned="output_file")
def predict(config: PredictConfig) -> List[Dict[str, Any]]:
    """Predict the labels of pairs, and return a row for each: its index, its prediction, and its label.

        from ernie_pair import predict

        (row,) = predict(model_path="ship", pair=["怎么开户", "如何开户"], scores=True)
        print(row["prediction"], row["probability_1"])

    A row is what a row of ``output_file`` holds, which is written where it is given: the class, or the score
    of a model without classes, the ``predicted_label`` of a model whose classes have names, with ``scores``
    the probabilities, to six digits, and what ``columns`` names of the input. The prediction of a row that is
    skipped is None. `PairPredictor` and `PairTrainer` take lists of pairs and return arrays.
    """
    from ernie_pair.evaluation.predict_pair import predict_pair, predicted_rows, read_predictions

    if config.output_file in (DASH, NOWHERE):
        return predicted_rows(config)
    predict_pair(config)
    return read_predictions(Path(config.output_file))


@takes_options(
    ExportConfig,
    ExportEmbeddingConfig,
    choose=_by_folder("export", pairs=ExportConfig, embedding=ExportEmbeddingConfig),
)
def export(config: Union[ExportConfig, ExportEmbeddingConfig]) -> Path:
    """Export a model of pairs or of vectors for use without training code, and return the folder."""
    _run("export embedding" if isinstance(config, ExportEmbeddingConfig) else "export", config)
    return Path(config.output_dir)


@takes_options(EmbedConfig, returned="output_dir")
def embed(config: EmbedConfig) -> "np.ndarray":
    """Compute the vectors of the texts in a file, and return them, float32 [N, D].

    Where ``output_dir`` is given they are written, and what is returned is what is stored there: with the
    precision of ``dtype``. For lists of texts: `open_embedder`.
    """
    from ernie_pair.evaluation.embeddings.embed import embed as command
    from ernie_pair.evaluation.embeddings.embed import vectors_of_file

    if config.output_dir == NOWHERE:
        return vectors_of_file(config)
    from ernie_pair.inference.vector_files import open_vectors

    command(config)
    stored = open_vectors(config.output_dir)
    return stored.rows(0, stored.count)


@takes_options(IndexConfig)
def index(config: IndexConfig) -> Path:
    """Build a search index of texts, and return its folder, for `search` and `PairSearcher`."""
    return _run("index", config)


def _search_of(options: Dict[str, Any]) -> Type[Options]:
    """Return the class of the options of `search`, the answers to whose queries need no file."""
    if "input_file" in options:
        options.setdefault("output_file", NOWHERE)
    return SearchConfig


@takes_options(SearchConfig, choose=_search_of)
def search(config: SearchConfig) -> "Union[List[Hit], List[List[Hit]]]":
    """Search an index, and return the hits of ``text``, or those of each query of ``input_file``.

    A hit has an id, a text, a score and a similarity; the best comes first. `PairSearcher` opens the models
    once for many searches.
    """
    from ernie_pair.retrieval.search_texts import read_hits, search_file, search_texts

    if config.text == TYPED and not config.input_file:
        raise InputError("search has no query; give text or input_file")
    if config.text != TYPED:
        return search_texts(config)
    if config.output_file == NOWHERE:
        return search_file(config)
    search_texts(config)
    return read_hits(Path(config.output_file))


@takes_options(ServeConfig)
def serve(config: ServeConfig) -> None:
    """Serve an exported model over HTTP until a signal ends it; in another thread, as long as the process."""
    _run("serve", config)
