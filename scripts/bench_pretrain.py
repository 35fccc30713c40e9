"""Measure the overhead of seeds, logs, checks and checkpoints in pretraining on this machine, as a table.

python scripts/bench_pretrain.py --vocab_file ernie/vocab.txt

Bare is the program alone, run repeatedly on prepared batches. The same steps through the loop, with seeds,
logs, finite checks and a checkpoint, are measured in turn with it; figures are medians.

python scripts/bench_pretrain.py --vocab_file ernie/vocab.txt --hidden_size 768 --num_hidden_layers 12 \
    --peer_python peer/bin/python --output pretrain.json

With a peer, or a file for the figures, only the steps of pretraining are measured, in every way that this
machine supports, in turn and on the same batches.
"""

import contextlib
import io
import os
import tempfile
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Iterator

import numpy as np
from bench_run import train_events
from bench_table import Row, deterministic_row, print_rows, seconds_of, write_model
from side_by_side.cases import Case, case_of_lanes, compare
from side_by_side.flags import SideBySideFlags
from side_by_side.pretrain_case import DOCUMENTS, PretrainShape, pretrain_lanes, write_corpus

from data_tools.options.cli import run_command
from data_tools.options.options import option
from data_tools.text.wordpiece import WordPiece
from ernie_pair.checkpoint.checkpoint_folder import Content
from ernie_pair.checkpoint.checkpoints import Checkpoints
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.models.source import open_model
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
from ernie_pair.pretrain.data import open_pretrain_data
from ernie_pair.pretrain.pretrain import build_job
from ernie_pair.runtime.device import start_device
from ernie_pair.runtime.gpu.cards import count_cards
from ernie_pair.runtime.processes.world import World
from ernie_pair.train.hooks import Hooks, Schedule
from ernie_pair.train.loop import train
from ernie_pair.train.run_log import RunLog
from ernie_pair.weights.weight_files import to_safetensors

SCRIPT = "run_pretrain_static.py"
UPDATES_PER_CHECKPOINT, UPDATES_PER_LINE, SAVES = 100, 20, 7


@dataclass(frozen=True)
class BenchConfig(SideBySideFlags):
    """Measure pretraining; nothing is left on the disk."""

    EXAMPLE = "--vocab_file ernie/vocab.txt"
    WITHOUT_LANES = ("updates", "runs")

    vocab_file: str = option(help="the vocab.txt of the model", group="data")
    hidden_size: int = option(312, help="width of the model", group="model")
    num_hidden_layers: int = option(4, help="its layers", group="model", unit="layers")
    max_seq_len: int = option(128, help="tokens per sample", group="data", unit="tokens")
    micro_batch_size: int = option(
        8, help="samples in one forward pass", group="optimisation", unit="samples", at_least=1
    )
    updates: int = option(
        100,
        help="steps of one measurement",
        group="evaluation",
        unit="steps",
        at_least=2 * UPDATES_PER_LINE,
    )
    runs: int = option(
        3, help="measurements of each kind, of which the median is shown", group="evaluation", at_least=1
    )

    @property
    def shape(self) -> PretrainShape:
        """Return the case that is measured side by side."""
        return PretrainShape(
            self.num_hidden_layers, self.hidden_size, self.micro_batch_size, self.max_seq_len
        )


def pretrain_case(config, shape: PretrainShape) -> Case:
    """Return the case of pretraining, for flags that have a vocab_file."""
    lanes = partial(pretrain_lanes, config, shape, vocab_file=config.vocab_file)
    return case_of_lanes(config, shape.name, f"one batch of {shape.batch_size} samples", lanes)


def bench(config: BenchConfig) -> None:
    """Print a line as soon as its figure is known."""
    if config.is_side_by_side:
        compare(config, [pretrain_case(config, config.shape)])
        return
    with tempfile.TemporaryDirectory(prefix="bench_pretrain.") as name:
        folder = Path(name)
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            _prepare(config, folder)
        print_rows(_measured(config, folder))


