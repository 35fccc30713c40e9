"""One process of a probe: runs a few steps of a stand-in, and reports their time and memory.

python -m ernie_pair.launch.time_steps ANSWER COMMAND [flags of COMMAND]

ANSWER, written by the first rank, is a `StepTimes` as JSON. Nothing else is written.
"""

import json
import resource
import sys
import time
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Callable, List, Sequence, Tuple, Union

import numpy as np

from data_tools.corpus.mixture import Blend
from data_tools.ernie_dataset import Sample
from data_tools.files.atomic_files import published
from data_tools.options.cli import exit_code_of, parse_config
from data_tools.samples.split_datasets import collate
from ernie_pair.inference.token_rows import encode_texts, open_tokenizer
from ernie_pair.launch.auto_processes import StepTimes
from ernie_pair.models.networks.classifier import build_classifier
from ernie_pair.models.networks.kernel_path import choose_path
from ernie_pair.models.source import NAME_FAMILY, ModelSource, open_model, read_tokenizer, refuse_no_family
from ernie_pair.models.spec import ModelSpec
from ernie_pair.pair.config.pair_config import TrainConfig
from ernie_pair.pair.data.pair_records import Columns, RowRules
from ernie_pair.pair.data.pair_source import PairSource
from ernie_pair.pair.train.train_pair import PairJob
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
from ernie_pair.pretrain.data import PretrainData
from ernie_pair.pretrain.pretrain import build_job
from ernie_pair.runtime.cpu import keep_freed_memory
from ernie_pair.runtime.cpu_env import cpu_threads
from ernie_pair.runtime.device import start_device
from ernie_pair.runtime.processes.stop_signals import stop_with_the_launcher
from ernie_pair.runtime.processes.world import World, launched_world
from ernie_pair.train.hooks import NoStop
from ernie_pair.train.process_group import join_process_group
from ernie_pair.train.recompute import freeze, recompute_layers

WARM_STEPS, STEPS = 2, 5
TimeStep = Callable[[], Tuple[float, float]]
LAYERS = 2
PASS_SECONDS, THREAD_FLOPS = 0.3, 5e10  # operations of a thread per second, roughly: it need not be exact
READ_ROWS = 512  # of the training pairs, to know their lengths
PASSES = 2  # micro-batches per step, so that gradients are merged as in the run


def open_stand_in(config: Union[TrainConfig, PretrainConfig]) -> ModelSource:
    """Return the model of a run with at most LAYERS layers, and without weights. Raises InputError."""
    source = open_model(config.model_name_or_path, model_type=config.model_type or "", from_scratch=True)
    refuse_no_family(source, NAME_FAMILY)
    spec = source.spec.replace(num_hidden_layers=min(LAYERS, source.spec.num_layers))
    return replace(source, spec=spec, weights=None)


def rows_in_pass(most: int, tokens: int, spec: ModelSpec) -> int:
    """Return how many samples of ``tokens`` tokens a forward and backward pass takes: ``most``, or fewer."""
    parameters = 12 * spec.hidden_size**2 * spec.num_layers
    seconds = 6 * parameters * max(tokens, 1) / (THREAD_FLOPS * cpu_threads())
    return max(1, min(most, int(PASS_SECONDS / seconds)))


