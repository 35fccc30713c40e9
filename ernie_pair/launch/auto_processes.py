"""How many processes with how many threads each, on this machine, for `--processes auto`.

Candidates are one process with all threads, two with half of them each, and so on, as far as the samples of a
step can be split evenly: the step of the run stays as the flags define it, whatever is chosen. A short probe
times them. The choice is kept in the user's cache, for the same processor, cores, model and flags that affect
the cost of a step, so that the next start of a run uses the same.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from data_tools.files.atomic_files import nothing_kept
from data_tools.files.errors import InputError, MachineError, message_of
from data_tools.files.installation import version_of
from data_tools.files.keyed_cache import KeyedCache, user_cache
from data_tools.files.run_module import python_words
from data_tools.options.cli import parse_config
from ernie_pair.launch.launch_config import CONFIGS, LaunchConfig, read_launch
from ernie_pair.runtime.cpu import LEVEL_ASKED, cpu_quota, free_memory, listed_cores, processor_name, share_of
from ernie_pair.runtime.cpu_env import asked_threads
from ernie_pair.runtime.device import default_device
from ernie_pair.runtime.gpu.cards import without_cards
from ernie_pair.runtime.processes.child_command import ChildCommand, ernie_pair_words, last_error
from ernie_pair.runtime.processes.stop_signals import StopSignals


class StepTimes(NamedTuple):
    """The times of steps of a stand-in, in all processes at once.

    ``one``: seconds of a step of one micro-batch; ``further``: of each further one; ``rows``: samples in a
    micro-batch; ``memory``: the peak of the first process, in bytes.
    """

    one: float
    further: float
    rows: int
    memory: int

    def step_seconds(self, rows: int, passes: int) -> float:
        """Return the seconds of a step of ``passes`` micro-batches of ``rows`` samples."""
        once = max(self.one - self.further, 0.0)  # the all-reduce, and the optimizer
        return once + passes * self.further * rows / self.rows


def launcher_words(config: LaunchConfig, flags: List[str]) -> List[str]:
    """Return a command line of `ernie_pair.launcher`, or that of a process without it."""
    return words_around(config, [*ernie_pair_words("-u"), config.command, *flags])


def words_around(config: LaunchConfig, run: List[str]) -> List[str]:
    """Return the command line that starts ``run`` in the processes of ``config``."""
    if config.is_alone:
        return run
    words = [*python_words(), "-m", "ernie_pair.launcher", "--log_dir", config.log_dir]
    words += ["--gpus", config.gpus] if config.gpus else ["--nproc_per_node", str(config.on_each_machine)]
    if config.nnodes > 1:
        words += ["--nnodes", str(config.nnodes), "--master", config.master]
    return words + run


def environment_of(config: LaunchConfig) -> Dict[str, str]:
    """Return the environment variables that tell the launcher not to use GPUs that are not wanted."""
    if config.gpus or config.is_alone or default_device() == "cpu":
        return {}
    return without_cards(config.on_each_machine)


SECONDS = 180.0  # per candidate; most of it is the start of its processes
CLEARLY_SLOWER = 1.15  # than the best so far: then larger numbers of processes are not tried
MEMORY_SHARE = 0.8  # of the free memory, for all processes


class Candidate(NamedTuple):
    """A way to start a run: processes of ``threads`` that take ``passes`` times ``rows`` per step each."""

    launch: LaunchConfig
    flags: List[str]
    threads: int
    rows: int
    passes: int

    @property
    def processes(self) -> int:
        """Return the number of processes."""
        return self.launch.on_each_machine

    @property
    def words(self) -> str:
        """Return processes and threads in words."""
        processes, threads = "process" + "es" * (self.processes > 1), "thread" + "s" * (self.threads > 1)
        return f"{self.processes} {processes} x {self.threads} {threads}"


class Choice(NamedTuple):
    """The number of processes, and why, as a line."""

    processes: int
    reason: str


def measure(candidates: List[Candidate]) -> Choice:
    """Return the fastest of ``candidates``, which are in the order of their processes; each is shown.

    Raises InputError if none could be timed, and Stopped after a signal, within `StopSignals`.
    """
    count = len(candidates)
    _say(f"--processes auto: timing up to {count} ways to use the cores, once for runs like this one")
    taken: Dict[str, float] = {}
    best, memory = candidates[0], 0
    for candidate in candidates:
        if memory * candidate.processes > MEMORY_SHARE * free_memory():
            _say(f"  {candidate.words}: not tried, there is too little memory")
            break
        times = _time(candidate)
        if isinstance(times, str):
            _say(f"  {candidate.words}: {times}")
            continue
        taken[candidate.words] = seconds = times.step_seconds(candidate.rows, candidate.passes)
        memory = memory or times.memory
        _say(f"  {candidate.words}: {_shown(seconds)}")
        best = candidate if seconds == min(taken.values()) else best
        if seconds > CLEARLY_SLOWER * taken[best.words]:
            break
    if not taken:
        raise InputError("--processes auto could not time a step; give a number, 1 for example, to see why")
    others = ", ".join(f"{_shown(taken[words])} with {words}" for words in taken if words != best.words)
    against = f", against {others}" if others else ""
    return Choice(
        best.processes, f"{best.words}: {_shown(taken[best.words])} for a step of a stand-in{against}"
    )


def _time(candidate: Candidate) -> Union[StepTimes, str]:
    with tempfile.TemporaryDirectory(prefix="ernie-pair-") as name:
        folder = Path(name)
        answer, launch = folder / "answer.json", replace(candidate.launch, log_dir=str(folder / "log"))
        run = [*python_words("-u"), "-m", "ernie_pair.launch.time_steps", str(answer), launch.command]
        words = words_around(launch, [*run, *candidate.flags])
        environment = {**os.environ, **environment_of(launch)}
        try:
            with ChildCommand((), "a probe", folder / "said", environment, program=words) as child:
                code = child.wait(SECONDS)
        except subprocess.TimeoutExpired:
            return f"no answer in {SECONDS:.0f} s"
        if code or not answer.is_file():
            logs = [folder / "said", *sorted((folder / "log").glob("workerlog.*"))]
            errors = list(filter(None, (last_error(log, 0) for log in logs)))
            return f"it ended with exit code {code}" + (f": {errors[-1]}" if errors else "")
        return StepTimes(**json.loads(answer.read_text(encoding="utf-8")))


def _shown(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# The flags that affect the cost of a step, in both halves; the sizes are those of the candidates.
# fmt: off
OF_COST = (
    "max_seq_len", "kernels", "precision", "use_recompute", "use_amp", "amp_dtype", "sharding_degree",
    "dropout", "hidden_dropout_prob", "attention_probs_dropout_prob", "binary_head",
    "rdrop_alpha", "fgm_epsilon", "freeze", "freeze_layers", "pooling", "train_file",
)
# fmt: on


def choose_processes(
    words: Sequence[str], launch: LaunchConfig, flags: List[str]
) -> Tuple[LaunchConfig, List[str]]:
    """Return how to start ``words`` of `ernie-pair launch`, and the flags of what is started.

    ``launch`` and ``flags`` are the result of `read_launch`, with the number of processes left open. One
    line says what was chosen, and why. Raises InputError if no number divides the samples of a step, and
    Stopped after a signal.
    """
    config: Any = parse_config(CONFIGS[launch.command], flags, f"ernie-pair {launch.command}")
    candidates = list(_candidates(words, config))
    if not candidates:
        raise InputError(
            "--processes auto finds no number of processes that these flags allow on this machine's cores; "
            "give a number, --processes 1 for example, to see why"
        )
    with StopSignals(), nothing_kept(config.dry_run):  # the timed processes end with this one
        choice = _choose(config, candidates)
    _say(f"--processes auto: {choice.reason}")
    chosen = next(one for one in candidates if one.launch.processes == choice.processes)
    return chosen.launch, chosen.flags


def _candidates(words: Sequence[str], config: Any):
    for processes, threads in processes_to_try():
        sizes = sizes_of(config, processes)
        if sizes is None:
            continue
        try:
            launch, flags = read_launch(words, processes, sizes)
        except InputError:  # --dp_degree or --sharding_degree require another number
            continue
        rows, further = sizes.values()
        passes = further if "batch_size" in sizes else further // (rows * processes)
        yield Candidate(launch, flags, threads, rows, passes)


def processes_to_try() -> List[Tuple[int, int]]:
    """Return (processes, threads of each): 1, 2, 4 and so on, up to one for each core."""
    cores, requested = share_of(0, 1).threads, asked_threads()
    most = max(1, cores // requested) if requested else cores
    counts = {2**power for power in range(most.bit_length()) if 2**power <= most}
    return [(count, requested or share_of(0, count).threads) for count in sorted({*counts, most})]


def sizes_of(config: Any, processes: int) -> Optional[Dict[str, int]]:
    """Return the flags that split a step of ``config`` over ``processes``; None if they do not divide it.

    ``config``: of training or pretraining, for the fewest processes that it allows. The samples of a
    step do not change; a process takes at most as many at a time as ``config`` says. Micro-batches in
    --phases do not change.
    """
    pairs = hasattr(config, "pairs_per_step")
    samples = config.pairs_per_step(1) if pairs else config.samples_per_step
    most = config.batch_size if pairs else config.micro_batch_size
    share, rest = divmod(samples, processes)
    named = [] if pairs else [phase.micro_batch_size for phase in config.phase_list]
    if rest or any(size != most and share % size for size in named):
        return None
    rows = max(size for size in range(1, min(most, share) + 1) if share % size == 0)
    if pairs:
        return {"batch_size": rows, "gradient_accumulation_steps": share // rows}
    return {"micro_batch_size": rows, "global_batch_size": samples}


def _choose(config: Any, candidates: List[Candidate]) -> Choice:
    """Return the fastest of ``candidates``, measured now or at an earlier start."""
    if len(candidates) == 1:
        return Choice(candidates[0].processes, f"{candidates[0].words}, the only way that the flags allow")
    measured: List[Choice] = []

    def build() -> Choice:
        measured.append(measure(candidates))
        return measured[0]

    def load(note: Dict[str, Any]) -> Choice:
        return Choice(int(note["processes"]), str(note["reason"]))

    try:
        path = Path(config.model_name_or_path, "config.json")
        sizes = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        key: Dict[str, object] = {
            "versions": [version_of(name) for name in ("ernie-pair", "paddlepaddle", "paddlepaddle-gpu")],
            "processor": processor_name(),
            "cores": [listed_cores(share_of(0, 1).cores), cpu_quota()],
            "command": candidates[0].launch.command,
            "candidates": [[one.processes, one.threads, one.rows, one.passes] for one in candidates],
            "flags": {name: getattr(config, name, None) for name in OF_COST},
            "model": sizes or config.model_name_or_path,
            "kernels": os.environ.get(LEVEL_ASKED, ""),
        }
        kept: KeyedCache[Choice] = KeyedCache(user_cache(), key, Choice._asdict, load, kind="processes-")
        choice = kept.read()
        if choice is None:
            return kept.get(build, len(candidates) * SECONDS)
    except (OSError, MachineError) as error:  # no home, or one that is not writable
        choice = measured[0] if measured else build()
        return Choice(choice.processes, f"{choice.reason} (not kept: {message_of(error)})")
    again = f"measured at an earlier start; to measure again, remove {kept.note}"
    return Choice(choice.processes, f"{choice.reason} ({again})")