def _measured(config: BenchConfig, folder: Path) -> Iterator[Row]:
    yield Row("what", f"median of {config.runs}", "goal")
    if config.device == "cpu":  # processes can share the cores of a CPU, but each would need its own GPU
        yield from _launched(config, folder)
    yield from _recompute(config, folder)
    yield from _deterministic(config, folder)
    yield from _in_this_process(config, folder)


def _prepare(config: BenchConfig, folder: Path) -> None:
    """Write a model folder and a corpus of the built-in sample."""
    write_model(folder / "model", config.vocab_file, "ernie", config.hidden_size, config.num_hidden_layers)
    write_corpus(folder, config.vocab_file, DOCUMENTS)


def _settings(config: BenchConfig, folder: Path, output: str, **changes) -> dict:
    return {
        "model_name_or_path": str(folder / "model"),
        "from_scratch": True,
        "input_dir": str(folder / "data"),
        "output_dir": str(folder / output),
        "split": "90,5,5",
        "max_seq_len": config.max_seq_len,
        "micro_batch_size": config.micro_batch_size,
        "max_steps": config.updates,
        "logging_freq": UPDATES_PER_LINE,
        "checkpoint_steps": 10**6,
        "save_steps": 10**6,
        "eval_freq": 10**6,
        "eval_iters": 1,
        "device": config.device,
        "num_workers": 2,
        **changes,
    }


def _launched(config: BenchConfig, folder: Path) -> Iterator[Row]:
    """Compare two processes of one thread, or GPU, with one of two threads, at the same samples per step."""
    if config.device == "gpu" and count_cards() < 2:
        yield Row("2 processes against 1", "not measured", "needs 2 GPUs")
        return
    speeds, waits = {}, []
    samples = {"global_batch_size": 2 * config.micro_batch_size}
    for _ in range(config.runs):
        for processes, threads in ((1, 2), (2, 1)):
            flags = _settings(config, folder, f"p{processes}", dp_degree=processes, **samples)
            flags["micro_batch_size"] = config.micro_batch_size * 2 // processes
            events = train_events(SCRIPT, flags, processes, threads)
            speeds.setdefault(processes, []).append(median(event["tokens_per_second"] for event in events))
            waits.append(median(event["data_wait_share"] for event in events))
    one, two = median(speeds[1]), median(speeds[2])
    each = ("1 thread", "2 threads") if config.device == "cpu" else ("1 GPU", "1 GPU")
    yield Row(f"1 process of {each[1]}: tokens/s", f"{one:,.0f}")
    yield Row(f"2 processes of {each[0]}: tokens/s", f"{two:,.0f}", f"{two / one:.2f} times the line above")
    yield Row("waiting for data, 2 loader processes: share", f"{median(waits):.2%}", "2 % at most")


def _recompute(config: BenchConfig, folder: Path) -> Iterator[Row]:
    peaks, speeds = {}, {}
    for use_recompute in (False, True):
        size = {"micro_batch_size": 4 * config.micro_batch_size, "max_steps": UPDATES_PER_LINE}
        flags = _settings(config, folder, "memory", use_recompute=use_recompute, logging_freq=5, **size)
        events = train_events(SCRIPT, flags, 1, 2)
        peaks[use_recompute] = events[-1]["memory_gb" if config.device == "cpu" else "gpu_memory_gb"]
        speeds[use_recompute] = median(event["tokens_per_second"] for event in events)
    saved, share = peaks[False] - peaks[True], speeds[True] / speeds[False]
    batch = 4 * config.micro_batch_size
    yield Row(f"recompute, batch of {batch}: peak memory saved, GB", f"{saved:.2f}", f"of {peaks[False]:.2f}")
    yield Row("recompute: tokens/s against none", f"{share:.2f}")


def _deterministic(config: BenchConfig, folder: Path) -> Iterator[Row]:
    """Measure runs with and without deterministic kernels, in turn."""
    speeds = {True: [], False: []}
    for _ in range(config.runs):
        for deterministic, found in speeds.items():
            flags = _settings(config, folder, "deterministic", deterministic=deterministic)
            found.append(median(event["tokens_per_second"] for event in train_events(SCRIPT, flags, 1, 2)))
    yield deterministic_row("tokens/s", config.device, median(speeds[True]), median(speeds[False]))


