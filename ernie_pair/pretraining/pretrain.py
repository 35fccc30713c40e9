"""One pretraining run, from its flags to its last log line."""

import logging
import shlex
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional, Union

from data_tools.samples.mask_report import marked_text
from ernie_pair.checkpoint.fingerprint import Fingerprint, RunRules, compared_options, layout_of, rules_of
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.checkpoint.run_folder import EVENTS, LAST, cleanup_on_error, published_of_run
from ernie_pair.core.cli.options import defaults_of
from ernie_pair.core.errors import counted
from ernie_pair.core.files.atomic_files import keep_no_results
from ernie_pair.models.families import SPECIFIC
from ernie_pair.models.model_card import write_card
from ernie_pair.models.source import NAME_FAMILY, ModelSource, check_lower_case, open_model, with_match
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig, check_family, check_layout
from ernie_pair.pretraining.convert.warm_start import with_order_head
from ernie_pair.pretraining.data import PretrainData, open_pretrain_data
from ernie_pair.pretraining.pretrain_job import card_of_pretrained
from ernie_pair.runtime.cpu import keep_freed_memory
from ernie_pair.runtime.device import open_device, quiet_libraries, start_training_device
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.runtime.processes.watchdog import all_start
from ernie_pair.runtime.processes.world import AllReduce, World, launched_world, local_world, raised_on_all
from ernie_pair.training.process_group import join_process_group
from ernie_pair.training.run_log import metrics_in, read_all_events
from ernie_pair.training.schedule import Schedule
from ernie_pair.training.trainer import Trainer
from ernie_pair.weights.parameter_names import without_training_heads

SHOWN_SAMPLES = 4
WARM_UP = "warm-up steps"

logger = logging.getLogger(__name__)


class PretrainResult(NamedTuple):
    """How a pretraining ended: its last step, and what it was judged by.

    ``metrics``: of the last validation, {} without one; ``model_last``: the folder of its last checkpoint,
    whose ``static_vars`` `convert` takes, None after a dry run. ``is_done``: all steps of the run are done.
    """

    step: int
    metrics: Dict[str, float]
    model_last: Optional[Path]
    is_done: bool


def pretrain(config: PretrainConfig) -> PretrainResult:
    """Pretrain until ``max_steps``, from the newest checkpoint of ``output_dir`` or from the given weights.

    Raises an ErniePairError for whatever the user can fix.
    """
    world = launched_world()
    start_console(world)
    start = cleanup_on_error(config.output_dir, world)
    with start, StopSignals(is_launched=world.size > 1) as stop, keep_no_results(config.dry_run):
        state = _pretrain(config, world, stop)
    output_dir = Path(config.output_dir)
    judged = [event for event in read_all_events(output_dir / EVENTS) if event["split"] == "valid"]
    last = None if config.dry_run else output_dir / LAST
    metrics = metrics_in(judged[-1]) if judged else {}
    return PretrainResult(state.step, metrics, last, state.step == config.max_steps)


def _pretrain(config: PretrainConfig, world: World, stop: StopSignals) -> TrainState:
    check_layout(config, world, local_world())
    device = start_training_device(config, world, opens=False)
    source = open_model(
        config.model_name_or_path,
        model_type=config.model_type or "",
        from_scratch=config.from_scratch,
        no_family=NAME_FAMILY,
    )
    source = with_match(source, False)  # of a classifier: there is no other text
    check_family(source.spec)
    check_lower_case(source)
    config = with_order_head(config, source)
    tokenizer = source.read_tokenizer()
    opened = open_pretrain_data(config, world, tokenizer, source.spec)
    corpora = opened.corpora
    sums = [sum(sizes) for sizes in zip(*((c.num_documents, len(c), len(c.ids)) for c in corpora))]
    logger.info(
        "on %s, %s, %s%s%s",
        device,
        counted(world.size, "process", "processes"),
        "{} documents, {} sentences, {} tokens".format(*sums),
        f" in {len(corpora)} corpora" if len(corpora) > 1 else "",
        "" if opened.ngrams is None else f", {len(opened.ngrams)} n-grams",
    )
    with opened.forked() as data:
        return _train(config, world, source, data, stop)


