"""Training, evaluation and prediction from Python; the engine is that of the commands."""

import contextlib
from functools import partial
from pathlib import Path
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Type,
    Union,
)

import numpy as np
from paddle import nn

from data_tools.base.errors import InputError
from data_tools.files.nothing_kept import nothing_kept
from ernie_pair.checkpoint.train_state import TrainState
from ernie_pair.device.device import start_training_device
from ernie_pair.inference.scores import scores_of
from ernie_pair.inference.softmax import decide, refuse_threshold, refuse_threshold_out_of_range
from ernie_pair.inference.token_rows import WINDOW
from ernie_pair.model_files.labels import RANKING
from ernie_pair.model_files.pair_symmetry import score_pairs
from ernie_pair.model_files.source import model_folder_of
from ernie_pair.model_files.temperature import Calibration, read_calibration
from ernie_pair.pair.config.pair_config import PairConfig
from ernie_pair.pair.data.encoded_pairs import encode_texts, open_tokenizer
from ernie_pair.pair.data.in_memory_pairs import held
from ernie_pair.pair.data.pair_file import BadRow, chunks_of
from ernie_pair.pair.data.rejected import tell_rejected
from ernie_pair.pair.model.classifier import PairClassifier
from ernie_pair.pair.model.kernel_path import choose_path
from ernie_pair.pair.model.logits import logits_of
from ernie_pair.pair.model.plain_model import PlainModel
from ernie_pair.pair.model.saved_model import save_classifier
from ernie_pair.pair.process_group import join_process_group
from ernie_pair.pair.targets.groups import groups_of
from ernie_pair.pair.targets.target_metrics import OF_TARGET, measure_of
from ernie_pair.pair.targets.user_metrics import ComputeMetrics, UserMetrics, refuse_unknown
from ernie_pair.pair.train.callbacks import PairCallback, TrainerState, checked_callback
from ernie_pair.pair.train.datasets import PairData, open_pairs
from ernie_pair.pair.train.export_current import export_current
from ernie_pair.pair.train.given_datasets import PairDataset, is_labelled, open_source, split_first
from ernie_pair.pair.train.given_model import GivenModel, load_best, open_given_model
from ernie_pair.pair.train.initial_model import config_of_model, with_best_metric
from ernie_pair.pair.train.parts import TrainingParts, open_parts
from ernie_pair.pair.train.predictions import Predictions
from ernie_pair.pair.train.train_pair import PairRun
from ernie_pair.processes.collectives import gather_results
from ernie_pair.processes.console import start_missing_console
from ernie_pair.processes.stop_signals import StopSignals, call_with_signals
from ernie_pair.processes.world import launched_world


class TrainResult(NamedTuple):
    """How a run ended: its last step, and its best model with the metrics of that one."""

    step: int
    metrics: Dict[str, float]
    best_metric: Optional[float]
    best_model: Optional[Path]
    is_done: bool  # False: stopped early, or by a callback


class _Asked(NamedTuple):
    """Logits float32 [N, C], labels [N] or None, the bad rows, and the queries int64 [N] of candidates."""

    logits: np.ndarray
    labels: Optional[np.ndarray]
    bad: List[BadRow]
    groups: Optional[np.ndarray] = None


