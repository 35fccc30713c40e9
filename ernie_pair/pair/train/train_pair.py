"""One run of pair training from its flags to its last line, for the command and for `PairTrainer`."""

import logging
from pathlib import Path
from typing import Dict, Optional

from data_tools.files.atomic_files import nothing_kept
from data_tools.files.errors import counted
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.inference.scores import probabilities
from ernie_pair.kernels.product_rate import product_rate
from ernie_pair.models.model_card import write_card
from ernie_pair.models.networks.kernel_path import choose_path
from ernie_pair.models.networks.plain_model import PlainModel
from ernie_pair.models.temperature import Calibration, write_calibration
from ernie_pair.pair.config.pair_config import PairConfig, TrainConfig
from ernie_pair.pair.targets.metrics import describe_single_class
from ernie_pair.pair.targets.target_metrics import UserMetrics, measure_of
from ernie_pair.pair.train.best_checkpoint import BestModel, EarlyStopping, card_of_best
from ernie_pair.pair.train.callbacks import Callbacks, CallingHooks, TrainerState
from ernie_pair.pair.train.datasets import PairData, open_pair_data
from ernie_pair.pair.train.initial_model import InitialModel, open_initial_model, with_best_metric
from ernie_pair.pair.train.loss import SuppliedLoss, loss_of
from ernie_pair.pair.train.own_parts import OwnParts
from ernie_pair.pair.train.pair_fingerprint import RULES, fingerprint_of, topology_of
from ernie_pair.pair.train.pair_job import PairJob
from ernie_pair.pair.train.parts import total_steps
from ernie_pair.report import chart as probability_counts
from ernie_pair.runtime.cpu import keep_freed_memory
from ernie_pair.runtime.cpu_env import cpu_threads
from ernie_pair.runtime.device import start_training_device
from ernie_pair.runtime.paddle_patches.optimizer_state import scheduler_in
from ernie_pair.runtime.processes.console import GOOD, start_console
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.runtime.processes.world import World, launched_world, local_world
from ernie_pair.train.process_group import join_process_group
from ernie_pair.train.run import Processes, RunSettings, run_training
from ernie_pair.train.step.recompute import freeze, recompute_layers

logger = logging.getLogger(__name__)


def train_pair(config: TrainConfig) -> None:
    """Fine-tune from the newest checkpoint of ``output_dir``, or from the model that is named.

    Raises an ErniePairError for whatever the user can fix.
    """
    world = launched_world()
    start_console(world)
    with StopSignals(is_launched=world.size > 1) as stop, nothing_kept(config.dry_run):
        device = start_training_device(config, world)
        start = open_initial_model(config, config.model_name_or_path)
        config = with_best_metric(config, start)
        if start.model.fused_state is not None:
            keep_freed_memory()
        PairRun(config, start, open_pair_data(config, start.source, world), world, device).train(stop)


def _tell_who_loads_it(start: InitialModel, config: PairConfig) -> None:
    """Log where the models of a run load, when that is not everywhere."""
    if start.model.pooling == "mean":
        logger.info(
            "--pooling mean: the models of this run load in ernie-pair alone, and not in PaddleNLP's "
            "AutoModelForSequenceClassification, which has no such pooling"
        )
    if isinstance(start.model, PlainModel):
        logger.info(
            "%s is a layer of your own: its models load with PairTrainer alone, by weights=FOLDER",
            start.model.family,
        )
    if config.model_class:
        logger.info(
            "--model_class %s: the models of this run load in ernie-pair alone, and there with this flag",
            config.model_class,
        )


