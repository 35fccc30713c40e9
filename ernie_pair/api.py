"""The functions of Python that return other than their command does; `commands.COMMANDS` names them.

    from ernie_pair import PrepareConfig, prepare

    prepare(input_path="raw/", output_prefix="data/baike", vocab_file="vocab.txt", chinese=True)
    prepare(PrepareConfig("raw/", "data/baike", vocab_file="vocab.txt", chinese=True))  # the same

The options are those of the command, and mean the same. A function prints nothing unless ``verbose=True``,
and raises an `ErniePairError` for whatever the user can fix. What has been done before is not done again, but
returned. Training may be started by a launcher, as that of the commands; otherwise it is done in this
process. Outside the main thread, signals are left to the caller.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Set, Type, Union

from ernie_pair.core.cli.options import DASH, Options
from ernie_pair.core.cli.python_call import NOWHERE, checks_names, takes_options
from ernie_pair.core.errors import InputError
from ernie_pair.embeddings.embed_config import EmbedConfig
from ernie_pair.pairs.config.ask_config import PredictConfig
from ernie_pair.pairs.config.distill_config import DistillConfig, StudentConfig
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.retrieval.search_texts import TYPED, SearchConfig

if TYPE_CHECKING:  # what loads Paddle, or is only returned
    import numpy as np

    from ernie_pair.inference.embedder import TextEmbedder
    from ernie_pair.inference.predictor import PairScorer
    from ernie_pair.pairs.train.trainer import PairDataset
    from ernie_pair.pretraining.pretrain import PretrainResult
    from ernie_pair.retrieval.searcher import Hit, PairSearcher
    from ernie_pair.training.callbacks import PairCallback
    from ernie_pair.training.task import TrainResult


# The options of `load` that not every kind of folder takes, as they are when left out; and of which they are.
LEFT_OUT: Dict[str, Any] = {
    "threshold": None,
    "symmetric": "auto",
    "window_overlap": 0,
    "embedding_model": "",
    "reranker": "",
}
OF_KIND: Dict[str, Set[str]] = {
    "a model of pairs": {"threshold", "symmetric", "window_overlap"},
    "an embedding model": set(),
    "an index": {"threshold", "window_overlap", "embedding_model", "reranker"},
}


@checks_names
def load(
    folder: Union[str, Path],
    device: str = "cpu",
    threads: int = 0,
    *,
    threshold: Optional[float] = None,
    symmetric: str = "auto",
    batch_tokens: int = 0,
    window_overlap: int = 0,
    embedding_model: Union[str, Path] = "",
    reranker: Union[str, Path] = "",
) -> "Union[PairScorer, TextEmbedder, PairSearcher]":
    """Open a folder, trained, exported or published, for many calls: of pairs, of vectors, or an index.

        from ernie_pair import load

        model = load("output/pair/best")
        found = model.predict([("怎么开户", "如何开户"), ("今天下雨", "怎么开户")])
        print(found.labels, found.probabilities, found.scores)

    A run stands for its best model. A model of pairs has ``predict``, ``score``, ``rank`` and ``explain``, an
    embedding model ``embed`` and ``rank``, an index ``search``, each of them ``evaluate``; what a folder
    cannot do raises InputError, which names the folder that can. ``device``: cpu or gpu. ``threads``: of one
    forward pass on a CPU, 0: those of this process. ``threshold``: with two classes, the probability at or
    above which a pair is of class 1, of an index the least score of a hit, None: as the folder says.
    ``symmetric``: average scores (a, b) and (b, a), none only (a, b), auto as the folder says.
    ``batch_tokens``: most tokens in one forward pass, 0: what suits the device. ``window_overlap``: second
    texts longer than the model reads are scored in windows that share so many tokens, and the best counts, 0:
    they are cut; see `PairScorer.use_windows`. ``embedding_model`` and ``reranker``: of an index, see
    `PairSearcher`. For another backend or precision of an exported model see `PairPredictor`, for further
    options of vectors `open_embedder`. Raises an ErniePairError.
    """
    from ernie_pair.core.files.hub import local_model
    from ernie_pair.embeddings.open_embedder import open_embedder
    from ernie_pair.evaluation import scorer
    from ernie_pair.inference.embedder import EmbedderOptions
    from ernie_pair.models.model_folder import EXPORTED, kind_of_folder
    from ernie_pair.retrieval.index_folder import INDEX_MANIFEST
    from ernie_pair.retrieval.searcher import PairSearcher

    path = Path(local_model(str(Path(folder).expanduser())))
    given = dict(zip(LEFT_OUT, (threshold, symmetric, window_overlap, embedding_model, reranker)))
    kind = "a model of pairs"
    if (path / INDEX_MANIFEST).is_file():
        kind = "an index"
    elif not (path / EXPORTED).is_file() and kind_of_folder(str(path)) == "embedding":
        kind = "an embedding model"
    asked: Dict[str, Any] = {name: value for name, value in given.items() if value != LEFT_OUT[name]}
    idle = [name for name in asked if name not in OF_KIND[kind]]
    if idle:
        raise InputError(f"--{idle[0]} is not for {kind}, which {folder} is; leave it out")
    if kind == "an embedding model":
        return open_embedder(path, device, EmbedderOptions(threads=threads, batch_tokens=batch_tokens))
    asked.update(device=device, threads=threads, batch_tokens=batch_tokens)
    if kind == "an index":
        return PairSearcher(path, asked.pop("embedding_model", ""), **asked)
    return scorer.load(path, **asked)


@takes_options(PretrainConfig)
def pretrain(config: PretrainConfig) -> "PretrainResult":
    """Pretrain an ERNIE model on a corpus, from its newest checkpoint if there is one.

    The ``model_last`` of the result is the folder whose static_vars `convert` takes. Paddle is in the dynamic
    graph afterwards.
    """
    from ernie_pair.pretraining.pretrain import pretrain as command
    from ernie_pair.runtime.paddle_patches.process_groups import dynamic_afterwards

    with dynamic_afterwards():
        return command(config)


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