class PairTrainer:
    """Train a pair classifier on ``train_dataset``, and choose the best model on ``eval_dataset``.

        from ernie_pair import PairConfig, PairTrainer

        config = PairConfig("output", epochs=3, batch_size=64, early_stopping_patience=5)
        trainer = PairTrainer("ernie-gram-zh", config, "train.tsv", "dev.tsv")
        print(trainer.train().metrics)
        print(trainer.predict([("怎么开户", "如何开户"), ("今天下雨", "怎么开户")]).classes)

    ``model``: a name or a folder, as for the command, or a PairClassifier with its ``vocab_file``; the latter
    keeps its own dropout, whatever ``config`` says. Or any other `paddle.nn.Layer` with its ``vocab_file``,
    of your own or of PaddleNLP, whose forward(input_ids, token_type_ids) returns logits [B, C]: it is trained
    from the weights that it has. ``weights``: the folder of an earlier model of your own class, whose weights
    the layer gets first.

    A dataset: a file or a named set, as for the command, a Hugging Face dataset, a pandas DataFrame, or a
    list, generator or other iterable of dictionaries or of (text, text, label). An iterator of training pairs
    is read into memory; with ``streaming`` the training pairs are not, and must be readable more than once.
    ``compute_metrics`` takes an EvalPrediction and returns a dictionary that is added to the built-in
    metrics; best_metric may be one of its names.
    ``callbacks``: see PairCallback. ``state``: the TrainerState of the last run.

    Under `paddle.distributed.launch` or `notebook_launcher` all processes must make the same calls. Raises an
    ErniePairError, such as InputError, for whatever the user can fix; the call that fails raises it, on all
    processes.
    """

    def __init__(
        self,
        model: GivenModel,
        config: PairConfig,
        train_dataset: Optional[PairDataset] = None,
        eval_dataset: Optional[PairDataset] = None,
        *,
        compute_metrics: Optional[ComputeMetrics] = None,
        callbacks: Sequence[Union[PairCallback, Type[PairCallback]]] = (),
        vocab_file: Union[str, Path, None] = None,
        weights: Union[str, Path, None] = None,
    ):
        _refuse_wrong_types(model, config, compute_metrics)
        self.callbacks, self.compute_metrics = list(map(checked_callback, callbacks)), compute_metrics
        self.state = TrainerState()
        self.train_dataset = train_dataset if config.streaming else held(train_dataset)
        self.eval_dataset = held(eval_dataset)
        self.world = launched_world()
        start_missing_console(self.world)
        self._device = start_training_device(config, self.world)
        self._open = partial(open_given_model, model, config, vocab_file, weights)
        self._start = self._open()
        is_folder = isinstance(model, (str, Path)) and Path(model).is_dir()
        if isinstance(self.model, PairClassifier) and not isinstance(model, (str, Path)):
            config = config_of_model(config, self.model)
        self.config = with_best_metric(config, self._start, compute_metrics is not None)
        self._has_begun = False
        self._casting: Callable[[], ContextManager[Any]] = contextlib.nullcontext
        # Where the weights of the model lie, and a calibration.json may: changed weights lie nowhere.
        lies_in = weights or (model if is_folder else None)
        self._folder = model_folder_of(Path(str(lies_in))) if lies_in else None

    @property
    def model(self) -> Union[PairClassifier, PlainModel]:
        """Return the model: after `train` the best one; before it, and in callbacks, the current one.

        The given layer has the same weights at any time.
        """
        return self._start.model

    def add_callback(self, callback: Union[PairCallback, Type[PairCallback]]) -> None:
        """Add a callback, given as an instance or a class. Raises InputError for anything else."""
        self.callbacks.append(checked_callback(callback))

    def save_model(self, folder: Union[str, Path]) -> None:
        """Write the current model to ``folder``, completely or not at all.

        `PairTrainer`, the commands and PaddleNLP's from_pretrained can load it, except PaddleNLP if the model
        uses mean pooling; a layer of your own only `PairTrainer` with ``weights``. The calibration of
        unchanged weights is saved with it. An earlier saved model without added files is replaced. Raises
        InputError if ``folder`` contains anything else, MachineError if it cannot be written.
        """
        all_reduce = join_process_group(self.world).all_reduce
        vocab_file, max_seq_len = self._start.source.vocab_file, self.config.max_seq_len

        def save() -> None:
            if self.world.is_first:
                save_classifier(Path(folder), self.model, vocab_file, max_seq_len, self._folder)

        gather_results(all_reduce, self.world, save)

    def export(self, folder: Union[str, Path], **flags: Any) -> None:
        """Export the current model to ``folder``, as ``ernie-pair export`` does; see `PairPredictor`.

        ``flags``: those of `ExportConfig`, such as format="onnx". Raises InputError for what cannot be
        exported or would be lost, CheckpointError if the export answers differently from the model.
        """
        all_reduce = join_process_group(self.world).all_reduce
        vocab_file, max_seq_len = self._start.source.vocab_file, self.config.max_seq_len

        def export() -> None:
            if self.world.is_first:
                export_current(Path(folder), self.model, vocab_file, max_seq_len, self._folder, flags)

        gather_results(all_reduce, self.world, export)

    def train(self) -> TrainResult:
        """Train, or resume from the newest checkpoint in ``config.output_dir``; do nothing if it is finished.

        With ``dry_run``, print the plan of the run, write nothing and leave the model unchanged.
        Ctrl-C finishes the current step, saves, and raises KeyboardInterrupt.
        """
        if self.config.dry_run:
            return call_with_signals(self._plan, is_launched=self.world.size > 1)
        self._begin()
        return call_with_signals(self._train, is_launched=self.world.size > 1)

    def open_parts(self) -> TrainingParts:
        """Return model, optimizer, data and schedule, for your own training loop in one process.

        `evaluate`, `predict` and `save_model` then use the model of that loop. Raises InputError with
        several processes.
        """
        if self.world.size > 1:
            raise InputError(
                "open_parts is for one process; call train, which averages gradients over several"
            )
        self._begin()
        return open_parts(self.config, self.model, self._open_data())

    def evaluate(
        self, eval_dataset: Optional[PairDataset] = None, *, symmetric: str = "auto"
    ) -> Dict[str, float]:
        """Return the metrics of the model on labelled pairs, the same on all processes.

        The pairs are read once. ``symmetric``: see ``predict``.
        """
        chosen = self._calibration().chosen_symmetry(symmetric, str(self._folder))
        return self._evaluate(self.eval_dataset if eval_dataset is None else eval_dataset, chosen)

    def _evaluate(self, dataset: Optional[PairDataset], symmetric: str) -> Dict[str, float]:
        found = self._ask(self._pairs_of("dev", dataset), symmetric)
        assert found.labels is not None  # the source is read with them
        return self._measure(found.groups)(found.logits, found.labels)

    def predict(
        self, dataset: PairDataset, *, threshold: Optional[float] = None, symmetric: str = "auto"
    ) -> Predictions:
        """Predict the class, or the score, of every pair; labels are used if the first row has one.

        ``threshold``: with two classes, the probability at or above which a pair is of class 1; None: that of
        calibration.json in the folder of the model if there is one, otherwise the more probable class.
        ``symmetric``: average scores (a, b) and (b, a) and takes the mean of the logits, none scores only
        (a, b), auto follows calibration.json. The pairs are read once, and are never all in memory. Raises
        InputError for rows that are not pairs of texts.
        """
        saved = self._calibration()
        refuse_threshold_out_of_range(threshold)
        refuse_threshold(threshold, self.model.num_classes, "the model")
        chosen = saved.chosen_symmetry(symmetric, str(self._folder))
        first, dataset = split_first(dataset)
        labelled = is_labelled(self._pairs_of("test", first))
        logits, labels, bad, groups = self._ask(self._pairs_of("test", dataset, labelled), chosen)
        metrics = {} if labels is None else self._measure(groups)(logits, labels)
        meant = self._start.source.spec.labels
        if not meant.has_classes:
            scores = scores_of(logits, meant.label_range)
            return Predictions.of_scores(logits, labels, metrics, scores).with_bad_rows(bad)
        decided = decide(logits, saved.temperature, saved.threshold if threshold is None else threshold)
        names = [meant.names[number] for number in decided.classes]
        found = Predictions(logits, labels, metrics, decided.classes, names, decided.probabilities)
        return found.with_bad_rows(bad)

    def _calibration(self) -> Calibration:
        """Return what was saved beside the weights that the model has."""
        if self._folder is None:
            return Calibration(symmetric=self.config.scored_as)
        return read_calibration(self._folder, self.model.num_classes)

    def _begin(self) -> None:
        if self._has_begun:
            self._start = self._open()  # an earlier call may have moved the weights
        self._has_begun, self._folder = True, None

    def _open_data(self) -> PairData:
        sources = {
            "train": self._pairs_of("train", self.train_dataset),
            "dev": self._pairs_of("dev", self.eval_dataset),
        }
        if self.compute_metrics is None:
            refuse_unknown(self.config.best_metric, OF_TARGET[self.model.spec.target].names)
        return open_pairs(self.config, sources, self._start.source, self.world)

    def _plan(self, signals: StopSignals) -> TrainResult:
        """Let the run print its plan; its steps move the weights, which are put back."""
        before = {name: value.numpy() for name, value in self.model.state_dict().items()}
        try:
            with nothing_kept():
                run = self._open_run()
                state = run.train(signals)
        finally:
            if self.config.narrows_weights:
                self.model.float()  # the run has narrowed the weights, and arrays of float32 are put back
            self.model.set_state_dict(before)
        return TrainResult(state.step, {}, state.best_metric, None, state.step == run.job.total_steps)

    def _train(self, signals: StopSignals) -> TrainResult:
        run = self._open_run()
        self._casting, self.state = run.job.precision.casting, run.state
        return self._result(run, run.train(signals))

    def _open_run(self) -> PairRun:
        return PairRun(
            self.config,
            self._start,
            self._open_data(),
            self.world,
            self._device,
            compute_metrics=self.compute_metrics,
            callbacks=self.callbacks,
        )

    def _result(self, run: PairRun, state: TrainState) -> TrainResult:
        best = run.hooks.best.folder()
        metrics = run.hooks.best_metrics
        if best is not None:
            self._folder = best
            load_best(self.model, best)
            metrics = metrics or self._evaluate(self.eval_dataset, self.config.scored_as)
        is_done = state.step == run.job.total_steps
        return TrainResult(state.step, metrics, state.best_metric, best, is_done)

    def _pairs_of(self, split: str, given: Optional[PairDataset], labelled: bool = True):
        """Return a source of pairs; see `open_source`."""
        labels = self._start.source.spec.labels if labelled else None
        return open_source(split, given, self.config, labels)

    def _ask(self, source, symmetric: str) -> _Asked:
        """Return what the model says of all pairs, which are read window by window."""
        bad: List[BadRow] = []
        logits, labels = [], []
        queries: List[str] = []
        for pairs in chunks_of(source.rows(bad.append), WINDOW, source.name):
            logits.append(self._logits_of(pairs, symmetric))
            if pairs.labels is not None:
                labels.append(pairs.labels)
                queries += pairs.queries or pairs.left
        tell_rejected(source.name, bad, sum(map(len, logits)), None)
        if source.labels is None:
            return _Asked(np.concatenate(logits), None, bad)
        is_ranked = source.labels.target == RANKING
        groups = groups_of(queries) if is_ranked else None
        return _Asked(np.concatenate(logits), np.concatenate(labels), bad, groups)

    def _logits_of(self, pairs, symmetric: str) -> np.ndarray:
        return score_pairs(self._logits_of_texts, pairs.left, pairs.right, symmetric)

    def _logits_of_texts(self, left: Sequence[str], right: Sequence[str]) -> np.ndarray:
        source = self._start.source
        tokenizer = open_tokenizer(source.vocab_file, source.spec, self.config.max_seq_len)
        rows = encode_texts(left, right, None, tokenizer, self.config.max_seq_len)
        group = join_process_group(self.world)
        group.barrier()
        choose_path(self.model, self.config, self.config.device, group.size, group.all_reduce)
        with self._casting():
            return logits_of(self.model, rows, self.config.batch_size, group)

    def _measure(self, groups: Optional[np.ndarray]) -> UserMetrics:
        all_reduce = join_process_group(self.world).all_reduce
        measure = measure_of(self._start.source.spec.labels, groups)
        return UserMetrics(measure, self.compute_metrics, self.config.best_metric, self.world, all_reduce)


def _refuse_wrong_types(model, config, compute_metrics) -> None:
    """Raise InputError that names the argument of PairTrainer whose type is wrong."""
    if not isinstance(model, (str, Path, nn.Layer)):
        kind = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        wrong = f"model takes a name, a folder or a paddle.nn.Layer, not {kind}"
    elif not isinstance(config, PairConfig):
        wrong = f"config takes a PairConfig, not {config!r:.60}"
    elif not (compute_metrics is None or callable(compute_metrics)):
        wrong = f"compute_metrics takes a function, not {compute_metrics!r:.60}"
    else:
        return
    raise InputError(f"PairTrainer: {wrong}; correct it")