def open_pair_steps(config: TrainConfig, world: World) -> Tuple[int, TimeStep]:
    """Return the samples in a micro-batch of the stand-in, and a function that takes steps of it.

    The function returns the seconds of a step of one micro-batch, and those that a second one adds. Raises
    InputError for pairs or a model that the run cannot use either.
    """
    source = open_stand_in(config)
    tokenizer = open_tokenizer(source.vocab_file, source.spec, config.max_seq_len)
    columns = Columns(config.text_a, config.text_b, config.label)
    file = PairSource("train_file", config.train_file, "train", None, columns, RowRules.of(config))
    pairs = list(islice(file.rows(), READ_ROWS))
    left, right = [pair.left for pair in pairs], [pair.right for pair in pairs]
    labels = np.arange(len(pairs), dtype=np.int64) % 2  # made up
    rows = encode_texts(left, right, labels, tokenizer, config.max_seq_len)
    batch_rows = rows_in_pass(config.batch_size, int(rows.lengths.mean()), source.spec)
    frozen = min(config.freeze_layers, LAYERS - 1)
    small = replace(config, batch_size=batch_rows, freeze_layers=frozen, class_weights="")
    model = build_classifier(source, config.seed, config.dropout, config.pooling)
    freeze(model, small)
    if choose_path(model, config, config.device).is_fused:
        keep_freed_memory()  # as in the run
    recompute_layers(model, config.use_recompute)
    job = PairJob(small, model, rows, 10**6, join_process_group(world))
    middle = (len(rows) - batch_rows) // 2 + np.arange(batch_rows)  # of rows sorted by length, like batches
    batch = rows.batch(np.argsort(rows.lengths, kind="stable")[middle % len(rows)])

    def time_step() -> Tuple[float, float]:
        begin = time.perf_counter()
        job.step([batch], 1, NoStop())
        one = time.perf_counter()
        job.step([batch, batch], 1, NoStop())
        return one - begin, (time.perf_counter() - one) - (one - begin)

    return batch_rows, time_step


def open_pretrain_steps(config: PretrainConfig, world: World) -> Tuple[int, TimeStep]:
    """Return the samples in a micro-batch of the stand-in, and a function that takes a step of it.

    The function returns the seconds of a step of one micro-batch, and of a further one: the first of two only
    accumulates its gradient, and is that. Raises InputError for a model that the run cannot use either.
    """
    source = open_stand_in(config)
    tokenizer = read_tokenizer(source.vocab_file, source.spec).without_control_tokens()
    rows = rows_in_pass(config.full_length_micro_batch, config.max_seq_len, source.spec)
    small = replace(config, phases="", micro_batch_size=rows, global_batch_size=PASSES * rows * world.size)
    nothing: Any = {}  # no datasets: the samples are generated here
    job, _ = build_job(
        small, world, world, source, PretrainData(small, world, [], Blend([Fraction(1)]), tokenizer, nothing)
    )
    if job.program.kernels.is_fused:
        keep_freed_memory()  # as in the run
    length = config.max_seq_len
    ids = np.arange(length) % source.spec.vocab_size
    masked = np.arange(0, length, max(1, round(1 / config.masked_lm_prob)))  # as many as the run masks
    sample = Sample(ids, (np.arange(length) >= length // 2).astype(np.int64), masked, ids[masked], 0)
    batch = collate([sample] * rows, pad_id=tokenizer.pad_id, max_seq_len=config.max_seq_len)
    ends: List[float] = []
    run = job.program.run

    def run_and_note(*arguments):
        result = run(*arguments)
        ends.append(time.perf_counter())
        return result

    job.program.run = run_and_note

    def time_step() -> Tuple[float, float]:
        ends.clear()
        begin = time.perf_counter()
        job.step([batch] * PASSES, 1, NoStop())
        further = ends[0] - begin
        return time.perf_counter() - begin - further, further

    return rows, time_step


# command: (its flags, what opens its steps)
TIMED: Any = {"train": (TrainConfig, open_pair_steps), "pretrain": (PretrainConfig, open_pretrain_steps)}


def main() -> None:
    """Time the steps that ``sys.argv`` describes, and write the answer."""
    answer, command, *flags = sys.argv[1:]
    sys.exit(exit_code_of(lambda: time_steps(Path(answer), command, flags)))


def time_steps(answer: Path, command: str, flags: Sequence[str]) -> None:
    """Write the times of the steps of ``command`` in the processes of this run. Raises an ErniePairError."""
    config_class, open_steps = TIMED[command]
    world = launched_world()
    stop_with_the_launcher()
    start_device("cpu", world)
    rows, time_step = open_steps(parse_config(config_class, list(flags), command), world)
    for _ in range(WARM_STEPS):
        time_step()
    one, further = map(median, zip(*(time_step() for _ in range(STEPS))))
    if world.is_first:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        # Noise must not make a pass free.
        times = StepTimes(one, max(further, one / 10), rows, memory)
        with published(answer, forced=False) as (draft,):
            draft.write_text(json.dumps(times._asdict()), encoding="utf-8")


if __name__ == "__main__":
    main()
