"""Paddle's launcher, with its flags and signals, and without eight of its behaviours.

python -m ernie_pair.launcher --gpus 0,1 FILE [flags of FILE]

The environment may hold passwords, and `paddle.distributed.launch` writes all of it into its log folder at
every start and to the console when a process fails; this one does neither. Every process computes with its
share of the cores, or with the user's OMP_NUM_THREADS, where Paddle's launcher lets it use one core. GPUs
that are not there are an error of one line (exit code 2), not a traceback. Processes that are to run on the
CPU (`--device cpu` behind FILE) are given no GPU. Its own exit code is that of the process which failed,
not of another one that it has stopped because of it. It says nothing of itself but warnings and errors
(--log_level INFO brings the rest back), and shows the last lines of a run that is stopped. On a terminal
what it shows of the first process has its colours. The processes of one machine meet at a port that no
program is given by chance in the seconds until they do.
"""

import os
import sys
from pathlib import Path
from typing import Dict, Optional, Sequence

from data_tools.base.cli import exit_code_of
from data_tools.base.errors import InputError, counted
from data_tools.base.installation import install_command
from ernie_pair.device.cpu_env import restore_asked_threads
from ernie_pair.device.gpu.cards import count_cards, without_cards
from ernie_pair.device.paddle_patches.launcher import (
    asked_gpus,
    asked_log,
    asked_machines,
    asked_processes,
    keep_launcher_quiet,
    last_lines_shown,
    own_exit_code,
    private_environment,
    start_launcher,
    visible_gpus,
)
from ernie_pair.processes.console import log_shown
from ernie_pair.processes.dry_logs import dry_logs_removed


def main() -> None:
    """Start the processes of ``sys.argv``, and exit with the code of the first that failed."""
    sys.exit(exit_code_of(launch))


def launch() -> None:
    """Start the processes that ``sys.argv`` asks for; exit with the code of the first that failed.

    Raises InputError for GPUs that are not there, before anything is started. Processes that are to run on
    the CPU are given none.
    """
    refuse_absent_gpus(asked_gpus())
    if not asked_gpus():
        os.environ.update(environment_of_processes(asked_processes(), is_cpu_asked(sys.argv)))
    machines, master = asked_machines()
    if machines == 1 and not (master or os.environ.get("PADDLE_MASTER")):
        os.environ.setdefault("PORT_RANGE", ports_not_given_by_chance())
    restore_asked_threads()  # Paddle, loaded meanwhile, has set one for all that is started
    tell_of_waiting(machines, master)
    keep_launcher_quiet()
    log = asked_log()
    with dry_logs_removed(), log_shown(log), private_environment(), own_exit_code(), last_lines_shown():
        start_launcher()


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
    import paddle

    if not asked:
        return
    cure = (
        "leave --gpus out: --nproc_per_node 2 (of ernie-pair launch: --processes 2), and --device cpu for "
        "the processes"
    )
    if not paddle.is_compiled_with_cuda():
        gpu_build = install_command("gpu")
        raise InputError(f"--gpus {asked}, but this Paddle is the CPU build; {gpu_build}, or {cure}")
    if paddle.device.cuda.device_count() == 0:
        raise InputError(f"--gpus {asked}, but no GPU is visible; check the driver, or {cure}")
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
