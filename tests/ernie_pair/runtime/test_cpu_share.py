"""Cores and threads: of a fake machine, and of small processes that a launcher starts."""

import os
import subprocess
import sys

import pytest
from places import ROOT

from ernie_pair.runtime import cpu as cpu_cores
from ernie_pair.runtime import cpu_env
from ernie_pair.runtime import cpu_env as cpu_pin
from ernie_pair.runtime.cpu import cores_in, cpu_quota, listed_cores, share_of, usable_cores


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Fake a machine: the cores of the affinity mask, and the files of Linux below another root."""

    def fake(cores, files=(), launcher=None):
        masks = {0: set(cores), os.getppid(): set(cores if launcher is None else launcher)}
        monkeypatch.setattr(os, "sched_getaffinity", masks.__getitem__)
        monkeypatch.setattr(os, "sched_setaffinity", lambda thread, wanted: masks.update({0: set(wanted)}))
        monkeypatch.setattr(cpu_cores, "ROOT", tmp_path)
        for name, text in dict(files).items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return masks

    for name in (*cpu_pin.CHOSEN_BY_USER, "PADDLE_LOCAL_RANK", "PADDLE_LOCAL_SIZE", "PADDLE_TRAINERS_NUM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cpu_env, "THREADS_ASKED", "")
    share_of.cache_clear()
    yield fake
    share_of.cache_clear()


@pytest.mark.parametrize(
    "files, quota",
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2.0),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "150000 100000\n"}, 1.5),
        (  # the parent group allows less
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/cpu.max": "100000 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
            },
            1.0,
        ),
        (  # cgroup v1, in a container that does not see the path of its group
            {
                "proc/self/cgroup": "4:memory:/x\n1:cpu,cpuacct:/docker/77\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            3.0,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
    ],
)
def test_the_cpu_quota_is_the_smallest_of_all_cgroups(files, quota, machine):
    machine(range(8), files)
    assert cpu_quota() == quota


def quota_of(cores):
    return {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": f"{cores * 100000} 100000\n"}


QUOTA_OF_TWO = quota_of(2)


@pytest.mark.parametrize(
    "cores, files, local_size, shares",
    [
        (range(8), {}, 1, [(8, range(8))]),
        (range(8), {}, 2, [(4, range(4)), (4, range(4, 8))]),
        (range(7), {}, 3, [(2, (0, 1)), (2, (2, 3)), (2, (4, 5, 6))]),
        ((3, 5), {}, 2, [(1, [3]), (1, [5])]),
        (range(2), {}, 3, [(1, range(2))] * 3),
        (range(64), QUOTA_OF_TWO, 1, [(2, range(64))]),
        (range(64), QUOTA_OF_TWO, 2, [(1, range(64))] * 2),
        (range(64), QUOTA_OF_TWO, 4, [(1, range(64))] * 4),
        (range(64), quota_of(3), 1, [(3, range(64))]),
        (range(64), quota_of(3), 2, [(1, range(64))] * 2),
        (range(64), quota_of(6), 4, [(1, range(64))] * 4),
        (range(64), quota_of(6), 2, [(3, range(64))] * 2),
    ],
)
def test_processes_of_a_machine_share_its_cores(cores, files, local_size, shares, machine):
    machine(cores, files)
    for rank, (threads, own) in enumerate(shares):
        share = share_of(rank, local_size)
        assert (share.threads, share.cores) == (threads, list(own))


def test_a_share_holds_whole_physical_cores_of_one_node(machine):
    """The usual numbering: node 0 has the even cores, and 4 to 7 are the hyper-threads of 0 to 3."""
    files = {f"sys/devices/system/node/node{n}/cpulist": f"{n},{n + 2},{n + 4},{n + 6}\n" for n in (0, 1)}
    for core in range(8):
        name = f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
        files[name] = f"{core % 4},{core % 4 + 4}\n"
    machine(range(8), files)
    assert usable_cores() == [0, 4, 2, 6, 1, 5, 3, 7]
    assert share_of(0, 2).cores == [0, 4, 2, 6] and share_of(3, 4).cores == [3, 7]


def test_an_externally_pinned_process_keeps_its_cores(machine, monkeypatch):
    monkeypatch.setenv("PADDLE_LOCAL_RANK", "1")
    monkeypatch.setenv("PADDLE_LOCAL_SIZE", "2")
    masks = machine(cores=(6, 7), launcher=range(8))
    assert cpu_env.cpu_threads() == 2
    cpu_pin.pin_to_share()
    assert masks[0] == {6, 7}


def test_externally_pinned_processes_share_the_quota(machine, monkeypatch):
    launched(monkeypatch)
    machine(cores=range(4, 8), files=quota_of(3), launcher=range(8))
    assert cpu_env.cpu_threads() == 1


def launched(monkeypatch, rank=1, size=2):
    monkeypatch.setenv("PADDLE_LOCAL_RANK", str(rank))
    monkeypatch.setenv("PADDLE_LOCAL_SIZE", str(size))


def test_several_processes_are_pinned_to_separate_cores(machine, monkeypatch):
    masks = machine(range(4))
    launched(monkeypatch)
    cpu_pin.pin_to_share()
    assert masks[0] == {2, 3} and cpu_pin.describe_threads() == "2 threads on cores 2-3"
    assert cpu_env.cpu_threads() == 2, "the share is that of the mask before"


def test_a_single_process_is_not_pinned(machine):
    masks = machine(range(4))
    cpu_pin.pin_to_share()
    assert masks[0] == set(range(4)) and cpu_pin.describe_threads() == "4 threads on cores 0-3"


@pytest.mark.parametrize("name", cpu_pin.CHOSEN_BY_USER)
def test_nothing_is_pinned_if_the_user_binds_threads(name, machine, monkeypatch):
    masks = machine(range(4))
    launched(monkeypatch)
    monkeypatch.setenv(name, "close")
    cpu_pin.pin_to_share()
    assert masks[0] == set(range(4))


def test_nothing_is_pinned_with_more_threads_than_cores(machine, monkeypatch):
    masks = machine(range(4))
    launched(monkeypatch)
    monkeypatch.setattr(cpu_env, "THREADS_ASKED", "3")
    cpu_pin.pin_to_share()
    assert masks[0] == set(range(4)) and cpu_pin.describe_threads().startswith("3 threads (OMP_NUM_THREADS)")


def test_nothing_is_pinned_under_a_cpu_quota(machine, monkeypatch):
    masks = machine(range(64), QUOTA_OF_TWO)
    launched(monkeypatch)
    cpu_pin.pin_to_share()
    assert len(masks[0]) == 64
    assert cpu_pin.describe_threads() == "1 thread, a share of cores 0-63 with a cpu quota of 2"


@pytest.mark.parametrize("text, threads", [("", 0), ("4", 4), ("4,2", 4), ("x", 0), ("0", 0), ("9" * 30, 0)])
def test_the_users_thread_count_takes_precedence(text, threads, machine, monkeypatch):
    machine(range(8))
    monkeypatch.setattr(cpu_env, "THREADS_ASKED", text)
    assert cpu_env.cpu_threads() == (threads or 8)


def test_core_lists_use_the_linux_format():
    assert listed_cores([8, 0, 1, 2, 5]) == "0-2,5,8" and cores_in("0-2,5,8\n") == [0, 1, 2, 5, 8]
    assert cores_in("") == []


SAYS = """
import os
import ernie_pair
from ernie_pair.runtime.cpu_env import THREADS_ASKED
print("asked", THREADS_ASKED or "nothing", "found", os.environ.get("OMP_NUM_THREADS", "nothing"))
"""


STARTED = {"PYTHONPATH": str(ROOT), "COLD": "1"}  # what is read while Python starts is tested


@pytest.mark.parametrize("asked, known", [("", "nothing"), ("1", "1"), ("3", "3")])
@pytest.mark.parametrize("launcher", ["paddle.distributed.launch", "ernie_pair.launcher"])
def test_launcher_and_user_omp_num_threads_are_distinguished(launcher, asked, known, tmp_path):
    (tmp_path / "says.py").write_text(SAYS)
    clean = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    words = [sys.executable, "-m", launcher, "--log_dir", "log", "--nproc_per_node", "1", "says.py"]
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env={**clean, **STARTED, **({"OMP_NUM_THREADS": asked} if asked else {})},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    said = (tmp_path / "log" / "workerlog.0").read_text()
    found = known if launcher == "ernie_pair.launcher" else asked or "1"
    assert f"asked {known} found {found}\n" in said


def test_the_launchers_thread_count_is_known_through_a_shell(tmp_path):
    """OMP_NUM_THREADS=1 is recognised as the launcher's even with a shell script in between."""
    (tmp_path / "says.py").write_text(SAYS)
    (tmp_path / "run.sh").write_text(f"{sys.executable} says.py\n{sys.executable} says.py\n")
    clean = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    words = [sys.executable, "-m", "paddle.distributed.launch", "--log_dir", "log", "--nproc_per_node", "1"]
    subprocess.run(
        [*words, "sh", "run.sh"],
        cwd=tmp_path,
        env={**clean, **STARTED},
        capture_output=True,
        timeout=120,
        check=True,
    )
    assert (tmp_path / "log" / "workerlog.0").read_text().count("asked nothing found 1\n") == 2


