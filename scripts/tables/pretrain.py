"""The overhead of seeds, logs, checks and checkpoints in pretraining.

Bare is the program alone, run repeatedly on prepared batches. The same steps through the loop, with seeds,
logs, finite checks and a checkpoint, are measured in turn with it; figures are medians.
"""

import os
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Iterator

import numpy as np
from side_by_side.cases import NO_END, Shape, medians_of, runs_in_turn, silence, write_corpus, write_model
from side_by_side.our_lane import open_pretraining

from ernie_pair.checkpoint.checkpoints import Checkpoints
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.runtime.device import start_device
from ernie_pair.runtime.processes.world import World
from ernie_pair.training.hooks import Hooks, Schedule
from ernie_pair.training.loop import train
from ernie_pair.training.run_log import RunLog
from ernie_pair.weights.weight_files import to_safetensors
from tables import Row, seconds_of
from tables.pair import deterministic_row

STEPS_PER_CHECKPOINT, STEPS_PER_LINE, SAVES = 100, 20, 7


def measured(config, folder: Path) -> Iterator[Row]:
    yield Row("what", f"median of {config.runs}", "goal")
    with silence():
        shape = Shape(config.num_hidden_layers, config.hidden_size)
        write_model(folder / "model", config.vocab_file, "ernie", shape)
        write_corpus(folder, config.vocab_file)
    settings = {
        "model_name_or_path": str(folder / "model"), "from_scratch": True, "input_dir": str(folder / "data"),
        "split": "90,5,5", "max_seq_len": config.max_seq_len, "micro_batch_size": config.batch_size,
        "max_steps": config.steps, "logging_freq": STEPS_PER_LINE, "checkpoint_steps": NO_END,
        "save_steps": NO_END, "eval_freq": NO_END, "eval_iters": 1, "device": config.device, "num_workers": 2,
    }  # fmt: skip
    yield from _whole_runs(config, folder, settings)
    yield from _in_this_process(config, folder, settings)


def _whole_runs(config, folder: Path, settings: dict) -> Iterator[Row]:
    """Measure whole runs in turn: two processes against one, recompute, and kernels that may vary."""
    size, is_on_cpu = config.batch_size, config.device == "cpu"
    large = {"micro_batch_size": 4 * size, "max_steps": STEPS_PER_LINE, "logging_freq": 5}
    both = {"global_batch_size": 2 * size}
    ways = {
        "one": (1, 2, {**both, "micro_batch_size": 2 * size}),
        "two": (2, 1, {**both, "dp_degree": 2}),
        "plain": (1, 2, large),
        "recompute": (1, 2, {**large, "use_recompute": True}),
        "deterministic": (1, 2, {}),
        "free": (1, 2, {"deterministic": False}),
    }
    if not is_on_cpu:  # processes can share the cores of a CPU, but each would need its own GPU
        del ways["one"], ways["two"]
    runs = runs_in_turn("run_pretrain_static.py", folder, settings, ways, config.runs)
    speed, waits = medians_of(runs, "tokens_per_second"), medians_of(runs, "data_wait_share")
    memory = {way: each[-1][-1]["memory_gb" if is_on_cpu else "gpu_memory_gb"] for way, each in runs.items()}
    if is_on_cpu:
        times = f"{speed['two'] / speed['one']:.2f} times the line above"
        yield Row("1 process of 2 threads: tokens/s", f"{speed['one']:,.0f}")
        yield Row("2 processes of 1 thread: tokens/s", f"{speed['two']:,.0f}", times)
        waited = f"{median([waits['one'], waits['two']]):.2%}"
        yield Row("waiting for data, 2 loader processes: share", waited, "2 % at most")
    saved = f"{memory['plain'] - memory['recompute']:.2f}"
    yield Row(f"recompute, batch of {4 * size}: peak memory saved, GB", saved, f"of {memory['plain']:.2f}")
    yield Row("recompute: tokens/s against none", f"{speed['recompute'] / speed['plain']:.2f}")
    yield deterministic_row("tokens/s", config.device, speed["deterministic"], speed["free"])


