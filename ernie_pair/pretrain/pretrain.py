"""One pretraining run from its flags to its last line."""

import logging
from functools import partial
from pathlib import Path

from data_tools.base.errors import InputError
from data_tools.samples.mask_report import marked_text
from data_tools.text.wordpiece import WordPiece
from ernie_pair.checkpoint.checkpoints import Checkpoints
from ernie_pair.checkpoint.fingerprint import words_of
from ernie_pair.checkpoint.run_note import publish_of_run
from ernie_pair.checkpoint.train_state import TrainState
from ernie_pair.device.device import quiet_libraries, start_device
from ernie_pair.engine.loop import Rhythm, train
from ernie_pair.engine.lr_schedule import tell_schedule
from ernie_pair.engine.run_log import open_log, start_console
from ernie_pair.model_files.source import ModelSource, open_model, refuse_cased, refuse_other_family
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig, refuse_unready
from ernie_pair.pretrain.data import PretrainData, open_data
from ernie_pair.pretrain.pretrain_fingerprint import fingerprint_of, rules_of, topology_of
from ernie_pair.processes.collectives import together
from ernie_pair.processes.stop_signals import StopSignals, stop_with_the_launcher
from ernie_pair.processes.watchdog import Watchdog, all_start
from ernie_pair.processes.world import World, launched_world, local_world

SHOWN_SAMPLES = 4

logger = logging.getLogger(__name__)


def pretrain(config: PretrainConfig) -> None:
    """Pretrain until ``max_steps``, from the newest checkpoint of ``output_dir`` or from the given weights.

    Raises an ErniePairError for whatever a person can mend.
    """
    world = launched_world()
    start_console(world)
    with StopSignals() as signals:
        if world.size > 1:
            stop_with_the_launcher()
        _pretrain(config, world, signals)


def _pretrain(config: PretrainConfig, world: World, signals: StopSignals) -> None:
    refuse_unready(config, world, local_world())
    local = world if config.share_folder else local_world()
    source = open_model(
        config.model_name_or_path, model_type=config.model_type, from_scratch=config.starts_from_scratch
    )
    refuse_other_family(source, config.family)
    refuse_cased(source)
    pieces = WordPiece.from_file(source.vocab_file)
    data = open_data(config, world, pieces, source.spec)
    device = start_device(config.device, world)
    logger.info("on %s, %d process(es), %s", device, world.size, _describe(data))
    with all_start(world):
        job, add = build_job(config, world, local, source, data)
    signals.listen()
    kept = {"keep": config.keep_checkpoints, "every": config.keep_every}
    checkpoints = Checkpoints(
        Path(config.output_dir), world, add, local=local, fresh_start=config.fresh_start, **kept
    )
    try:
        with Watchdog(Path(config.output_dir), world) as watch:
            _train(config, world, source, data, job, checkpoints, signals, watch)
    finally:
        checkpoints.close()


def _describe(data: PretrainData) -> str:
    corpora = data.corpora
    sums = [sum(sizes) for sizes in zip(*((c.num_documents, len(c), len(c.ids)) for c in corpora))]
    folders = f" in {len(corpora)} corpora" if len(corpora) > 1 else ""
    return "{} documents, {} sentences, {} tokens".format(*sums) + folders


def build_job(config: PretrainConfig, world: World, local: World, source: ModelSource, data: PretrainData):
    """The job of this rank, its programs started, and the sums over all ranks. Static mode is for life."""
    from ernie_pair.pretrain.graph.model import ernie_config
    from ernie_pair.pretrain.graph.program import RankSums, build_program
    from ernie_pair.pretrain.graph.strategy import start_fleet
    from ernie_pair.pretrain.pretrain_job import PretrainJob

    quiet_libraries()
    start_fleet(config.device, world.size)
    model_config = ernie_config(
        source.spec,
        hidden_dropout_prob=config.hidden_dropout_prob,
        attention_probs_dropout_prob=config.attention_probs_dropout_prob,
    )
    program = build_program(config, model_config, world.rank)
    program.start(config.seed)
    add = RankSums(world.size, program.executor, cpu=config.device == "cpu")
    return PretrainJob(config, world, local, program, data, add, source), add


