"""One training run from its flags to its last line: the engine of the command and of `PairTrainer`."""

import logging
import math
from functools import partial
from pathlib import Path
from typing import Dict, Optional, Sequence

from ernie_pair.checkpoint.checkpoints import Checkpoints
from ernie_pair.checkpoint.fingerprint import words_of
from ernie_pair.checkpoint.train_state import TrainState
from ernie_pair.device.device import quiet_libraries, start_device
from ernie_pair.engine.loop import Rhythm, train
from ernie_pair.engine.lr_schedule import tell_schedule
from ernie_pair.engine.run_log import open_log, start_console
from ernie_pair.pair.config.pair_config import PairConfig, TrainConfig
from ernie_pair.pair.metrics import describe_single_class
from ernie_pair.pair.process_group import join_peers
from ernie_pair.pair.step.freezing import freeze
from ernie_pair.pair.step.recompute import recompute_layers
from ernie_pair.pair.train.best_checkpoint import BestModel
from ernie_pair.pair.train.callbacks import Callbacks, PairCallback, ToldLog
from ernie_pair.pair.train.datasets import PairData, open_data
from ernie_pair.pair.train.early_stopping import EarlyStopping
from ernie_pair.pair.train.initial_model import Start, open_start
from ernie_pair.pair.train.pair_fingerprint import RULES, fingerprint_of, topology_of
from ernie_pair.pair.train.pair_job import PairJob
from ernie_pair.pair.train.user_metrics import ComputeMetrics, Measure
from ernie_pair.processes.stop_signals import StopSignals, stop_with_the_launcher
from ernie_pair.processes.watchdog import Watchdog
from ernie_pair.processes.world import World, launched_world

logger = logging.getLogger(__name__)


def train_pair(config: TrainConfig) -> None:
    """Fine-tune from the newest checkpoint of ``output_dir``, or from the model that is named.

    Raises an ErniePairError for whatever a person can mend.
    """
    world = launched_world()
    start_console(world)
    with StopSignals() as signals:
        if world.size > 1:
            stop_with_the_launcher()
        quiet_libraries()
        device = start_device(config.device, world)
        start = open_start(config, config.model_name_or_path)
        PairRun(config, start, open_data(config, start.source, world), world, device).train(signals)