def _in_this_process(config, folder: Path, settings: dict) -> Iterator[Row]:
    run = PretrainConfig(**{**settings, "output_dir": str(folder / "loop"), "num_workers": 0})
    start_device(run.device, World())
    job, data, all_reduce = open_pretraining(run)
    updates = list(islice(data.updates(0), config.steps))
    checkpoints = Checkpoints(Path(run.output_dir), World(), all_reduce)
    try:
        bare, whole = [], []
        for number in range(config.runs):
            bare.append(seconds_of(lambda: _bare(job, updates)).clock)
            whole.append(seconds_of(lambda n=number: _whole(run, job, updates, checkpoints, n)).clock)
        cost = median(w / b for b, w in zip(bare, whole)) - 1
        yield Row("update, the program alone: ms", f"{1e3 * median(bare) / len(updates):.1f}")
        what = f"update, with seeds, logs, checks, a checkpoint in {STEPS_PER_CHECKPOINT}: ms"
        yield Row(what, f"{1e3 * median(whole) / len(updates):.1f}")
        yield Row("the second over the first", f"{cost:+.1%}", "3 % at most")
        yield _save_pause(config, folder, job, updates, checkpoints)
    finally:
        checkpoints.close()


def _bare(job, updates) -> None:
    from ernie_pair.pretraining.graph.program_state import LOSS_WEIGHTS
    from ernie_pair.pretraining.graph.step_monitors import PASS_SEED

    constant = {LOSS_WEIGHTS: np.full(2, 1e-3, np.float32), PASS_SEED: np.ones(1, np.int32)}
    for batches in updates:
        for batch in batches:
            job.program.run(job.program.main, {**batch, **constant})
    job.program.records(1)  # a GPU may still be busy


def _whole(run: PretrainConfig, job, updates, checkpoints: Checkpoints, number: int) -> None:
    state = TrainState(step=number * len(updates) + 1)
    last = state.step + len(updates)
    sizes = (last, run.samples_per_step, STEPS_PER_LINE, NO_END, STEPS_PER_CHECKPOINT)
    schedule = Schedule(*sizes, sync_freq=run.sync_freq_on(run.device))
    log, hooks = RunLog(Path(run.output_dir), state, last), Hooks()
    hooks.save = lambda state: checkpoints.save(state, {}, job.state_files(), {})
    job.evaluate = lambda split: {}
    train(job, updates, state, schedule, log, hooks)
    log.close()


def _save_pause(config, folder: Path, job, updates, checkpoints: Checkpoints) -> Row:
    """Compare saving a checkpoint with only writing its files, in turn, each first equally often.

    As many old files are kept as checkpoints. Each save follows a step, as in a run: an old checkpoint is
    deleted then, and memory is in its usual state.
    """
    contents = [content for _, content in job.state_files()]
    parts = [content if isinstance(content, bytes) else to_safetensors(content) for content in contents]

    def save(number: int) -> None:
        checkpoints.save(TrainState(step=NO_END + number), {}, job.state_files(), {})

    def write(number: int) -> None:
        with open(folder / f"plain{number}", "xb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())

    seconds = {save: [], write: []}
    for number in range(SAVES * config.runs):
        for action in (save, write) if number % 2 else (write, save):
            _bare(job, updates[:1])
            seconds[action].append(seconds_of(lambda a=action, n=number: a(n)).clock)
            if action is write:
                (folder / f"plain{number - checkpoints.keep + 1}").unlink(missing_ok=True)
    size = sum(map(len, parts)) / 1e6
    saving, writing = median(seconds[save]), median(seconds[write])
    what = f"saving {size:.0f} MB against writing them with fsync, {1e3 * writing:.0f} ms"
    return Row(what, f"{saving / writing:.2f}", "1.5 at most")