class PairRun:
    """One training run, opened; made and trained by every rank alike.

    ``own``: what the user replaces. ``supplied``: the loss of another kind of training, None: that of the
    flags.
    """

    def __init__(
        self,
        config: PairConfig,
        start: InitialModel,
        data: PairData,
        world: World,
        device: str,
        own: OwnParts = OwnParts(),  # noqa: B008 - nothing changes it
        supplied: Optional[SuppliedLoss] = None,
    ):
        self.config, self.start, self.data, self.world, self.own = config, start, data, world, own
        self.supplied = supplied or SuppliedLoss(loss_of(start.model.spec.labels, config, data.class_weights))
        if config.save_format != "paddle":
            start.model.refuse_other_than_theirs()
        self.process_group = group = join_process_group(world)
        group.barrier()  # reading and tokenising take each process its own time
        logger.info("on %s, %s", device, counted(world.size, "process", "processes"))
        logger.info("%s", freeze(start.model, config))
        _tell_who_loads_it(start, config)
        self.kernels = choose_path(start.model, config, config.device, group.size, group.all_reduce)
        if config.device == "cpu":
            logger.info("%s", self.kernels.describe())
        recompute_layers(start.model, config.use_recompute)
        self.job = self._open_job()
        self.state = TrainerState(
            max_steps=self.job.total_steps,
            is_world_process_zero=world.is_first,
            is_local_process_zero=local_world().is_first,
        )
        callbacks = () if config.dry_run else own.callbacks
        self.hooks = PairHooks(self, Callbacks(callbacks, config, self.state, world, group.all_reduce))

    def _open_job(self) -> PairJob:
        config, start, data, group, own = self.config, self.start, self.data, self.process_group, self.own
        measure = measure_of(start.model.spec.labels, data.dev.groups)
        steps = total_steps(config, data.num_rows, self.world)
        optimizer = own.make_optimizer() if own.make_optimizer else None
        scheduler = own.make_scheduler(steps, optimizer) if own.make_scheduler else None
        job = PairJob(
            config,
            start.model,
            data.dev,
            steps,
            group,
            measure=UserMetrics(
                measure, own.compute_metrics, config.best_metric, self.world, group.all_reduce
            ),
            optimizer=optimizer,
            scheduler=scheduler or (None if optimizer is None else scheduler_in(optimizer)),
            own_evaluation=own.evaluate,
            loss=self.supplied.loss,
            beginning=start.beginning,
            vocab_file=start.source.vocab_file,
        )
        if job.is_compiled:
            logger.info("the forward pass is one program (--to_static)")
        return job

    def train(self, stop: StopSignals) -> TrainState:
        """Train to the end, from wherever ``output_dir`` stands, and return the last state."""
        processes = Processes(self.world, self.world, self.process_group.all_reduce)
        return run_training(self.job, self.data, self._settings(), self.hooks, processes, stop)

    def _settings(self) -> RunSettings:
        config, job, supplied = self.config, self.job, self.supplied
        known_by = fingerprint_of(config, self.start.source, self.data.hashes, job, self.world)
        sync_freq = config.sync_freq_on(config.device)
        pairs_per_step = config.pairs_per_step(self.world.size)
        schedule = config.schedule(job.total_steps, pairs_per_step, self.data.num_rows, sync_freq)
        return RunSettings(
            flags=config,
            output_dir=Path(config.output_dir),
            schedule=schedule,
            rates=job.rates,
            fingerprint={**known_by, **self._own_kinds(), **supplied.fingerprint},
            topology={**topology_of(config, self.kernels.name, self.world, "sharding"), **supplied.topology},
            rules=RULES,
            allow_change=config.allow_change,
            fresh_start=config.fresh_start,
            retention=config.retention,
            samples_per_epoch=self.data.num_rows,
            product_rate=product_rate(config, config.device, cpu_threads()) * self.world.size,
            report_to=config.reporters,
            place=job.place if config.device == "gpu" else None,
            device=config.device,
            command=self.supplied.command,
            num_parameters=sum(int(each.size) for each in self.start.model.parameters()),
        )

    def _own_kinds(self) -> Dict[str, object]:
        """Return the kinds of the user's own parts whose state a checkpoint has, or leaves to them."""
        job = self.job
        parts = {"optimizer": job.optimizer if self.own.make_optimizer else None, "scheduler": job.scheduler}
        return {name: type(part).__name__ for name, part in parts.items() if part is not None}


