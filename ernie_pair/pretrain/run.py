"""One pretraining run from its flags to its last line."""

import logging
from pathlib import Path
from typing import Dict

from data_tools.wordpiece import WordPiece
from ernie_pair.checkpoint import Checkpoints, publish_folder
from ernie_pair.loop import Rhythm, TrainState, train
from ernie_pair.model_folder import ModelSource, load_parameters, open_model
from ernie_pair.pretrain.config import PretrainConfig, refuse_unready
from ernie_pair.pretrain.data import PretrainData, open_data
from ernie_pair.runlog import open_log, start_console
from ernie_pair.runtime import quiet_libraries, start_device
from ernie_pair.world import World, launched_world

logger = logging.getLogger(__name__)


def pretrain(config: PretrainConfig) -> None:
    """Pretrain until ``max_steps``, from the newest checkpoint of ``output_dir`` or from the given weights.

    Raises InputError and its kin (data_tools.errors) for whatever a person can mend.
    """
    world = launched_world()
    start_console(world)
    refuse_unready(config, world)
    source = open_model(
        config.model_name_or_path, model_type=config.model_type, from_scratch=config.from_scratch
    )
    pieces = WordPiece.from_file(source.vocab_file)
    data = open_data(config, world, pieces, int(source.config["max_position_embeddings"]))
    device = start_device(config.device, world)
    logger.info("on %s, %d process(es), %s", device, world.size, _describe(data))
    job, add = _build_job(config, world, source, data)
    checkpoints = Checkpoints(Path(config.output_dir), world, add.barrier)
    try:
        _train(config, world, source, data, job, checkpoints)
    finally:
        checkpoints.close()


def _describe(data: PretrainData) -> str:
    corpora = data.corpora
    sums = [sum(sizes) for sizes in zip(*((c.num_documents, len(c), len(c.ids)) for c in corpora))]
    folders = f" in {len(corpora)} corpora" if len(corpora) > 1 else ""
    return "{} documents, {} sentences, {} tokens".format(*sums) + folders


def _build_job(config: PretrainConfig, world: World, source: ModelSource, data: PretrainData):
    from ernie_pair.pretrain.job import PretrainJob
    from ernie_pair.pretrain.model import ernie_config
    from ernie_pair.pretrain.program import RankSums, build_program
    from ernie_pair.pretrain.strategy import start_fleet

    quiet_libraries()
    start_fleet(config.device, world.size)
    model_config = ernie_config(
        source.config,
        hidden_dropout_prob=config.hidden_dropout_prob,
        attention_probs_dropout_prob=config.attention_probs_dropout_prob,
    )
    program = build_program(config, model_config)
    program.start(config.seed)
    add = RankSums(world.size, program.executor, cpu=config.device == "cpu")
    return PretrainJob(config, world, program, data, add, source), add


def _train(config, world, source, data, job, checkpoints) -> None:
    fingerprint = fingerprint_of(config, source, data)
    state = _resume(config, source, job, checkpoints, fingerprint)
    log = open_log(
        Path(config.output_dir),
        world,
        resumed_at=state.step,
        max_steps=config.max_steps,
        tokens_per_sample=config.max_seq_len,
    )
    try:
        if state.step >= config.max_steps:
            logger.info("already at step %d of --max_steps %d: nothing to do", state.step, config.max_steps)
            return
        train(
            _rhythm(config),
            job,
            data.updates(state.consumed_samples),
            state,
            log,
            save=lambda state: checkpoints.save(state, fingerprint, job.state_files()),
            export=lambda state: _export(config, world, source, job, state),
            judge=lambda state, metrics: _test_at_the_end(config, data, job, log, state),
        )
    finally:
        log.close()
    logger.info(
        "done at step %d: %s/model_last; see it with: visualdl --logdir %s",
        state.step,
        *[config.output_dir] * 2,
    )


def _test_at_the_end(config, data: PretrainData, job, log, state: TrainState) -> None:
    if state.step == config.max_steps and data.has("test"):
        log.scalars("test", job.evaluate("test"), state)


def _resume(config, source: ModelSource, job, checkpoints: Checkpoints, fingerprint) -> TrainState:
    """1. the newest checkpoint; 2. otherwise the given weights; 3. otherwise fresh ones, when asked for."""
    checkpoint = checkpoints.newest()
    if checkpoint is not None:
        checkpoint.refuse_other_run(fingerprint)
        job.restore(checkpoint)
        state = checkpoint.state()
        logger.info(
            "resumed %s: step %d, %d samples seen", checkpoint.folder, state.step, state.consumed_samples
        )
        return state
    if source.weights is not None:
        job.program.set(load_parameters(job.program.parameters, source.weights))
        logger.info("start from the weights %s", source.weights)
    else:
        logger.info("start from random weights (--from_scratch true), seed %d", config.seed)
    return TrainState()


def _rhythm(config: PretrainConfig) -> Rhythm:
    return Rhythm(
        max_steps=config.max_steps,
        global_batch_size=config.samples_per_update,
        logging_freq=config.logging_freq,
        eval_freq=config.eval_freq,
        checkpoint_steps=config.checkpoint_steps,
        export_steps=config.save_steps,
    )


# A run that differs in one of these is another run; whatever is not here may change on resume.
SAME_RUN = (
    *("split", "max_seq_len", "seed", "max_lr", "min_lr", "warmup_rate", "weight_decay", "grad_clip"),
    *("adam_beta1", "adam_beta2", "adam_epsilon", "hidden_dropout_prob", "attention_probs_dropout_prob"),
    *("masked_lm_prob", "short_seq_prob", "favor_longer_ngram", "max_ngrams", "use_amp"),
    *("geometric", "whole_word_mask", "masking_fn", "binary_head"),
)
SHAPE_KEYS = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


def fingerprint_of(config: PretrainConfig, source: ModelSource, data: PretrainData) -> Dict[str, object]:
    """What must be equal for a resumed run to be the same run."""
    values = {name: getattr(config, name) for name in SAME_RUN}
    values.update({f"model {key}": source.config.get(key) for key in SHAPE_KEYS})
    return {
        **values,
        "global_batch_size": config.samples_per_update,
        "decay_steps": config.lr_decay_steps,
        "corpus": data.fingerprint,
        "vocabulary": data.pieces.sha256,
    }


def _export(config: PretrainConfig, world: World, source: ModelSource, job, state: TrainState) -> None:
    """model_STEP/, loadable by from_pretrained."""
    from ernie_pair.pretrain.export import write_model_folder

    if world.is_first:
        folder = Path(config.output_dir) / f"model_{state.step}"
        publish_folder(folder, lambda draft: write_model_folder(draft, source, job.weights()))
    job.add.barrier()