def _train(
    config: PretrainConfig, world: World, source: ModelSource, data: PretrainData, stop: StopSignals
) -> TrainState:
    open_device()  # the loader processes have been forked, so a GPU may be opened
    local = world if config.share_folder else local_world()
    with all_start(world):
        job, all_reduce = build_job(config, world, local, source, data)
    logger.info(job.program.kernels.describe())
    if job.program.kernels.is_fused:
        keep_freed_memory()
    stop.listen()  # Paddle has replaced the handlers
    return PretrainTrainer(job, world, local, all_reduce).train(stop)


def fingerprint_of(config: PretrainConfig, source: ModelSource, data: PretrainData) -> Fingerprint:
    """Return what must be equal for a resumed run to be the same run."""
    of_scale = defaults_of(config, "loss scale")
    values = {name: value for name, value in compared_options(config).items() if name not in of_scale}
    if not config.decoder_masked_prob:
        del values["decoder_masked_prob"]  # which the runs of earlier versions do not name
    of_model, phases = "of --model_name_or_path", config.phase_list
    shape = {f"model {key} (config.json {of_model})": value for key, value in source.spec.shape.items()}
    if source.spec.family == "bert":  # the other classes have one of their own
        epsilon = source.spec.config.get("layer_norm_eps", SPECIFIC)
        shape[f"model layer_norm_eps (config.json {of_model})"] = epsilon
    return {
        **values,
        "binary_head": config.has_order,
        **shape,
        "global_batch_size": config.samples_per_step,
        "phases": ",".join(f"{one.length}:{one.steps}" for one in phases) if len(phases) > 1 else "",
        "ngram_lexicon": "" if data.ngrams is None else data.ngrams.sha256,
        "--decay_steps (0: --max_steps)": config.lr_decay_steps,
        f"{WARM_UP} (--warmup_rate x --max_steps, or --warmup_steps)": config.num_warmup_steps,
        "corpus (--input_dir)": data.fingerprint,
        f"vocabulary (vocab.txt {of_model})": data.tokenizer.sha256,
    }


def _own_layout(config: PretrainConfig) -> dict[str, object]:
    """Return the micro-batch size, or that of each phase if they differ; and the graph, if it is dynamic."""
    sizes = [phase.micro_batch_size for phase in config.phase_list]
    shown: Union[int, str] = sizes[0] if len(set(sizes)) == 1 else ",".join(map(str, sizes))
    return {"micro_batch_size": shown, **({"graph": "dynamic"} if config.is_dynamic else {})}


def rules_of_pretraining(config: PretrainConfig) -> RunRules:
    """Return how a run of ``config`` compares its fingerprint with that of a checkpoint."""

    def hint(name: str, old: object) -> str:
        if name == WARM_UP and config.warmup_steps is not None:
            return f"pass --warmup_steps {old}"
        if name == WARM_UP and isinstance(old, int) and 0 < old < config.max_steps:
            return f"pass --warmup_rate {old / config.max_steps:.6g} to keep the {old}"
        return "pass the old value"

    return rules_of(PretrainConfig, ("model ", "vocabulary"), hint=hint)


def build_job(config: PretrainConfig, world: World, local: World, source: ModelSource, data: PretrainData):
    """Build the job of this rank, its programs started, and the all-reduce over all ranks.

    Paddle's static mode is on from here to the end of the process, unless the run uses the dynamic graph.
    """
    from ernie_pair.pretraining.graph.dynamic_program import DynamicProgram, GroupSums
    from ernie_pair.pretraining.graph.model import ernie_config
    from ernie_pair.pretraining.graph.program import build_program, choose_path
    from ernie_pair.pretraining.graph.program_state import RankSums
    from ernie_pair.pretraining.graph.step import start_static
    from ernie_pair.pretraining.pretrain_job import PretrainJob

    quiet_libraries()
    if not config.is_dynamic:
        start_static(config.device, world.size)
    dropout = {name: getattr(config, name) for name in defaults_of(config, "dropout")}
    num_ngrams = 0 if data.ngrams is None else len(data.ngrams)
    model_config = ernie_config(source.spec, num_ngrams, config.decoder_masked_prob > 0, **dropout)
    program: Any
    all_reduce: Any
    if config.is_dynamic:
        group = join_process_group(world)
        group.barrier()  # reading the data takes each process its own time
        program, all_reduce = DynamicProgram(config, model_config, group), GroupSums(group)
    else:
        kernels = choose_path(config, config.device, world.size)
        program = build_program(config, model_config, world.rank, kernels)
        program.start(config.seed)
        all_reduce = RankSums(world.size, program.executor)
    return PretrainJob(config, world, local, program, data, all_reduce, source), all_reduce


