"""Training, evaluation and prediction from Python; the engine is that of the commands."""

import contextlib
import time
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Callable, ContextManager, Iterator, NamedTuple, Optional, Sequence, Union

import numpy as np
import paddle
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from ernie_pair.core.errors import InputError
from ernie_pair.core.files.atomic_files import keep_no_results
from ernie_pair.inference.pair_tokenizer import PairTokenizer, ShownPair
from ernie_pair.inference.scores import PROBABILITY, Prediction, check_threshold, predict_from
from ernie_pair.inference.token_rows import WINDOW, EncodedPairs
from ernie_pair.models.labels import RANKING, Labels
from ernie_pair.models.model_folder import resolve_model_folder
from ernie_pair.models.networks.classifier import PairClassifier
from ernie_pair.models.networks.custom_model import CustomModel, save_classifier
from ernie_pair.models.networks.encoders import predict_logits
from ernie_pair.models.networks.kernel_path import choose_path
from ernie_pair.models.temperature import Calibration, read_calibration, score_pairs
from ernie_pair.pairs.config.pair_config import PairConfig
from ernie_pair.pairs.data.encoded_pairs import DataCollator, UserCollator, encode_pairs, encode_texts
from ernie_pair.pairs.data.in_memory_pairs import (
    ARGUMENTS,
    PairDataset,
    TokenForm,
    TokenizedPairs,
    held,
    is_one_shot,
    open_source,
    split_first,
)
from ernie_pair.pairs.data.label_checks import LabelQuestion
from ernie_pair.pairs.data.pair_file import BadRow, read_chunks
from ernie_pair.pairs.data.rejected import log_rejected
from ernie_pair.pairs.targets.metrics import (
    OF_TARGET,
    ComputeMetrics,
    check_best_metric,
    choose_measure,
    measure_with,
    number_texts,
)
from ernie_pair.pairs.train import initial_model, overrides
from ernie_pair.pairs.train.datasets import PairData, is_labelled, open_pairs, rows_of_source, words_of_pairs
from ernie_pair.pairs.train.loss import PairLoss, loss_of
from ernie_pair.pairs.train.own_loop import TrainingParts
from ernie_pair.pairs.train.train_pair import PairTask
from ernie_pair.runtime.device import start_training_device
from ernie_pair.runtime.paddle_patches.optimizer_state import scheduler_in
from ernie_pair.runtime.processes.console import start_missing_console
from ernie_pair.runtime.processes.stop_signals import StopSignals, call_with_signals
from ernie_pair.runtime.processes.world import gather_results, launched_world
from ernie_pair.training.callbacks import PairCallback, TrainerControl, TrainerState, checked_callback
from ernie_pair.training.process_group import join_process_group
from ernie_pair.training.task import TaskTrainer, TrainResult
from ernie_pair.training.training_step import open_optimizer


class _Outputs(NamedTuple):
    """Logits float32 [N, C], labels [N] or None, the bad rows, and the queries int64 [N] of candidates."""

    logits: np.ndarray
    labels: Optional[np.ndarray]
    bad: list[BadRow]
    groups: Optional[np.ndarray] = None


