"""How many processes with how many threads each, on this machine, for `--processes auto`.

Candidates are one process with all threads, two with half of them each, and so on, as far as the samples of a
step can be split evenly: the step of the run stays as the flags define it, whatever is chosen. A short probe
times them. The choice is kept in the user's cache, for the same processor, cores, model and flags that affect
the cost of a step, so that the next start of a run uses the same.
"""

import os
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from data_tools.base.cli import parse_config
from data_tools.base.errors import InputError, MachineError, message_of
from data_tools.base.installation import version_of
from data_tools.files.keyed_cache import KeyedCache, user_cache
from data_tools.files.nothing_kept import nothing_kept
from ernie_pair.device.cpu_cores import cpu_quota, listed_cores, share_of
from ernie_pair.device.cpu_env import asked_threads
from ernie_pair.device.cpu_level import processor_name
from ernie_pair.kernels.levels import LEVEL_ASKED
from ernie_pair.launch.launch_config import CONFIGS, LaunchConfig, read_launch
from ernie_pair.launch.probe import SECONDS, Candidate, Choice, measure
from ernie_pair.processes.stop_signals import StopSignals

# The flags that affect the cost of a step, in both halves; the sizes are those of the candidates.
OF_COST = (
    *("max_seq_len", "kernels", "precision", "use_recompute", "use_amp", "amp_dtype", "sharding_degree"),
    *("dropout", "hidden_dropout_prob", "attention_probs_dropout_prob", "binary_head"),
    *("rdrop_alpha", "fgm_epsilon", "freeze", "freeze_layers", "pooling", "train_file"),
)


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
    sys.stderr.write(f"--processes auto: {choice.reason}\n")
    chosen = next(one for one in candidates if one.launch.processes == choice.processes)
    return chosen.launch, chosen.flags


def _candidates(words: Sequence[str], config: Any):
    """Yield the ways to start ``words`` that the flags allow."""
    for processes, threads in processes_to_try():
        sizes = sizes_of(config, processes)
        if sizes is None:
            continue
        try:
            launch, flags = read_launch(words, processes, sizes)
        except InputError:  # --dp_degree or --sharding_degree require another number
            continue
        rows, further = sizes.values()
        pairs = "batch_size" in sizes
        passes = further if pairs else further // (rows * processes)
        yield Candidate(launch, flags, threads, rows, passes)


def processes_to_try() -> List[Tuple[int, int]]:
    """Return (processes, threads of each): 1, 2, 4 and so on, up to one for each core."""
    cores, asked = share_of(0, 1).threads, asked_threads()
    most = max(1, cores // asked) if asked else cores
    counts = {2**power for power in range(most.bit_length()) if 2**power <= most}
    return [(count, asked or share_of(0, count).threads) for count in sorted({*counts, most})]


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
    key = _key_of(config, candidates)
    try:
        cache = user_cache()
    except MachineError as error:
        return _not_kept(measure(candidates), error)
    kept: KeyedCache[Choice] = KeyedCache(cache, key, Choice._asdict, _load, kind="processes-")
    found = kept.read()
    if found is not None:
        again = f"measured at an earlier start; to measure again, remove {kept.note}"
        return Choice(found.processes, f"{found.reason} ({again})")
    measured: List[Choice] = []

    def build() -> Choice:
        measured.append(measure(candidates))
        return measured[0]

    try:
        return kept.get(build, len(candidates) * SECONDS)
    except (OSError, MachineError) as error:  # a home that is not writable
        return _not_kept(measured[0] if measured else build(), error)


def _not_kept(choice: Choice, error: Exception) -> Choice:
    return Choice(choice.processes, f"{choice.reason} (not kept: {message_of(error)})")


def _load(note: Dict[str, Any]) -> Choice:
    return Choice(int(note["processes"]), str(note["reason"]))


def _key_of(config: Any, candidates: List[Candidate]) -> Dict[str, object]:
    """Return what the choice depends on."""
    folder = Path(config.model_name_or_path, "config.json")
    sizes = folder.read_text(encoding="utf-8", errors="replace") if folder.is_file() else ""
    return {
        "versions": [version_of(name) for name in ("ernie-pair", "paddlepaddle", "paddlepaddle-gpu")],
        "processor": processor_name(),
        "cores": [listed_cores(share_of(0, 1).cores), cpu_quota()],
        "command": candidates[0].launch.command,
        "candidates": [[one.processes, one.threads, one.rows, one.passes] for one in candidates],
        "flags": {name: getattr(config, name, None) for name in OF_COST},
        "model": sizes or config.model_name_or_path,
        "kernels": os.environ.get(LEVEL_ASKED, ""),
    }