class PairHooks(CallingHooks):
    """The hooks of pair training: keep the best model, stop early, call the user's functions."""

    def __init__(self, run: PairRun, callbacks: Callbacks):
        super().__init__(callbacks, run.job, run.data.num_rows)
        self.run, self.config = run, run.config
        config = run.config
        self.best = BestModel(
            Path(config.output_dir),
            self._write_best,
            run.world,
            run.process_group.all_reduce,
            metric=config.best_metric,
            lower_is_better=config.lower_is_better,
            keep=config.keep_best,
        )
        self.single_class: Optional[int] = None  # predicted for all rows at the last evaluation
        self.best_metrics: Dict[str, float] = {}  # of the best model, if this start has seen it
        self.judged = 0, self.best_metrics  # the step and the metrics of the last evaluation
        self.stopping = EarlyStopping(
            config.early_stopping_patience, config.early_stopping_min_delta, config.lower_is_better
        )

    def on_start(self, state: TrainState, log) -> None:
        """Restore the link OUT/best and the history of a resumed run, and call ``on_train_begin``."""
        self.best.restore_link()
        self.restore_history(Path(self.config.output_dir), state)
        best = self.best.folder()
        if self.config.evaluation_strategy == "no" and best is None and self.run.world.is_first:
            logger.info("no evaluation: the model of the last step is the result, in model_last")
        self.note_the_best(best)
        self.call("on_train_begin", state)

    def counts(self) -> Dict[str, object]:
        """Return how often each probability of class 1 was given, of a model with two classes."""
        run, evaluated = self.run, self.run.job.evaluated
        has_two = run.start.model.spec.labels.has_classes and run.start.model.num_classes == 2
        if not (run.world.is_first and has_two and evaluated is not None):
            return {}
        given = probabilities(evaluated.logits)[:, 1]
        return {probability_counts.NAME: probability_counts.count_probabilities(given, evaluated.labels)}

    def on_log(self, state: TrainState, metrics: Dict[str, float]) -> None:
        """Call ``on_log`` of the user's callbacks, and the user's own ``log`` on rank 0."""
        super().on_log(state, metrics)
        if self.run.own.log is not None and self.run.world.is_first:
            self.run.own.log(dict(self.told.log_history[-1]))

    def on_evaluate(self, state: TrainState, metrics: Dict[str, float]) -> None:
        """Keep the best model, count towards early stopping, call ``on_evaluate`` of the user's callbacks."""
        self.remember("valid", state, metrics)
        self.judged = state.step, metrics
        if self.best.judge(state, metrics):
            self.best_metrics = metrics
            self.lines.tell("best", state, self.best.describe(state), GOOD)
            self.note_the_best(self.best.folder())
        self.stopping.judge(state, metrics[self.config.best_metric])
        self._warn_of_a_single_class(state)
        self.call("on_evaluate", state, metrics=dict(metrics))

    def _write_best(self, draft: Path) -> None:
        run, config = self.run, self.config
        vocab_file = run.start.source.vocab_file
        run.start.model.write(draft, vocab_file, config.max_seq_len, config.save_format)
        kernels, evaluated = run.kernels.describe(with_notes=False), run.job.evaluated
        if config.scored_as != "none":
            write_calibration(draft, Calibration(symmetric=config.scored_as))
        write_card(draft, card_of_best(config, run.start, run.data, kernels, *self.judged, evaluated))

    def should_stop(self, state: TrainState) -> bool:
        """Return whether the run is to end: early, or because a callback asks for it."""
        return self.stopping.is_due(state) or self.control.should_training_stop

    def on_end(self, state: TrainState) -> None:
        """Log how the run ended, and call ``on_train_end`` of the user's callbacks."""
        self.tell_end(state, self.best, self.stopping)
        self.call("on_train_end", state)

    def _warn_of_a_single_class(self, state: TrainState) -> None:
        run, label, before = self.run, self.run.job.single_class, self.single_class
        if state.step == 0 or not run.world.is_first:  # a new head does so at step 0
            return
        self.single_class = label
        if label is None or label == before:  # once is enough, until it changes
            return
        name = run.start.source.spec.labels.names[label]
        named = f"class {name}" if name == str(label) else name
        logger.warning("step %d: %s", state.step, describe_single_class(named, len(run.data.dev)))
