"""One training run from its flags to its last line."""

import hashlib
import json
import logging
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Dict

from ernie_pair.checkpoint import Checkpoints
from ernie_pair.checkpoint_folder import words_of
from ernie_pair.cpu_math import cpu_threads
from ernie_pair.loop import Rhythm, TrainState, train
from ernie_pair.model_folder import ModelSource, open_model
from ernie_pair.pair.best import BestModel
from ernie_pair.pair.config import TrainConfig
from ernie_pair.pair.job import PairJob
from ernie_pair.pair.labels import labels_of, with_labels
from ernie_pair.pair.model import load_start, new_model
from ernie_pair.pair.peers import join_peers
from ernie_pair.pair.training_data import PairData, open_data
from ernie_pair.runlog import open_log, start_console
from ernie_pair.runtime import quiet_libraries, start_device
from ernie_pair.signals import StopSignals, stop_with_the_launcher
from ernie_pair.watchdog import Watchdog
from ernie_pair.world import World, launched_world

logger = logging.getLogger(__name__)


def train_pair(config: TrainConfig) -> None:
    """Fine-tune from the newest checkpoint of ``output_dir``, or from the model that is named.

    Raises InputError and its kin (data_tools.errors) for whatever a person can mend.
    """
    world = launched_world()
    start_console(world)
    with StopSignals() as signals:
        if world.size > 1:
            stop_with_the_launcher()
        _train_pair(config, world, signals)


def _train_pair(config: TrainConfig, world: World, signals: StopSignals) -> None:
    quiet_libraries()
    device = start_device(config.device, world)
    source = open_model(
        config.model_name_or_path, model_type=config.model_type, from_scratch=config.from_scratch
    )
    if config.label_map:
        source = replace(source, config=with_labels(source.config, labels_of({}, config.label_map)))
    model = new_model(source, config.model_type, config.seed, config.dropout)
    beginning = load_start(model, source)
    data = open_data(config, source, world)
    steps = total_steps(config, data.num_rows, world)
    peers = join_peers(world)
    peers.barrier()  # reading and tokenising take each process its own time
    logger.info("on %s, %d process(es)", device, world.size)
    job = PairJob(config, model, data.dev, steps, peers)
    output_dir = Path(config.output_dir)
    write = partial(model.write, vocab_file=source.vocab_file)
    best = BestModel(output_dir, write, world, peers.add, config.best_metric)
    checkpoints = Checkpoints(output_dir, world, peers.add)
    try:
        with Watchdog(output_dir, world) as watch:
            fingerprint = fingerprint_of(config, source, data.hashes, job, world)
            topology = topology_of(config, world)
            state = _resume(config, job, checkpoints, fingerprint, topology, beginning)

            def save(state: TrainState) -> None:
                checkpoints.save(state, fingerprint, job.state_files() if world.is_first else (), topology)

            _train(config, world, data, job, state, best, save, signals, watch)
    finally:
        checkpoints.close()
    logger.info("best %s %.4f: %s", config.best_metric, state.best_metric, best.folder())


def _train(
    config: TrainConfig, world: World, data: PairData, job: PairJob, state, best, save, signals, watch
) -> None:
    log = open_log(Path(config.output_dir), world, resumed=state, max_steps=job.total_steps)
    updates = data.updates(state.consumed_samples)
    try:
        signals.wait_for_the_update()
        train(
            _rhythm(config, data.num_rows, job.total_steps, world),
            job,
            updates,
            state,
            log,
            save=save,
            export=lambda state: None,  # the best model is the export
            judge=best.judge,
            votes=signals.votes,
            watch=watch,
        )
    finally:
        log.close()


def total_steps(config: TrainConfig, num_rows: int, world: World) -> int:
    return config.max_steps or math.ceil(config.epochs * num_rows / (config.batch_size * world.size))


def fingerprint_of(
    config: TrainConfig, source: ModelSource, hashes: Dict[str, str], job: PairJob, world: World
) -> Dict[str, object]:
    """What must not change between a checkpoint and the run that goes on from it."""
    model = json.dumps(source.config, sort_keys=True).encode()
    flags = ("model_type", "seed", "max_seq_len", "learning_rate", "warmup_rate", "weight_decay", "dropout")
    flags += ("best_metric", "text_a", "text_b", "label")
    return {
        **{name: getattr(config, name) for name in flags},
        "batch_size x processes": config.batch_size * world.size,
        "order of the rows (--bucket, --streaming, --shuffle_buffer)": _order_of(config),
        "updates in all (--epochs, --max_steps)": job.total_steps,
        "config.json (sha256)": hashlib.sha256(model).hexdigest(),
        **{f"{name} (sha256)": value for name, value in hashes.items()},
    }


def _order_of(config: TrainConfig) -> str:
    sorted_ = "in buckets of like length" if config.bucket else "of any length"
    return sorted_ + (f", streamed through {config.shuffle_buffer} rows" if config.streaming else "")


# No --allow_change makes the weights, or the best metric so far, fit these.
FIXED = ("model_type", "config.json", "vocabulary", "best_metric")


def topology_of(config: TrainConfig, world: World) -> Dict[str, object]:
    """What may change on resume, with a line about it."""
    return {"processes": world.size, "batch_size": config.batch_size, "threads": cpu_threads()}


def _resume(
    config: TrainConfig, job: PairJob, checkpoints: Checkpoints, fingerprint, topology, beginning: str
) -> TrainState:
    """1. the newest checkpoint; 2. otherwise the weights that were given; 3. fresh ones, when asked for."""
    checkpoint = checkpoints.resume(fingerprint, topology, words_of(config.allow_change), FIXED)
    if checkpoint is None:
        logger.info("%s", beginning)
        return TrainState()
    job.restore(checkpoint)
    state = checkpoint.state()
    logger.info("resumed %s: step %d, %d pairs seen", checkpoint.folder, state.step, state.consumed_samples)
    return state


def _rhythm(config: TrainConfig, num_rows: int, steps: int, world: World) -> Rhythm:
    return Rhythm(
        max_steps=steps,
        global_batch_size=config.batch_size * world.size,
        logging_freq=config.logging_freq,
        eval_freq=config.eval_freq,
        checkpoint_steps=config.checkpoint_steps,
        samples_per_epoch=num_rows,
    )
