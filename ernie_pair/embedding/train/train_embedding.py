"""One run of training an embedding model, for the command and for `EmbeddingTrainer`."""

import logging
import math
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Dict, NamedTuple, Sequence, Tuple, TypeVar

from data_tools.files.atomic_files import nothing_kept
from data_tools.files.errors import InputError, counted
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.embedding.embed_config import AUTO, own_pooling
from ernie_pair.embedding.open_embedder import settings_of_model
from ernie_pair.embedding.train.embedding_config import USUAL_LENGTH, EmbeddingConfig, TrainEmbeddingConfig
from ernie_pair.embedding.train.embedding_data import EmbeddingData, GivenData, open_embedding_data
from ernie_pair.embedding.train.embedding_fingerprint import RULES, fingerprint_of
from ernie_pair.embedding.train.embedding_job import EmbeddingJob
from ernie_pair.kernels.product_rate import product_rate
from ernie_pair.models.embedding_json import NORMALIZE, SIMILARITIES, EmbeddingSettings, width_after
from ernie_pair.models.model_card import Measured, ModelCard, changed_flags, write_card
from ernie_pair.models.networks.kernel_path import choose_path
from ernie_pair.models.networks.text_encoder import TextEncoder, build_text_encoder, load_text_weights
from ernie_pair.models.sentence_transformers import settings_of_folder
from ernie_pair.models.source import NAME_FAMILY, ModelSource, model_folder_of, open_model, refuse_no_family
from ernie_pair.pair.train.best_checkpoint import BestModel, EarlyStopping
from ernie_pair.pair.train.callbacks import Callbacks, CallingHooks, PairCallback, TrainerState
from ernie_pair.pair.train.pair_fingerprint import topology_of
from ernie_pair.runtime.cpu import keep_freed_memory
from ernie_pair.runtime.cpu_env import cpu_threads
from ernie_pair.runtime.device import start_training_device
from ernie_pair.runtime.processes.console import GOOD, start_console
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.runtime.processes.world import World, launched_world, local_world
from ernie_pair.score.embeddings.export_embedding import PYTHON
from ernie_pair.train.process_group import join_process_group
from ernie_pair.train.run import Processes, RunSettings, run_training
from ernie_pair.train.step.recompute import freeze, num_frozen_layers, recompute_layers

logger = logging.getLogger(__name__)

Config = TypeVar("Config", bound=EmbeddingConfig)

COMMANDS = """\
ernie-pair embed --model_path . --input_file texts.txt --output_dir vectors
ernie-pair evaluate-embedding --model_path . --input_file pairs.tsv --output_file metrics.json"""
# Told elsewhere in the card, or of no effect on the model.
NOT_SHOWN = (
    *("model_name_or_path", "train_file", "dev_file", "negatives_file", "output_dir", "fresh_start"),
)


class InitialEncoder(NamedTuple):
    """The encoder that a run begins with; ``beginning`` says in words what its weights are."""

    model: TextEncoder
    source: ModelSource
    beginning: str
    settings: EmbeddingSettings


def train_embedding(config: TrainEmbeddingConfig) -> None:
    """Train from the newest checkpoint of ``output_dir``, or from the model that is named.

    Raises an ErniePairError for whatever the user can fix.
    """
    world = launched_world()
    start_console(world)
    with StopSignals(is_launched=world.size > 1) as stop, nothing_kept(config.dry_run):
        device = start_training_device(config, world)
        start, config = open_initial_encoder(config, config.model_name_or_path)
        if start.model.fused_state is not None:
            keep_freed_memory()
        given = GivenData(config.train_file, config.dev_file, config.negatives_file)
        data = open_embedding_data(config, given, start.source, start.settings, world)
        EmbeddingRun(config, start, data, world, device).train(stop)


def open_initial_encoder(config: Config, name_or_path: str) -> Tuple[InitialEncoder, Config]:
    """Open the model that ``name_or_path`` names, with its initial weights.

    Returns it with ``config``, whose pooling and length are those of the model where no flag said them.
    Raises InputError when the flags and the model do not fit, CheckpointError when the weights do not.
    """
    source = open_model(name_or_path, model_type=config.model_type or "", from_scratch=config.from_scratch)
    refuse_no_family(source, NAME_FAMILY)
    folder = model_folder_of(Path(name_or_path))
    settings = _settings_of(config, source, folder)
    config = replace(config, pooling=settings.pooling, max_seq_len=settings.max_seq_len)
    model = build_text_encoder(source, config.seed, config.dropout, settings.pooling, settings.graph_steps)
    if config.save_format != "paddle":
        model.refuse_other_than_theirs()
    num_frozen_layers(config, len(model.layers()))  # refused before any data are read
    choose_path(model, config, config.device)  # the same
    return InitialEncoder(model, source, load_text_weights(model, source, folder), settings), config