def _train(config, world, source, data, job, checkpoints, signals, watch) -> None:
    fingerprint, topology = fingerprint_of(config, source, data), topology_of(config, world)
    state = _resume(config, source, job, checkpoints, fingerprint, topology)
    tell_schedule(config.rates, config.max_steps, state.step - state.skipped_updates)
    log = open_log(
        Path(config.output_dir),
        world,
        resumed=state,
        max_steps=config.max_steps,
        tokens_per_sample=config.max_seq_len,
        samples_per_epoch=data.samples_per_epoch,
    )
    try:
        _write_pages(log, config, data)
        if state.step >= config.max_steps:
            logger.info("already at step %d of --max_steps %d: nothing to do", state.step, config.max_steps)
            return
        if not data.has("valid"):
            logger.info("no validation: --split %s leaves no documents for it", config.split)
        signals.wait_for_the_update()
        train(
            _rhythm(config, data.has("valid")),
            job,
            data.updates(state.consumed_samples),
            state,
            log,
            save=lambda state: checkpoints.save(state, fingerprint, job.state_files(), topology),
            export=lambda state: _export(config, world, source, job, state),
            judge=lambda state, metrics: _test_at_the_end(config, data, job, log, state),
            votes=signals.votes,
            watch=watch,
        )
    finally:
        log.close()
    logger.info(
        "done at step %d: %s/model_last; see it with: visualdl --logdir %s",
        state.step,
        *[config.output_dir] * 2,
    )


def _write_pages(log, config: PretrainConfig, data: PretrainData) -> None:
    """VisualDL's text tab: the flags, and the first samples with their masks marked."""
    log.configuration(config)
    samples = (data.datasets["train"][number] for number in range(SHOWN_SAMPLES))
    log.texts("masked samples", (marked_text(data.pieces, sample) for sample in samples))


def _test_at_the_end(config, data: PretrainData, job, log, state: TrainState) -> None:
    if state.step == config.max_steps and data.has("test"):
        log.scalars("test", job.evaluate("test"), state)


def _resume(
    config: PretrainConfig, source: ModelSource, job, checkpoints: Checkpoints, fingerprint, topology
) -> TrainState:
    """1. the newest checkpoint; 2. otherwise the given weights; 3. otherwise fresh ones, when asked for."""
    checkpoint = checkpoints.resume(fingerprint, topology, words_of(config.allow_change), rules_of(config))
    if checkpoint is not None:
        state = checkpoint.state()
        _refuse_position(config, state)
        job.restore(checkpoint)
        logger.info(
            "resumed %s: step %d, %d samples seen", checkpoint.folder, state.step, state.consumed_samples
        )
        return state
    if source.weights is not None:
        job.start_from_weights()
        logger.info("start from the weights %s", source.weights)
    else:
        logger.info("start from random weights, seed %d", config.seed)
    return TrainState()


def _refuse_position(config: PretrainConfig, state: TrainState) -> None:
    """After --allow_change global_batch_size the samples seen must be whole updates of the new size, and
    enough samples must be left for the updates that are to come."""
    updates, rest = divmod(state.consumed_samples, config.samples_per_update)
    if rest or updates > state.step:
        raise InputError(
            f"--global_batch_size {config.samples_per_update} cannot go on after {state.consumed_samples} "
            f"samples in {state.step} updates; take a larger one that divides them"
        )


def _rhythm(config: PretrainConfig, has_validation: bool) -> Rhythm:
    return Rhythm(
        max_steps=config.max_steps,
        global_batch_size=config.samples_per_update,
        logging_freq=config.logging_freq,
        eval_freq=config.eval_freq,
        checkpoint_steps=config.checkpoint_steps,
        export_steps=config.save_steps,
        has_validation=has_validation,
    )


def _export(config: PretrainConfig, world: World, source: ModelSource, job, state: TrainState) -> None:
    """model_STEP/, loadable by from_pretrained."""
    from ernie_pair.pretrain.convert.model_folder import write_model_folder

    def publish():
        if world.is_first:
            folder = Path(config.output_dir) / f"model_{state.step}"
            fill = partial(write_model_folder, source=source, weights=job.weights())
            publish_of_run(folder, fill, {"step": state.step})

    together(job.add, world, publish)