def test_manually_started_ranks_keep_their_omp_num_threads(tmp_path):
    """Nothing shows that a launcher has set OMP_NUM_THREADS=1."""
    place = {"PADDLE_TRAINER_ID": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    said = subprocess.run(
        [sys.executable, "-c", SAYS], env={**os.environ, **place}, capture_output=True, text=True, timeout=60
    )
    assert "asked 1 found 1\n" in said.stdout


BEFORE = "import os\nos.environ.pop('OMP_NUM_THREADS', None)\nimport paddle\n"


def test_omp_num_threads_set_by_paddle_is_not_the_users():
    clean = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    said = subprocess.run(
        [sys.executable, "-c", BEFORE + SAYS],
        env={**clean, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "asked nothing found 1\n" in said.stdout, said.stderr


COMPUTES = """
import ctypes, os, threading
from ernie_pair.runtime.device import start_device
from ernie_pair.runtime.processes.world import World
print(start_device("cpu", World()))
library = next(line.split()[-1] for line in open("/proc/self/maps") if "libiomp5" in line)
counts = [ctypes.CDLL(library).omp_get_max_threads()]
thread = threading.Thread(target=lambda: counts.append(ctypes.CDLL(library).omp_get_max_threads()))
thread.start(), thread.join()
print("counts", counts, os.environ["OMP_NUM_THREADS"])
"""


def test_every_thread_uses_the_same_openmp_thread_count():
    """The thread that starts the device, and those in which the static graph runs."""
    clean = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    said = subprocess.run(
        [sys.executable, "-c", COMPUTES],
        env={**clean, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    cores = share_of(0, 1).threads
    assert f"cpu, {cores} thread" in said.stdout
    assert f"counts [{cores}, {cores}] 1\n" in said.stdout, "what children inherit is as Paddle left it"
