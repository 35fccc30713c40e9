"""Paddle's launcher, with its flags and signals, and without nine of its behaviours.

python -m ernie_pair.launcher --gpus 0,1 FILE [flags of FILE]

It writes the environment, which may hold passwords, nowhere. Every process computes with its share of the
cores, or with the user's OMP_NUM_THREADS. GPUs that are not there are an error of one line (exit code 2).
Processes on the CPU (`--device cpu` behind FILE) are given no GPU. When a process fails, the last line names
it and its log, and the exit code is its own; see `blame`. When the launcher ends, so do its processes and
what they have started. It says nothing of itself but warnings and errors (--log_level INFO: the rest), and
shows the last lines of a run that is stopped. The processes of one machine meet at a port that no program is
given by chance until they do.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Dict, NoReturn, Optional, Sequence, Tuple

from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import (
    CheckpointError,
    InputError,
    LostProcessError,
    MachineError,
    NumbersError,
    counted,
)
from ernie_pair.runtime.cpu import restore_asked_threads
from ernie_pair.runtime.gpu import count_cards, why_no_gpu, without_cards
from ernie_pair.runtime.paddle_patches.launcher import (
    FailedProcess,
    LaunchEnd,
    asked_launch,
    keep_launcher_quiet,
    keep_words_of_scripts,
    private_environment,
    run_launcher,
    visible_gpus,
)
from ernie_pair.runtime.processes.console import dry_logs_removed, log_shown
from ernie_pair.runtime.processes.stop_signals import stop_with_the_launcher

ERROR = "error: "  # begins the line of an error; see `exit_code_of`
NOT_SAVED = tuple(error.exit_code for error in (CheckpointError, NumbersError, MachineError))


def main() -> None:
    """Start the processes of ``sys.argv``, and exit with the code of the first that failed."""
    sys.exit(exit_code_of(launch))


def launch() -> None:
    """Start the processes that ``sys.argv`` asks for; exit with the code of the first that failed.

    Raises InputError for GPUs that are not there, before anything is started. Processes that are to run on
    the CPU are given none.
    """
    keep_words_of_scripts()
    asked = asked_launch()
    refuse_absent_gpus(asked.devices)
    if not asked.devices:
        os.environ.update(environment_of_processes(int(asked.nproc_per_node or 0), is_cpu_asked(sys.argv)))
    machines, master = int(str(asked.nnodes).partition(":")[0]), asked.master or ""  # the fewest of a range
    if machines == 1 and not (master or os.environ.get("PADDLE_MASTER")):
        os.environ.setdefault("PORT_RANGE", ports_not_given_by_chance())
    restore_asked_threads()  # Paddle, loaded meanwhile, has set one for all that is started
    tell_of_waiting(machines, master)
    keep_launcher_quiet()
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # and not that of nohup
        signal.signal(signal.SIGHUP, lambda number, frame: os.kill(os.getpid(), signal.SIGTERM))
    log = Path(asked.log_dir, "workerlog.0")  # of the first process
    with dry_logs_removed(), log_shown(log), private_environment(stop_with_the_launcher):
        end = run_launcher()
    leave(end, log.parent)


def leave(end: LaunchEnd, logs: Path) -> NoReturn:
    """End this process, with one line that says why its processes have ended, unless all is well."""
    if end.signal:
        usual = 128 + (signal.SIGINT if end.signal == signal.SIGINT else signal.SIGTERM)
        code = next((code for code in end.codes if code in NOT_SAVED), usual)
        line = f"stopped by {signal.Signals(end.signal).name}; what each process printed is in {logs}"
    elif end.failed:
        blamed = blame(end.failed)
        sys.stdout.write("" if blamed.shows else blamed.tail)
        code, line = failure_of(blamed)
    elif any(end.codes):
        code = LostProcessError.exit_code
        line = f"error: stopped, since a process on another machine failed; see its log, and {logs} here"
    else:
        sys.exit(end.code)  # type: ignore[arg-type]
    sys.stdout.flush()
    sys.stderr.write(f"{line}\n")
    sys.exit(code)


def blame(failed: Sequence[FailedProcess]) -> FailedProcess:
    """Return the cause among the failed: one that was killed, or lost no other; the first to fall silent."""
    lost = LostProcessError.exit_code
    return min(failed, key=lambda each: (each.code > 0, each.code == lost, each.wrote))


def failure_of(blamed: FailedProcess) -> Tuple[int, str]:
    """Return (the exit code of the launcher, its line) for the process that is the cause of the end.

    The code is that of the process; for one that was killed 6, as if lost, or 128 + N for a signal N that
    asks to end. The line repeats the error that the process has printed last.
    """
    errors = [line[len(ERROR) :] for line in blamed.tail.splitlines() if line.startswith(ERROR)]
    code, fate = blamed.code, f"ended with exit code {blamed.code}" + "".join(f": {e}" for e in errors[-1:])
    if code < 0:
        number = signal.Signals(-code)
        asks = number in (signal.SIGINT, signal.SIGTERM)
        code, fate = 128 + number if asks else LostProcessError.exit_code, f"was killed by {number.name}"
    return code, f"{ERROR}rank {blamed.rank} (pid {blamed.pid}) {fate}; see {blamed.log}"


def ports_not_given_by_chance() -> str:
    """Return the ports to choose from, as Paddle's launcher reads them: first:last.

    Its own 35100:64000 lie among those which the kernel gives to whoever asks for any. There another program
    can be given the port that the launcher has found free, before its processes have started.
    """
    try:
        first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first_given = 32768  # of Linux, unless it is told otherwise
    return f"10000:{first_given - 1}" if first_given > 20000 else "35100:64000"


def refuse_absent_gpus(asked: Optional[str]) -> None:
    """Raise InputError for GPUs that Paddle does not see; ``asked``: as in --gpus 0,1."""
    if not asked:
        return
    count = asked.count(",") + 1
    if count_cards() == 0:
        raise InputError(
            f"--gpus {asked}, but {why_no_gpu()}; or use the CPU: --nproc_per_node {count} in its place (of "
            f"ernie-pair launch: --processes {count}), and --device cpu if the program has it"
        )
    visible = visible_gpus()
    absent = [gpu.strip() for gpu in asked.split(",") if gpu.strip() not in visible]
    if absent:
        raise InputError(f"--gpus {asked}: GPU {absent[0]} is not among the visible {','.join(visible)}")


def environment_of_processes(asked: int, on_cpu: bool) -> Dict[str, str]:
    """Return the variables that start ``asked`` processes on a machine whose GPUs nobody has named.

    Paddle's launcher gives a GPU to each. Raises InputError if they are fewer and the CPU is not asked
    for.
    """
    visible = count_cards()
    if not visible:
        return {}
    if on_cpu:
        return without_cards(max(asked, 1))
    if asked > visible:
        raise InputError(
            f"--nproc_per_node {asked} is more than the {counted(visible, 'visible GPU')}, one for each "
            f"process; start at most {visible}, or add --device cpu behind the file"
        )
    return {}


def tell_of_waiting(machines: int, master: str) -> None:
    """Say that a run on several ``machines`` begins once all have been started."""
    if machines > 1 and master:
        sys.stderr.write(f"waiting until {machines} machines have been started, at {master}\n")
        sys.stderr.flush()


def is_cpu_asked(words: Sequence[str]) -> bool:
    """Return whether the flags of the launched file, among all ``words``, say --device cpu; the last one."""
    given = [word.partition("=")[2] for word in words if word.startswith("--device=")]
    given += [value for word, value in zip(words, words[1:]) if word == "--device"]
    return given[-1:] == ["cpu"]


if __name__ == "__main__":
    main()
