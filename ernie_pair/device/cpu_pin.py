"""Pin the processes of a run on this machine to separate cores, and report which.

Linux moves waiting processes between cores, and leaves their cached data behind. A share is a set of
cores, within which threads still move, so that two runs on one machine do not compete for a single core.

Measured with two processes of one thread on two cores that others use as well, 4 layers x 312, 32 x 25 pairs
each, four runs in alternation: 1155 ms a step pinned and 1437 not, less in each of the four; 2 % less CPU
time.
"""

import os
from contextlib import suppress

from ernie_pair.device.cpu_cores import cpu_quota, listed_cores
from ernie_pair.device.cpu_env import THREADS, asked_threads, cpu_share, cpu_threads

CHOSEN_BY_USER = ("KMP_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")


def pin_to_share() -> None:
    """Let every thread of this process run only on the cores of its share, if that share is its own.

    Does nothing for a process that is alone or pinned already, if the user has chosen how threads are
    bound, or if more threads are requested than the share has cores. Call it before the first
    parallel loop: the threads of OpenMP inherit the cores of the one that starts them.
    """
    share = cpu_share()
    wanted, crowded = set(share.cores), cpu_threads() > len(share.cores)
    if not share.is_own or crowded or any(name in os.environ for name in CHOSEN_BY_USER):
        return
    if wanted < os.sched_getaffinity(0):
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError):  # it has ended, or the machine does not allow pinning
                os.sched_setaffinity(int(thread), wanted)


def describe_threads() -> str:
    """Return the threads of this process and the cores that they run on, in words."""
    count, share, allowed = cpu_threads(), cpu_share(), sorted(os.sched_getaffinity(0))
    threads = f"{count} thread{'s' * (count > 1)}{f' ({THREADS})' * bool(asked_threads())}"
    cores = f"core{'s' * (len(allowed) > 1)} {listed_cores(allowed)}"
    quota = cpu_quota()
    limit = f" with a cpu quota of {quota:g}" if quota is not None and quota < len(allowed) else ""
    return f"{threads}{' on' if share.is_own else ', a share of'} {cores}{limit}"