@dataclass(frozen=True, eq=False)
class Predictions(Prediction):
    """The prediction of a trainer; `predictions, label_ids, metrics = found` takes it apart.

    ``predictions`` are the logits, as everywhere in Transformers and PaddleNLP. Without labels, ``label_ids``
    is None and ``metrics`` are the times alone. With on_bad_row="skip" a row that is no pair has the class
    and the label -1, NaN for numbers and the name ''.
    """

    predictions: np.ndarray  # the logits, float32 [N, C]
    label_ids: Optional[np.ndarray]  # classes int64 [N], or scores float64 [N]
    metrics: dict[str, float]  # of the likeliest classes, or of the scores; runtime, samples_per_second

    def __iter__(self) -> Iterator[Any]:
        """Iterate over (predictions, label_ids, metrics)."""
        return iter((self.predictions, self.label_ids, self.metrics))

    def __getitem__(self, index: Union[int, slice]) -> Any:
        """Return one of (predictions, label_ids, metrics), or several."""
        return tuple(self)[index]

    def with_bad_rows(self, bad: Sequence[BadRow]) -> "Predictions":
        """Return these predictions with an empty one in place of each row that was left out."""
        if not bad:
            return self
        count = len(self.predictions) + len(bad)
        places = np.setdiff1d(np.arange(count), [row.place for row in bad])

        def spread(values: Optional[np.ndarray], empty: object) -> Any:
            """Return ``values`` [N, ...] in their places among all rows, the others ``empty``."""
            if values is None:
                return None
            shape: tuple[int, ...] = (count, *values.shape[1:])
            all_rows = np.full(shape, empty, dtype=values.dtype)
            all_rows[places] = values
            return all_rows

        numbers = {name: spread(getattr(self, name), np.nan) for name in ("predictions", "scores")}
        if self.labels is None:
            return replace(self, **numbers, label_ids=spread(self.label_ids, np.nan))
        names = spread(np.array(self.labels, dtype=object), "").tolist()
        classes = {name: spread(getattr(self, name), -1) for name in ("classes", "label_ids")}
        probabilities = spread(self.probabilities, np.nan)
        return replace(self, **numbers, **classes, labels=names, probabilities=probabilities)


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

    A dataset: a file or a named set, as for the command, a
    Hugging Face dataset, a pandas DataFrame, or a list, generator or other iterable of dictionaries or of
    (text, text, label). An iterator of training pairs is read into memory; with ``streaming`` the training
    pairs are not, and must be readable more than once. A row may be token ids that ``tokenizer`` or
    PaddleNLP's tokenizer of the model has made: {"input_ids": [...], "token_type_ids": [...], "labels": 1},
    or (input_ids, token_type_ids, label). ``data_collator`` takes such dictionaries, the rows of a batch
    without padding, and returns {"input_ids": [B, S], ...}. ``compute_metrics`` takes an EvalPrediction and
    returns a dictionary that is added to the built-in metrics; best_metric may be one of its names.
    ``compute_loss_func`` takes the outputs of the model, with their ``logits``, and the labels, and returns
    the loss; a loss layer of Paddle's gets the logits. ``optimizers``: an optimizer of Paddle's over
    parameters of ``model``, and a scheduler, which each step moves once; None: as ``config`` says.
    ``callbacks``: see PairCallback. ``state``: the TrainerState of the last run.

    A subclass may override `compute_loss`, `create_optimizer`, `create_scheduler`, `get_train_dataloader`,
    `evaluate` and `log`, as of the Trainer of transformers and PaddleNLP; others of theirs are refused.

    Under `paddle.distributed.launch` or `notebook_launcher` all processes must make the same calls. Raises an
    ErniePairError, such as InputError, for whatever the user can fix; the call that fails raises it, on all
    processes.
    """

    def __init__(
        self,
        model: initial_model.GivenModel,
        config: PairConfig,
        train_dataset: Optional[PairDataset] = None,
        eval_dataset: Optional[PairDataset] = None,
        *,
        data_collator: Optional[DataCollator] = None,
        compute_metrics: Optional[ComputeMetrics] = None,
        compute_loss_func: Optional[Callable[[Any, Any], Any]] = None,
        optimizers: tuple[Optional[Optimizer], Optional[LRScheduler]] = (None, None),
        callbacks: Sequence[Union[PairCallback, type[PairCallback]]] = (),
        vocab_file: Union[str, Path, None] = None,
        weights: Union[str, Path, None] = None,
    ):
        self.overridden = overrides.overridden_methods(self, PairTrainer)
        self.compute_loss_func, (self.optimizer, self.lr_scheduler) = compute_loss_func, optimizers
        self._optimizers, self.has_used_flags = tuple(optimizers), False
        self._flags_loss: Optional[PairLoss] = None  # that of the run, for `compute_loss`
        self._run_data: Optional[PairData] = None  # of a run that is being opened
        self.callbacks, self.compute_metrics = list(map(checked_callback, callbacks)), compute_metrics
        self.data_collator, self.state = data_collator, TrainerState()
        self.train_dataset = train_dataset if config.streaming else held(train_dataset)
        self.eval_dataset = held(eval_dataset)
        self.world = launched_world()
        start_missing_console(self.world)
        self._device = start_training_device(config, self.world)
        words = partial(self._words, config)
        self._open = partial(initial_model.open_given_model, model, config, vocab_file, weights, words)
        self._start = self._open()
        is_folder = isinstance(model, (str, Path)) and Path(model).is_dir()
        if isinstance(self.model, PairClassifier) and not isinstance(model, (str, Path)):
            config = initial_model.config_of_model(config, self.model)
        self.config = initial_model.with_best_metric(config, self._start, compute_metrics is not None)
        self._has_begun = False
        self._autocast: Callable[[], ContextManager[Any]] = contextlib.nullcontext
        # Where the weights of the model lie, and a calibration.json may: changed weights lie nowhere.
        lies_in = weights or (model if is_folder else None)
        self._folder = resolve_model_folder(Path(str(lies_in))) if lies_in else None
        overrides.check_replaced_flags(self)
        scheduler = self.lr_scheduler or (None if self.optimizer is None else scheduler_in(self.optimizer))
        self._first_rates = scheduler, {} if scheduler is None else dict(scheduler.state_dict())
        self._call_callbacks("on_init_end")

    @property
    def model(self) -> Union[PairClassifier, CustomModel]:
        """Return the model: after `train` the best one; before it, and in callbacks, the current one.

        The given layer has the same weights at any time.
        """
        return self._start.model

    @cached_property
    def tokenizer(self) -> PairTokenizer:
        """Return the tokenizer of the model, which cuts pairs to ``config.max_seq_len`` tokens.

        Raises InputError when it does not fit the model.
        """
        return PairTokenizer(self._start.source, self.config.max_seq_len)

    def show(self, pair: Sequence[str]) -> ShownPair:
        """Return the tokens, ids and segments of a pair of texts, and what of it is cut; printed, a table."""
        return self.tokenizer.show(pair[0], pair[1])

    def train_rows(self) -> Iterator[dict[str, Any]]:
        """Iterate over the training rows as they are read: {sentence1, sentence2, label}, or token ids.

        ``label`` is the class, or the score. Raises InputError naming a row that cannot be read.
        """
        return rows_of_source(self._pairs_of("train", self.train_dataset))

    def eval_rows(self) -> Iterator[dict[str, Any]]:
        """Iterate over the rows of ``eval_dataset``; see ``train_rows``."""
        return rows_of_source(self._pairs_of("dev", self.eval_dataset))

    def encode(self, dataset: PairDataset) -> list[dict[str, Any]]:
        """Return the rows of a dataset as training encodes them: {input_ids, token_type_ids, labels}.

        They are plain lists without padding, and ``labels`` one number, there if the first row has one.
        Raises InputError for rows that cannot be read.
        """
        rows = self._encode(dataset)
        return rows.features(np.arange(len(rows)))

    def collate(self, features: PairDataset) -> dict[str, np.ndarray]:
        """Return a batch of rows of ``encode``, padded to the longest: a collate_fn for paddle.io.DataLoader.

        input_ids and token_type_ids are int64 [B, S], labels [B] int64, of scores float64; they are there if
        the first row has one. Raises InputError for rows that cannot be read.
        """
        rows = self._encode(features)
        batch = rows.padded(np.arange(len(rows)))
        found = {"input_ids": batch.input_ids, "token_type_ids": batch.token_type_ids}
        return found if batch.labels is None else {**found, "labels": batch.labels}

    def _encode(self, dataset: PairDataset) -> EncodedPairs:
        first, dataset = split_first(dataset)
        source = self._pairs_of("test", dataset, is_labelled(self._pairs_of("test", first)))
        found = source.read()
        log_rejected(source.name, found.bad, len(found), None)
        if isinstance(found, EncodedPairs):
            return found
        return encode_pairs(found, self.tokenizer.tokenizer, self.config.max_seq_len)

    def add_callback(self, callback: Union[PairCallback, type[PairCallback]]) -> None:
        """Add a callback, given as an instance or a class. Raises InputError for anything else."""
        self.callbacks.append(checked_callback(callback))

    def save_model(self, folder: Union[str, Path]) -> None:
        """Write the current model to ``folder``, completely or not at all.

        `PairTrainer`, the commands and PaddleNLP's from_pretrained can load it, except PaddleNLP if the model
        uses mean pooling; a layer of your own only `PairTrainer` with ``weights``. The calibration of
        unchanged weights is saved with it. An earlier saved model without added files is replaced. Raises
        InputError if ``folder`` contains anything else, MachineError if it cannot be written.
        """
        self._on_first_rank(lambda: self._save(Path(folder)))

    def export(self, folder: Union[str, Path], **flags: Any) -> None:
        """Export the current model to ``folder``, as ``ernie-pair export`` does; see `PairPredictor`.

        ``flags``: those of `ExportConfig`, such as format="onnx". Raises InputError for what cannot be
        exported or would be lost, CheckpointError if the export answers differently from the model.
        """

        def write() -> None:
            from ernie_pair.deployment.export_config import ExportConfig
            from ernie_pair.deployment.export_pair import export_pair

            device, model = paddle.get_device(), self.model  # an export is made on the CPU
            with TemporaryDirectory(prefix="ernie-pair-") as draft:
                trained = Path(draft) / "trained"
                given = {"model_class": model.spec.model_class, **flags}
                config = ExportConfig(str(trained), str(folder), **given)
                self._save(trained)
                try:
                    export_pair(config, deepcopy(model) if isinstance(model, CustomModel) else None)
                finally:
                    paddle.set_device(device)

        self._on_first_rank(write)

    def _save(self, folder: Path) -> None:
        save_classifier(
            folder, self.model, self._start.source.vocab_file, self.config.max_seq_len, self._folder
        )

    def _on_first_rank(self, write: Callable[[], None]) -> None:
        """Let rank 0 ``write``; what fails there is raised on all ranks."""
        own = write if self.world.is_first else lambda: None
        gather_results(join_process_group(self.world).all_reduce, self.world, own)

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
        """Return model, optimizer, data and schedule, for your own training loop; see `TrainingParts`.

        `evaluate`, `predict` and `save_model` then use the model of that loop. With several processes all of
        them call it. Raises InputError for a flag that such a loop would not honour.
        """
        self._begin()
        run = self._open_run()
        ignored = run.overridden_events - {"on_init_end", "on_predict", "on_prediction_step"}
        if ignored or "log" in self.overridden:
            raise InputError(
                f"{min(ignored) if ignored else type(self).__name__ + '.log'} is called by "
                "PairTrainer.train, and not by a loop of your own; leave it out"
            )
        self._autocast = run.job.autocast
        return TrainingParts(run.job)

    def compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool = False) -> Any:
        """Return the loss of a micro-batch, a tensor []; with ``return_outputs`` also the logits [B, C].

        ``inputs``: input_ids, token_type_ids int64 [B, S] and labels [B]; ``model(**inputs)`` computes as the
        training step does. Without an override it is the loss of the flags.
        """
        if self._flags_loss is None:
            self._flags_loss = loss_of(self.model.spec.labels, self.config, None)
        self.has_used_flags = True
        loss, logits = overrides.compute_flags_loss(self._flags_loss, model, inputs)
        return (loss, logits) if return_outputs else loss

    def create_optimizer(self) -> Optimizer:
        """Return the optimizer of a run: AdamW, with the decay, clipping and layer rates of the flags."""
        return open_optimizer(self.config, self.model)

    def create_scheduler(self, num_training_steps: int, optimizer: Optional[Optimizer] = None) -> Any:
        """Return a learning-rate scheduler of Paddle's for a run; None: the rates are those of the flags."""
        return None

    def get_train_dataloader(self) -> Any:
        """Return what yields the micro-batches of this process for one pass over the training pairs.

        Each is a dictionary of input_ids, token_type_ids and labels, int64. An override may return any
        iterable with a length, such as a `paddle.io.DataLoader` with a DistributedBatchSampler; each epoch
        iterates over it once.
        """
        return overrides.TrainBatches(self._run_data or self._open_data(), self.config, self.world.size)

    def log(self, logs: dict[str, Any]) -> None:
        """Take a line of the training log, on the first process; without an override nothing more is done."""

    def evaluate(
        self, eval_dataset: Optional[PairDataset] = None, *, symmetric: str = "auto"
    ) -> dict[str, float]:
        """Return the metrics of the model on labelled pairs, the same on all processes.

        ``runtime``, in seconds, and ``samples_per_second`` are among them. The pairs are read once.
        ``symmetric``: see ``predict``.
        """
        begin = time.monotonic()
        chosen = self._calibration().chosen_symmetry(symmetric, str(self._folder))
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        outputs = self._ask(self._pairs_of("dev", dataset), chosen)
        return self._with_times(self._metrics_of(outputs), begin, len(outputs.logits))

    def _metrics_of(self, outputs: _Outputs) -> dict[str, float]:
        if outputs.labels is None:
            return {}
        measure, own = choose_measure(self._start.source.spec.labels, outputs.groups), self.compute_metrics
        shared = self.world, join_process_group(self.world).all_reduce
        return measure_with(measure, own, self.config.best_metric, *shared, outputs.logits, outputs.labels)

    def _with_times(self, metrics: dict[str, float], begin: float, count: int) -> dict[str, float]:
        own = np.array([time.monotonic() - begin if self.world.is_first else 0.0])
        seconds = float(join_process_group(self.world).all_reduce_now(own)[0])
        times = zip(overrides.TIMES, (round(seconds, 4), round(count / max(seconds, 1e-9), 3)))
        return {**metrics, **{name: value for name, value in times if name not in metrics}}

    def predict(
        self, dataset: PairDataset, *, threshold: Optional[float] = None, symmetric: str = "auto"
    ) -> Predictions:
        """Predict the class, or the score, of every pair; labels are used if the first row has one.

        ``metrics`` are those of the labels, and ``runtime``, in seconds, and ``samples_per_second``.
        ``threshold``: with two classes, the probability at or above which a pair is of class 1; None: that of
        calibration.json in the folder of the model if there is one, otherwise the more probable class.
        ``symmetric``: average scores (a, b) and (b, a) and takes the mean of the logits, none scores only
        (a, b), auto follows calibration.json. The pairs are read once, and are never all in memory. Raises
        InputError for rows that are not pairs of texts.
        """
        begin, saved = time.monotonic(), self._calibration()
        PROBABILITY.check_inside(threshold)
        check_threshold(threshold, self.model.num_classes, "the model")
        chosen = saved.chosen_symmetry(symmetric, str(self._folder))
        first, dataset = split_first(dataset)
        labelled = is_labelled(self._pairs_of("test", first))
        outputs = self._ask(self._pairs_of("test", dataset, labelled), chosen)
        logits, label_ids, bad, _ = outputs
        metrics = self._with_times(self._metrics_of(outputs), begin, len(logits))
        if threshold is not None:
            saved = replace(saved, threshold=threshold)
        said = predict_from(logits, self._start.source.spec.labels, saved)
        found = Predictions(**vars(said), predictions=logits, label_ids=label_ids, metrics=metrics)
        self._call_callbacks("on_predict", metrics=dict(metrics))
        return found.with_bad_rows(bad)

    def _calibration(self) -> Calibration:
        if self._folder is None:
            return Calibration(symmetric=self.config.scored_as)
        return read_calibration(self._folder, self.model.num_classes)

    def _begin(self) -> None:
        if self._has_begun:
            self._start = self._open()  # an earlier call may have moved the weights
            self.optimizer, self.lr_scheduler = self._optimizers  # an override may have set its own
        self._has_begun, self._folder = True, None

    def _open_data(self) -> PairData:
        sources = {
            "train": self._pairs_of("train", self.train_dataset),
            "dev": self._pairs_of("dev", self.eval_dataset),
        }
        if self.compute_metrics is None:
            check_best_metric(self.config.best_metric, OF_TARGET[self.model.spec.target].names)
        return open_pairs(self.config, sources, self._start.source, self.world, self._collator)

    @property
    def _collator(self) -> Optional[UserCollator]:
        return self.data_collator and UserCollator(self.data_collator, self._start.source.spec)

    def _plan(self, signals: StopSignals) -> TrainResult:
        """Let the run print its plan; its steps move the weights, which are put back."""
        before = {name: value.numpy() for name, value in self.model.state_dict().items()}
        try:
            with keep_no_results():
                run = self._open_run()
                run.train(signals)
        finally:
            if self.config.weights_are_half:
                self.model.float()  # the run has narrowed the weights, and arrays of float32 are put back
            self.model.set_state_dict(before)
        return run.result({})

    def _open_run(self) -> TaskTrainer:
        data = self._open_data()
        self._flags_loss = loss_of(self.model.spec.labels, self.config, data.class_weights)
        scheduler, state = self._first_rates
        if scheduler is not None:  # an earlier run has moved it
            scheduler.set_state_dict(dict(state))
        if "get_train_dataloader" in self.overridden:
            self._run_data = data  # which `get_train_dataloader` of this class gives the batches of
            try:
                loader = self.get_train_dataloader()
            finally:
                self._run_data = None
            data = overrides.with_batches(data, loader, self.config, self.world.size, self.model.spec)
        task = PairTask(self.config, self._start, data, overrides.build_overrides(self))
        return TaskTrainer(task, self.world, self._device, self.callbacks)

    def _call_callbacks(self, event: str, **kwargs: Any) -> None:
        if self.world.is_first:
            for callback in self.callbacks:
                given = self.config, replace(self.state), TrainerControl()
                getattr(callback, event)(*given, model=self.model, **kwargs)

    def _train(self, signals: StopSignals) -> TrainResult:
        run = self._open_run()
        self._autocast, self.state = run.job.autocast, run.progress
        run.train(signals)
        best, metrics = run.best.folder(), run.best_metrics
        if best is not None:
            self._folder = best
            initial_model.load_best(self.model, best)
            dev = self._pairs_of("dev", self.eval_dataset)
            metrics = metrics or self._metrics_of(self._ask(dev, self.config.scored_as))
        return run.result(metrics)

    def _words(self, config: PairConfig, labels: Labels) -> str:
        """Return the label map of the words that the training pairs have as labels, '' without words."""
        given = {"train": self.train_dataset, "dev": self.eval_dataset}
        known = {split: each for split, each in given.items() if each is not None and not is_one_shot(each)}

        def form() -> TokenForm:  # of rows of ids, which have no words
            raise InputError("token ids")

        try:
            sources = {split: open_source(config, split, each, None, form) for split, each in known.items()}
            return words_of_pairs(sources, config.label_map, labels) if "train" in sources else ""
        except LabelQuestion:
            raise
        except InputError:  # what is wrong is raised where the pairs are read
            return ""

    def _pairs_of(self, split: str, dataset: Optional[PairDataset], labelled: bool = True):
        source = self._start.source
        labels = source.spec.labels if labelled else None

        def form() -> TokenForm:
            return TokenForm(self.tokenizer.tokenizer, self.config.max_seq_len, source.spec.token_types)

        if dataset is None:
            raise InputError(f"there is no {ARGUMENTS[split]}; give it to PairTrainer")
        return open_source(self.config, split, dataset, labels, form)

    def _ask(self, source, symmetric: str) -> _Outputs:
        """Return what the model says of all pairs, which are read window by window."""
        bad: list[BadRow] = []
        logits, labels = [], []
        queries: list[str] = []
        if isinstance(source, TokenizedPairs):
            if symmetric == "average":
                raise InputError(
                    f"symmetric='average' asks for both orders of the texts, and {source.flag} holds token "
                    "ids; give texts, or symmetric='none'"
                )
            for rows in source.windows(WINDOW, bad.append):
                logits.append(self._logits_of_rows(rows))
                labels += [] if rows.labels is None else [rows.labels]
        else:
            for pairs in read_chunks(source.rows(bad.append), WINDOW, source.name):
                logits.append(self._logits_of(pairs, symmetric))
                if pairs.labels is not None:
                    labels.append(pairs.labels)
                    queries += pairs.queries or pairs.left
        log_rejected(source.name, bad, sum(map(len, logits)), None)
        if source.labels is None:
            return _Outputs(np.concatenate(logits), None, bad)
        groups = number_texts(queries) if source.labels.target == RANKING else None
        return _Outputs(np.concatenate(logits), np.concatenate(labels), bad, groups)

    def _logits_of(self, pairs, symmetric: str) -> np.ndarray:
        tokenizer, longest = self.tokenizer.tokenizer, self.config.max_seq_len
        if symmetric != "average":  # with their labels, which a data_collator may want
            return self._logits_of_rows(encode_pairs(pairs, tokenizer, longest))

        def logits_of_texts(left: Sequence[str], right: Sequence[str]) -> np.ndarray:
            return self._logits_of_rows(encode_texts(left, right, None, tokenizer, longest))

        return score_pairs(logits_of_texts, pairs.left, pairs.right, symmetric)

    def _logits_of_rows(self, rows: EncodedPairs) -> np.ndarray:
        was_training = self.model.training
        rows.collator = self._collator
        group = join_process_group(self.world)
        group.barrier()
        choose_path(self.model, self.config, self.config.device, group.size, group.all_reduce)
        silent = PairCallback.on_prediction_step
        listens = self.world.is_first and any(
            type(c).on_prediction_step is not silent for c in self.callbacks
        )
        on_batch = (lambda rows: self._call_callbacks("on_prediction_step")) if listens else None
        try:
            with self._autocast():
                return predict_logits(self.model, rows, self.config.batch_size, group, on_batch)
        finally:
            if was_training:
                self.model.train()