def _settings_of(config: EmbeddingConfig, source: ModelSource, folder: Path) -> EmbeddingSettings:
    """Return the settings of the trained model: its vectors have length 1, and are compared by cosines."""
    asked = "" if config.pooling == AUTO else own_pooling(config.pooling)
    if settings_of_folder(folder, source.spec) is None:
        told = settings_of_model(folder, source, asked, config.max_seq_len or USUAL_LENGTH)
    else:
        told = settings_of_model(folder, source, asked, config.max_seq_len)
        logger.info("pooling %s, %d tokens per text", told.pooling, told.max_seq_len)
    if any(told.prompts.values()):
        told.refuse_left_out(told.prompt_of("query") or told.prompt_of("passage"), source.name)
    steps = tuple(step for step in told.steps if step.kind != "truncate")
    steps = steps if steps[-1:] == (NORMALIZE,) else (*steps, NORMALIZE)
    whole = width_after(told.pooling, source.spec.hidden_size, steps)
    if told.steps != steps or told.similarity != SIMILARITIES[0]:
        logger.info(
            "trained: vectors of %d numbers and length 1, for cosines; the start says %d numbers%s and %s",
            whole,
            told.dim,
            "" if NORMALIZE in told.steps else ", of any length",
            told.similarity,
        )
    chosen = config.chosen_dims
    if chosen and chosen[-1] > whole:
        raise InputError(
            f"--dims {config.dims}: the vectors of this model have {whole} numbers; give none above that"
        )
    dims = tuple(sorted({*chosen, whole}))
    return replace(
        told, steps=steps, dim=whole, dims=dims, temperature=config.temperature, similarity=SIMILARITIES[0]
    )


class EmbeddingRun:
    """One training run, opened; made and trained by every rank alike."""

    def __init__(
        self,
        config: EmbeddingConfig,
        start: InitialEncoder,
        data: EmbeddingData,
        world: World,
        device: str,
        *,
        callbacks: Sequence[PairCallback] = (),
    ):
        self.config, self.start, self.data, self.world = config, start, data, world
        self.process_group = group = join_process_group(world)
        group.barrier()  # reading and tokenising take each process its own time
        logger.info("on %s, %s", device, counted(world.size, "process", "processes"))
        logger.info("%s", freeze(start.model, config))
        self.kernels = choose_path(start.model, config, config.device, group.size, group.all_reduce)
        if config.device == "cpu":
            logger.info("%s", self.kernels.describe())
        recompute_layers(start.model, config.use_recompute)
        total = config.max_steps or math.ceil(config.epochs * data.num_rows / self._pairs_per_step)
        self.job = EmbeddingJob(
            config,
            start.model,
            data.dev,
            total,
            group,
            start.settings,
            vocab_file=start.source.vocab_file,
            beginning=start.beginning,
        )
        self.state = TrainerState(
            max_steps=self.job.total_steps,
            is_world_process_zero=world.is_first,
            is_local_process_zero=local_world().is_first,
        )
        callbacks = () if config.dry_run else callbacks
        called = Callbacks(callbacks, config, self.state, world, group.all_reduce)
        self.hooks = EmbeddingHooks(self, called)

    @property
    def _pairs_per_step(self) -> int:
        return self.config.pairs_per_step(self.world.size)

    def train(self, stop: StopSignals) -> TrainState:
        """Train to the end, from wherever ``output_dir`` stands, and return the last state."""
        processes = Processes(self.world, self.world, self.process_group.all_reduce)
        return run_training(self.job, self.data, self._settings(), self.hooks, processes, stop)

    def _settings(self) -> RunSettings:
        config, job = self.config, self.job
        sync_freq = config.sync_freq_on(config.device)
        pairs_per_step = self._pairs_per_step
        schedule = config.schedule(job.total_steps, pairs_per_step, self.data.num_rows, sync_freq)
        return RunSettings(
            flags=config,
            output_dir=Path(config.output_dir),
            schedule=schedule,
            rates=job.rates,
            fingerprint=fingerprint_of(config, self.start.source, self.data.hashes, job, self.world),
            topology=topology_of(config, self.kernels.name, self.world),
            rules=RULES,
            allow_change=config.allow_change,
            fresh_start=config.fresh_start,
            retention=config.retention,
            samples_per_epoch=self.data.num_rows,
            product_rate=product_rate(config, config.device, cpu_threads()) * self.world.size,
            report_to=config.reporters,
            device=config.device,
            command="train-embedding",
            num_parameters=sum(int(each.size) for each in self.start.model.parameters()),
        )