class PretrainTrainer(Trainer):
    """A run of pretraining: shows samples, exports models, and measures the test split at the end."""

    def __init__(self, job: Any, world: World, local: World, all_reduce: AllReduce):
        config, source, data = job.config, job.source, job.data
        # Tied parameters count once, a padded vocabulary counts entirely.
        shapes = {parameter.name: parameter.shape for parameter in job.program.parameters.values()}
        super().__init__(
            job=job,
            updates=data.updates,
            schedule=Schedule(
                max_steps=config.max_steps,
                global_batch_size=config.samples_per_step,
                logging_freq=config.logging_freq,
                eval_freq=config.eval_freq,
                checkpoint_steps=config.checkpoint_steps,
                export_steps=config.save_steps,
                has_validation=data.has("valid"),
                has_test=data.has("test"),
                sync_freq=config.sync_freq_on(config.device),
            ),
            flags=config,
            fingerprint=fingerprint_of(config, source, data),
            rules=rules_of_pretraining(config),
            layout=layout_of(config, world, job.program.kernels.name, **_own_layout(config)),
            lr_kwargs=config.rates,
            samples_per_epoch=data.samples_per_epoch,
            pin_batches=job.pin_batches if config.device == "gpu" else None,
            command="pretrain",
            num_parameters=sum(prod(shape) for shape in shapes.values()),
            phases=[0, *accumulate(phase.steps for phase in config.phase_list)],
            world=world,
            local=local,
            all_reduce=all_reduce,
        )
        self.data = data
        self.evaluated: tuple[int, dict[str, float]] = (0, {})  # the last validation: step and metrics

    def on_train_begin(self) -> None:
        """Show the first samples, their masks marked, in VisualDL's text tab."""
        train = self.data.datasets["train"]
        assert train is not None  # there is no run without it
        samples = (train[number] for number in range(min(SHOWN_SAMPLES, len(train))))
        self.log.texts(
            "masked samples",
            (marked_text(self.data.tokenizer, sample, self.data.ngrams) for sample in samples),
        )
        if not self.data.has("valid"):
            logger.info("no validation: --split %s leaves no documents for it", self.flags.split)

    def on_evaluate(self, metrics: dict[str, float]) -> None:
        """Keep the metrics for the card of an exported model; measure the test split once, at the end."""
        self.evaluated = self.state.step, metrics
        if self.state.step == self.schedule.max_steps and self.data.has("test"):
            self.log.scalars("test", self.job.evaluate("test"), self.state)

    def export(self) -> None:
        """Write model_STEP/, loadable by from_pretrained, without heads that nothing loads."""
        with raised_on_all(self.all_reduce, self.world):
            if self.world.is_first:
                self._export()

    def _export(self) -> None:
        from ernie_pair.models.source import write_model_folder

        step, (evaluated, metrics) = self.state.step, self.evaluated
        source, weights = self.job.source, without_training_heads(self.job.weights())
        card = card_of_pretrained(self.flags, source, self.data, step, metrics if evaluated == step else {})
        with published_of_run(self.output_dir / f"model_{step}", {"step": step}) as (_, draft):
            write_model_folder(draft, source, weights)
            write_card(draft, card)

    def on_train_end(self) -> None:
        """Say where the result is."""
        folder = self.flags.output_dir
        command = f"ernie-pair board {shlex.quote(folder)}"
        self.lines.log_end(self.state, f"{folder}/model_last; see it with: {command}")