def _in_this_process(config: BenchConfig, folder: Path) -> Iterator[Row]:
    run = PretrainConfig(**_settings(config, folder, "loop", num_workers=0, from_scratch=True))
    start_device(run.device, World())
    alone, source = World(), open_model(run.model_name_or_path, model_type="ernie", from_scratch=True)
    data = open_pretrain_data(run, alone, WordPiece.from_file(source.vocab_file), source.spec)
    job, all_reduce = build_job(run, alone, alone, source, data)
    updates = list(islice(data.updates(0), config.updates))
    checkpoints = Checkpoints(Path(run.output_dir), alone, all_reduce)
    try:
        bare, whole = [], []
        for number in range(config.runs):
            bare.append(seconds_of(lambda: _bare(job, updates)))
            whole.append(seconds_of(lambda n=number: _whole(run, job, updates, checkpoints, n)))
        cost = median(w / b for b, w in zip(bare, whole)) - 1
        yield Row("update, the program alone: ms", f"{1e3 * median(bare) / len(updates):.1f}")
        what = f"update, with seeds, logs, checks, a checkpoint in {UPDATES_PER_CHECKPOINT}: ms"
        yield Row(what, f"{1e3 * median(whole) / len(updates):.1f}")
        yield Row("the second over the first", f"{cost:+.1%}", "3 % at most")
        yield _save_pause(config, folder, job, updates, checkpoints)
    finally:
        checkpoints.close()


def _bare(job, updates) -> None:
    from ernie_pair.pretrain.graph.program import LOSS_WEIGHTS
    from ernie_pair.pretrain.graph.step_monitors import PASS_SEED

    constant = {LOSS_WEIGHTS: np.full(2, 1e-3, np.float32), PASS_SEED: np.ones(1, np.int32)}
    for batches in updates:
        for batch in batches:
            job.program.run(job.program.main, {**batch, **constant})
    job.program.records(1)  # a GPU may still be busy


def _whole(run: PretrainConfig, job, updates, checkpoints: Checkpoints, number: int) -> None:
    state = TrainState(step=number * len(updates) + 1)
    last = state.step + len(updates)
    sizes = (last, run.samples_per_step, UPDATES_PER_LINE, 10**6, UPDATES_PER_CHECKPOINT)
    schedule = Schedule(*sizes, sync_freq=run.sync_freq_on(run.device))
    log = RunLog(Path(run.output_dir), state, last)

    hooks = Hooks()
    hooks.save = lambda state: checkpoints.save(state, {}, job.state_files(), {})
    job.evaluate = lambda split: {}
    train(job, updates, state, schedule, log, hooks)
    log.close()


def _save_pause(config: BenchConfig, folder: Path, job, updates, checkpoints: Checkpoints) -> Row:
    """Compare saving a checkpoint with only writing its files, in turn, each first equally often.

    As many old files are kept as checkpoints. Each save follows a step, as in a run: an old checkpoint is
    deleted then, and memory is in its usual state.
    """
    parts = [_as_bytes(content) for _, content in job.state_files()]

    def save(number: int) -> None:
        checkpoints.save(TrainState(step=10**6 + number), {}, job.state_files(), {})

    def write(number: int) -> None:
        with open(folder / f"plain{number}", "xb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())

    seconds = {save: [], write: []}
    for number in range(SAVES * config.runs):
        for action in (save, write) if number % 2 else (write, save):
            _bare(job, updates[:1])
            seconds[action].append(seconds_of(lambda a=action, n=number: a(n)))
            if action is write:
                (folder / f"plain{number - checkpoints.keep + 1}").unlink(missing_ok=True)
    size = sum(map(len, parts)) / 1e6
    saving, writing = median(seconds[save]), median(seconds[write])
    return Row(
        f"saving {size:.0f} MB against writing them with fsync, {1e3 * writing:.0f} ms",
        f"{saving / writing:.2f}",
        "1.5 at most",
    )


def _as_bytes(content: Content) -> bytes:
    return content if isinstance(content, bytes) else to_safetensors(content)


def main() -> None:
    run_command(bench, BenchConfig)


if __name__ == "__main__":
    main()