class EmbeddingHooks(CallingHooks):
    """The hooks of this training: keep the best model, stop early, call the user's functions."""

    def __init__(self, run: EmbeddingRun, callbacks: Callbacks):
        super().__init__(callbacks, run.job, run.data.num_rows)
        self.run, config = run, run.config
        self.best_metrics: Dict[str, float] = {}  # of the best model, if this start has seen it
        self._judged: Tuple[int, Dict[str, float]] = (0, {})
        self.best = BestModel(
            Path(config.output_dir),
            self._write_best,
            run.world,
            run.process_group.all_reduce,
            metric=config.best_metric,
            keep=config.keep_best,
        )
        self.stopping = EarlyStopping(config.early_stopping_patience, config.early_stopping_min_delta)

    def on_start(self, state: TrainState, log) -> None:
        """Restore the link OUT/best and the history of a resumed run, and call ``on_train_begin``."""
        self.best.restore_link()
        self.restore_history(Path(self.run.config.output_dir), state)
        self.note_the_best(self.best.folder())
        self.call("on_train_begin", state)

    def on_evaluate(self, state: TrainState, metrics: Dict[str, float]) -> None:
        """Keep the best model, count towards early stopping, call ``on_evaluate`` of the user's callbacks."""
        self.remember("valid", state, metrics)
        self._judged = state.step, metrics
        if self.best.judge(state, metrics):
            self.best_metrics = metrics
            self.lines.tell("best", state, self.best.describe(state), GOOD)
            self.note_the_best(self.best.folder())
        self.stopping.judge(state, metrics[self.run.config.best_metric])
        self.call("on_evaluate", state, metrics=dict(metrics))

    def should_stop(self, state: TrainState) -> bool:
        """Return whether the run is to end: early, or because a callback asks for it."""
        return self.stopping.is_due(state) or self.control.should_training_stop

    def on_end(self, state: TrainState) -> None:
        """Log how the run ended, and call ``on_train_end`` of the user's callbacks."""
        self.tell_end(state, self.best, self.stopping)
        self.call("on_train_end", state)

    def _write_best(self, draft: Path) -> None:
        start = self.run.start
        save_format = self.run.config.save_format
        start.model.write_embedding(draft, start.source.vocab_file, start.settings, save_format)
        write_card(draft, _card_of(self.run, *self._judged))


def _card_of(run: EmbeddingRun, step: int, metrics: Dict[str, float]) -> ModelCard:
    config, start, asked = run.config, run.start, run.data.dev.asked
    defaults = {item.name: item.default for item in fields(config) if item.default is not MISSING}
    told_elsewhere = {name: getattr(config, name, None) for name in NOT_SHOWN}
    return ModelCard(
        title=f"An embedding model of the family {start.model.family}",
        facts={
            "base model": start.source.name,
            "initial weights": start.beginning.removeprefix("start from ").removeprefix("the weights "),
            "numbers of a vector": ", ".join(map(str, start.settings.dims)),
            "pooling": start.settings.pooling,
            "tokens per text": str(config.max_seq_len),
            "computed by": run.kernels.describe(with_notes=False),
            "chosen": f"step {step}, the best {config.best_metric} so far",
        },
        data=run.data.files,
        flags=changed_flags(asdict(config), {**defaults, **told_elsewhere}),
        metrics={name: Measured(value) for name, value in metrics.items()},
        measured_on=f"Of the dev pairs: {len(asked.queries)} queries search {len(asked.corpus)} texts.",
        commands=COMMANDS,
        python=PYTHON,
    )
