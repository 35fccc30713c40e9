"""Training an embedding model from Python; the engine is that of the command."""

from pathlib import Path
from typing import Any, Mapping, Optional, Sequence, Union

import numpy as np

from ernie_pair.core.errors import InputError
from ernie_pair.core.files.atomic_files import keep_no_results
from ernie_pair.embeddings.embed_config import AUTO
from ernie_pair.embeddings.open_embedder import EmbedderOptions, open_embedder
from ernie_pair.embeddings.retrieval import build_retrieval_set, measure_retrieval
from ernie_pair.embeddings.train.embedding_config import USUAL_LENGTH, EmbeddingConfig
from ernie_pair.embeddings.train.embedding_data import Dataset, labelled, source_of
from ernie_pair.embeddings.train.train_embedding import EmbeddingTask
from ernie_pair.inference.embedder import TextEmbedder
from ernie_pair.inference.pair_tokenizer import PairTokenizer
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.models.embedding_json import EMBEDDING
from ernie_pair.models.model_folder import resolve_model_folder
from ernie_pair.models.networks.text_encoder import TextEncoder
from ernie_pair.models.sentence_transformers import is_sentence_folder
from ernie_pair.pairs.data.in_memory_pairs import held
from ernie_pair.pairs.data.rejected import log_rejected
from ernie_pair.runtime.device import start_training_device
from ernie_pair.runtime.processes.console import start_missing_console
from ernie_pair.runtime.processes.stop_signals import StopSignals, call_with_signals
from ernie_pair.runtime.processes.world import launched_world
from ernie_pair.training.callbacks import PairCallback, TrainerState, checked_callback
from ernie_pair.training.task import TaskTrainer, TrainResult


class EmbeddingTrainer:
    """Train a text encoder on ``train_dataset``, and choose the best model on ``eval_dataset``.

        from ernie_pair import EmbeddingConfig, EmbeddingTrainer

        config = EmbeddingConfig("output", temperature=0.05, dims="64,128")
        trainer = EmbeddingTrainer("ernie-gram-zh", config, "train.tsv", "dev.tsv")
        print(trainer.train().metrics["recall_at_10"])
        print(trainer.embed(["怎么开户", "如何开户"]).shape)

    ``model``: a name or a folder, as for the command. A dataset: labelled pairs, with label 1 for texts that
    belong together, as a file, a named set, a list of (text, text, label) or of dictionaries, a Hugging Face
    dataset or a DataFrame; or rows without labels, (text, match), {"query", "pos": [...], "neg": [...]} or
    {"anchor", "positive", "negative_1", ...}. With ``objective="simcse"`` a list of texts or a text file is
    enough for training.
    A dictionary of several, with an objective for each ("pairs,cosent"), is trained on together.
    ``negatives``: pairs (text, hard negative of it). ``callbacks``: see PairCallback. ``state``: the
    TrainerState of the last run. Under `paddle.distributed.launch` all processes must make the same calls.
    Raises an ErniePairError, such as InputError, for whatever the user can fix.
    """

    def __init__(
        self,
        model: Union[str, Path],
        config: EmbeddingConfig,
        train_dataset: Union[Dataset, Mapping[str, Any], None] = None,
        eval_dataset: Optional[Dataset] = None,
        *,
        negatives: Optional[Dataset] = None,
        callbacks: Sequence[Union[PairCallback, type[PairCallback]]] = (),
    ):
        self.callbacks, self.state = list(map(checked_callback, callbacks)), TrainerState()
        self.config, self._model, self._negatives = config, str(model), held(negatives)
        if isinstance(train_dataset, Mapping):
            train_dataset = {name: held(one) for name, one in train_dataset.items()}
        self.train_dataset, self.eval_dataset = held(train_dataset), held(eval_dataset)
        self.world = launched_world()
        start_missing_console(self.world)
        self._device = start_training_device(config, self.world)
        self._folder = Path(self._model)
        self._embedder: Optional[TextEmbedder] = None

    def train(self) -> TrainResult:
        """Train, or resume from the newest checkpoint in ``config.output_dir``; do nothing if it is finished.

        With ``dry_run``, print the plan of the run and write nothing.
        Ctrl-C finishes the current step, saves, and raises KeyboardInterrupt.
        """
        return call_with_signals(self._train, is_launched=self.world.size > 1)

    def _train(self, signals: StopSignals) -> TrainResult:
        with keep_no_results(self.config.dry_run):
            run = self._open_run()
            self.state = run.progress
            state = run.train(signals)
        if self.config.dry_run:
            return run.result({})
        best, metrics = run.best.folder(), run.best_metrics
        if best is not None:
            self._folder, self._embedder = best, None
            metrics = metrics or self.evaluate()
        elif state.step:  # no evaluation chose one
            self._folder, self._embedder = Path(self.config.output_dir) / "model_last", None
        return run.result(metrics)

    def _open_run(self) -> TaskTrainer:
        if self.train_dataset is None or self.eval_dataset is None:
            raise InputError("there is no train_dataset or no eval_dataset; give both to EmbeddingTrainer")
        given = {"train": self.train_dataset, "dev": self.eval_dataset, "negatives": self._negatives}
        task = EmbeddingTask(self.config, self._model, given)
        task.open_model()
        task.open_data(self.world)
        return TaskTrainer(task, self.world, self._device, self.callbacks)

    @property
    def embedder(self) -> TextEmbedder:
        """Return the embedder: the best model after `train`, the given model before it."""
        if self._embedder is None:
            config = self.config
            kernels = KernelFlags(
                kernels=config.kernels, precision=config.precision if config.device == "cpu" else "fp32"
            )
            pooling, length = "", 0
            if not (self._folder / EMBEDDING).is_file():  # untrained: as it would be trained
                pooling = "" if config.pooling == AUTO else config.pooling
                length = config.max_seq_len or (0 if is_sentence_folder(self._folder) else USUAL_LENGTH)
            size = config.eval_batch_size
            options = EmbedderOptions(pooling=pooling, max_seq_len=length, batch_size=size)
            self._embedder = open_embedder(self._folder, config.device, options, kernels)
        return self._embedder

    @property
    def model(self) -> TextEncoder:
        """Return the encoder, a layer of Paddle: the best model after `train`, the given model before it."""
        layer = self.embedder.model.layer
        if layer.fused_state is not None:
            layer.fused_state.is_constant = False  # from now on others may change its weights
        return layer

    @property
    def tokenizer(self) -> PairTokenizer:
        """Return the tokenizer of the model, which cuts texts as `embed` does."""
        return PairTokenizer(resolve_model_folder(self._folder), self.embedder.max_seq_len)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of ``texts``, float32 [N, D], with norm 1; see `TextEmbedder.embed`."""
        return self.embedder.embed(texts)

    def evaluate(self, eval_dataset: Optional[Dataset] = None) -> dict[str, float]:
        """Return how well texts find their matches; see `measure_retrieval`. Each process computes it."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if dataset is None:
            raise InputError("there is no eval_dataset; give it to EmbeddingTrainer")
        source = labelled(self.config, source_of(self.config, "dev", dataset), self.config.has_graded_dev)
        pairs = source.read()
        log_rejected(source.name, pairs.bad, len(pairs), None)
        retrieval = build_retrieval_set(pairs, source.name)
        one = self.embedder
        asked = one.embed_queries(retrieval.texts) if one.has_roles else None
        return measure_retrieval(one.embed_passages(retrieval.texts), retrieval, asked)