class PairRun:
    """One run, opened; made and trained by every rank alike.

    ``compute_metrics`` and ``callbacks`` are a person's own; see `own_metrics` and `callbacks`.
    """

    def __init__(
        self,
        config: PairConfig,
        start: Start,
        data: PairData,
        world: World,
        device: str,
        compute_metrics: Optional[ComputeMetrics] = None,
        callbacks: Sequence[PairCallback] = (),
    ):
        self.config, self.start, self.data, self.world = config, start, data, world
        self.peers = join_peers(world)
        self.peers.barrier()  # reading and tokenising take each process its own time
        logger.info("on %s, %d process(es)", device, world.size)
        logger.info("%s", freeze(start.model, config))
        if start.model.pooling == "mean":
            logger.info(
                "--pooling mean: the models of this run load in ernie-pair alone, and not in PaddleNLP's "
                "AutoModelForSequenceClassification, which has no such pooling"
            )
        recompute_layers(start.model, config.use_recompute)
        measure = Measure(compute_metrics, config.best_metric, world, self.peers.add)
        steps = total_steps(config, data.num_rows, world)
        self.job = PairJob(
            *(config, start.model, data.dev, steps, self.peers),
            measure=measure,
            class_weights=data.class_weights,
        )
        written_with = {"vocab_file": start.source.vocab_file, "max_seq_len": config.max_seq_len}
        write = partial(start.model.write, **written_with)
        self.best = BestModel(
            *(Path(config.output_dir), write, world, self.peers.add),
            *(config.best_metric, config.lower_is_better),
        )
        self.best_metrics: Dict[str, float] = {}  # of the best model, if this start has seen it
        self.stopping = EarlyStopping(
            config.early_stopping_patience, config.early_stopping_min_delta, config.lower_is_better
        )
        self.callbacks = Callbacks(callbacks, world, self.peers.add)

    def train(self, signals: StopSignals) -> TrainState:
        """To its end, from wherever ``output_dir`` stands."""
        output_dir = Path(self.config.output_dir)
        checkpoints = Checkpoints(output_dir, self.world, self.peers.add, fresh_start=self.config.fresh_start)
        try:
            with Watchdog(output_dir, self.world) as watch:
                state = self._resume_and_loop(checkpoints, signals, watch)
        finally:
            checkpoints.close()
        if state.best_metric is not None:
            self._tell_the_best(state)
        return state

    def _tell_the_best(self, state: TrainState) -> None:
        metric, value, folder = self.config.best_metric, state.best_metric, self.best.folder()
        if state.best_step == 0 < state.step:
            logger.warning(
                "best %s %.4f is that of step 0: the run got no better than its start, which lies in %s",
                *(metric, value, folder),
            )
        else:
            logger.info("best %s %.4f: %s", metric, value, folder)

    def _resume_and_loop(self, checkpoints: Checkpoints, signals: StopSignals, watch: Watchdog) -> TrainState:
        config, job = self.config, self.job
        fingerprint = fingerprint_of(config, self.start.source, self.data.hashes, job, self.world)
        topology = topology_of(config, self.world)
        state = _resume(config, job, checkpoints, fingerprint, topology, self.start.beginning)
        tell_schedule(job.rates, job.total_steps, state.step - state.skipped_updates)

        def save(state: TrainState) -> None:
            checkpoints.save(state, fingerprint, job.state_files(), topology)
            self.callbacks.call("on_save", state, (checkpoints.output_dir / "model_last").resolve())

        self._loop(state, save, signals, watch)
        self._tell_why_it_ended(state)
        self.callbacks.call("on_train_end", state)
        return state

    def _loop(self, state: TrainState, save, signals: StopSignals, watch: Watchdog) -> None:
        config, job = self.config, self.job
        log = open_log(
            Path(config.output_dir),
            self.world,
            resumed=state,
            max_steps=job.total_steps,
            samples_per_epoch=self.data.num_rows,
        )
        log.configuration(config)
        updates = self.data.updates(state.consumed_samples)
        try:
            signals.wait_for_the_update()
            train(
                _rhythm(config, self.data.num_rows, job.total_steps, self.world),
                job,
                updates,
                state,
                ToldLog(log, self.callbacks, watch),
                save=save,
                export=lambda state: None,  # the best model is the export
                judge=self._judge,
                votes=signals.votes,
                watch=watch,
                enough=self.is_enough,
            )
        finally:
            log.close()

    def _judge(self, state: TrainState, metrics: Dict[str, float]) -> None:
        if self.best.judge(state, metrics):
            self.best_metrics = metrics
        self.stopping.judge(state, metrics[self.config.best_metric])
        self._warn_of_a_single_class(state)

    def _warn_of_a_single_class(self, state: TrainState) -> None:
        label = self.job.single_class
        if label is None or state.step == 0 or not self.world.is_first:  # a new head does so at step 0
            return
        name = self.start.source.spec.labels.names[label]
        named = f"class {name}" if name == str(label) else name
        logger.warning("step %d: %s", state.step, describe_single_class(named, len(self.data.dev)))

    def is_enough(self, state: TrainState) -> bool:
        return self.stopping.is_due(state) or self.callbacks.stop_is_asked

    def _tell_why_it_ended(self, state: TrainState) -> None:
        if state.step == self.job.total_steps:
            return
        if self.stopping.is_due(state):
            logger.info(
                "stopped early after step %d: %d evaluations in a row without a better %s than %.4f",
                *(state.step, state.stale_evaluations, self.config.best_metric, state.metric_to_beat),
            )
        else:
            logger.info("a callback stopped the run after step %d; train again to go on", state.step)


def total_steps(config: PairConfig, num_rows: int, world: World) -> int:
    return config.max_steps or math.ceil(config.epochs * num_rows / config.pairs_per_update(world.size))


def _resume(
    config: PairConfig, job: PairJob, checkpoints: Checkpoints, fingerprint, topology, beginning: str
) -> TrainState:
    """1. the newest checkpoint; 2. otherwise the weights that were given; 3. fresh ones, when asked for."""
    checkpoint = checkpoints.resume(fingerprint, topology, words_of(config.allow_change), RULES)
    if checkpoint is None:
        logger.info("%s", beginning)
        return TrainState()
    job.restore(checkpoint)
    state = checkpoint.state()
    logger.info("resumed %s: step %d, %d pairs seen", checkpoint.folder, state.step, state.consumed_samples)
    return state


def _rhythm(config: PairConfig, num_rows: int, steps: int, world: World) -> Rhythm:
    return Rhythm(
        max_steps=steps,
        global_batch_size=config.pairs_per_update(world.size),
        logging_freq=config.logging_freq,
        eval_freq=config.eval_freq,
        checkpoint_steps=config.checkpoint_steps,
        samples_per_epoch=num_rows,
    )
