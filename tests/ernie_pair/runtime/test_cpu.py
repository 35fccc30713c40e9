"""The processor that a run may use: its level, cores, threads, memory, and the memory that it keeps."""

import os

import pytest
from children import output_of

from ernie_pair.core.errors import InputError
from ernie_pair.runtime import cpu

EIGHT = range(8)
AVX512 = "fma avx2 avx512f avx512bw avx512dq avx512vl"


@pytest.fixture
def offer(tmp_path, monkeypatch):
    """A function that fakes the flags of the processor; the environment requests no level."""
    monkeypatch.delenv(cpu.LEVEL_ASKED, raising=False)
    monkeypatch.setattr(cpu, "CPU_INFO", tmp_path / "cpuinfo")

    def write(flags):
        (tmp_path / "cpuinfo").write_text(f"vendor_id\t: X\nflags\t\t: fpu {flags} avx512_vnni\npower\t: 1\n")

    return write


@pytest.mark.parametrize("flags, level", [
    ("", "none"),
    ("avx2", "none"),
    ("fma avx2", "avx2"),
    ("fma avx2 avx512f", "avx2"),
    (AVX512, "avx512"),
    (f"{AVX512} avx512_bf16", "avx512_bf16"),
    (f"{AVX512} avx512_bf16 amx_bf16", "avx512_bf16"),
    (f"{AVX512} avx512_bf16 amx_tile amx_bf16 amx_int8", "amx_bf16"),
    ("fma avx2 avx512_bf16", "avx2"),
])  # fmt: skip
def test_the_level_is_derived_from_the_processor_flags(offer, flags, level):
    assert (cpu.cpu_level(), cpu.processor_name()) == ("none", "")  # there is no such file
    offer(flags)
    assert cpu.cpu_level() == level
    cpu.CPU_INFO.write_text("processor\t: 0\nmodel name\t: A Processor (R) 7\nflags\t\t: fpu\n")
    assert cpu.processor_name() == "A Processor (R) 7"


@pytest.mark.parametrize("asked", cpu.LEVELS)
def test_the_environment_can_only_lower_the_level(offer, monkeypatch, asked):
    monkeypatch.setenv(cpu.LEVEL_ASKED, asked)
    offer(AVX512)
    assert cpu.cpu_level() == min(asked, "avx512", key=cpu.LEVELS.index)


def test_bf16_is_refused_where_it_would_be_emulated(offer, monkeypatch):
    offer(AVX512)
    with pytest.raises(InputError, match=r"AVX512-BF16 \(this processor has no AVX512-BF16\); use precision"):
        cpu.check_bf16()
    offer(f"{AVX512} avx512_bf16")
    cpu.check_bf16()
    monkeypatch.setenv(cpu.LEVEL_ASKED, "avx512")
    with pytest.raises(
        InputError, match=rf"AVX512-BF16 \({cpu.LEVEL_ASKED}=avx512 is set\); use precision fp32"
    ):
        cpu.check_bf16()


# --- cores and threads, of a fake machine


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Fake a machine: the cores of the affinity mask, and the files of Linux below another root."""

    def fake(cores=EIGHT, files=(), launcher=None):
        masks = {0: set(cores), os.getppid(): set(cores if launcher is None else launcher)}
        monkeypatch.setattr(os, "sched_getaffinity", masks.__getitem__)
        monkeypatch.setattr(os, "sched_setaffinity", lambda thread, wanted: masks.update({0: set(wanted)}))
        monkeypatch.setattr(cpu, "ROOT", tmp_path)
        for name, text in dict(files).items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return masks

    for name in (*cpu.BINDING_VARIABLES, "PADDLE_LOCAL_RANK", "PADDLE_LOCAL_SIZE", "PADDLE_TRAINERS_NUM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cpu, "THREADS_ASKED", "")
    cpu.cpu_share_of.cache_clear()
    yield fake
    cpu.cpu_share_of.cache_clear()


def group_2(path, **quotas):
    """The files of cgroup v2: the group of this process, and cpu.max of groups, `_` for the root."""
    found = {"proc/self/cgroup": f"0::/{path}\n"}
    for place, quota in quotas.items():
        folder = place.strip("_").replace("_", "/")
        found[f"sys/fs/cgroup/{folder}/cpu.max".replace("//", "/")] = f"{quota} 100000\n"
    return found


def group_1(groups, quota):
    files = {"cpu.cfs_quota_us": quota, "cpu.cfs_period_us": 100000}
    of_cpu = {f"sys/fs/cgroup/cpu/{name}": f"{value}\n" for name, value in files.items()}
    return {"proc/self/cgroup": groups, **of_cpu}


@pytest.mark.parametrize("files, quota", [
    ({}, None),
    (group_2("", _="max"), None),
    (group_2("", _=200000), 2.0),
    (group_2("a/b", a=150000), 1.5),
    (group_2("a/b", a=100000, a_b=400000), 1.0),  # the parent group allows less
    (group_1("4:memory:/x\n1:cpu,cpuacct:/docker/77\n", 300000), 3.0),  # the group's path is not seen
    (group_1("1:cpu:/\n", -1), None),
])  # fmt: skip
def test_the_cpu_quota_is_the_smallest_of_all_cgroups(files, quota, machine):
    machine(files=files)
    assert cpu.cpu_quota() == quota


def quota_of(cores):
    return group_2("", _=cores * 100000)


@pytest.mark.parametrize("cores, quota, shares", [
    (range(8), 0, [(8, range(8))]),
    (range(8), 0, [(4, range(4)), (4, range(4, 8))]),
    (range(7), 0, [(2, (0, 1)), (2, (2, 3)), (2, (4, 5, 6))]),
    ((3, 5), 0, [(1, [3]), (1, [5])]),
    (range(2), 0, [(1, range(2))] * 3),
    (range(64), 2, [(2, range(64))]),
    (range(64), 2, [(1, range(64))] * 2),
    (range(64), 2, [(1, range(64))] * 4),
    (range(64), 3, [(3, range(64))]),
    (range(64), 3, [(1, range(64))] * 2),
    (range(64), 6, [(1, range(64))] * 4),
    (range(64), 6, [(3, range(64))] * 2),
])  # fmt: skip
def test_processes_of_a_machine_share_its_cores(cores, quota, shares, machine):
    machine(cores, quota_of(quota) if quota else {})
    for rank, (threads, own) in enumerate(shares):
        share = cpu.cpu_share_of(rank, len(shares))
        assert (share.threads, share.cores) == (threads, list(own))


def test_a_share_holds_whole_physical_cores_of_one_node(machine):
    """The usual numbering: node 0 has the even cores, and 4 to 7 are the hyper-threads of 0 to 3."""
    files = {f"sys/devices/system/node/node{n}/cpulist": f"{n},{n + 2},{n + 4},{n + 6}\n" for n in (0, 1)}
    for core in range(8):
        name = f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
        files[name] = f"{core % 4},{core % 4 + 4}\n"
    machine(files=files)
    assert cpu.usable_cores() == [0, 4, 2, 6, 1, 5, 3, 7]
    assert cpu.cpu_share_of(0, 2).cores == [0, 4, 2, 6] and cpu.cpu_share_of(3, 4).cores == [3, 7]


def launched(monkeypatch, rank=1, size=2):
    monkeypatch.setenv("PADDLE_LOCAL_RANK", str(rank))
    monkeypatch.setenv("PADDLE_LOCAL_SIZE", str(size))


@pytest.mark.parametrize(
    "cores, files, threads", [((6, 7), {}, 2), (range(4, 8), quota_of(3), 1)], ids=["cores", "a quota"]
)
def test_externally_pinned_processes_keep_their_cores(machine, monkeypatch, cores, files, threads):
    launched(monkeypatch)
    masks = machine(cores, files, launcher=range(8))
    assert cpu.cpu_threads() == threads
    cpu.pin_to_share()
    assert masks[0] == set(cores)


def test_several_processes_are_pinned_to_separate_cores(machine, monkeypatch):
    masks = machine(range(4))
    launched(monkeypatch)
    cpu.pin_to_share()
    assert masks[0] == {2, 3} and cpu.describe_threads() == "2 threads on cores 2-3"
    assert cpu.cpu_threads() == 2, "the share is that of the mask before"


def test_a_single_process_is_not_pinned(machine):
    masks = machine(range(4))
    cpu.pin_to_share()
    assert masks[0] == set(range(4)) and cpu.describe_threads() == "4 threads on cores 0-3"


@pytest.mark.parametrize("name", cpu.BINDING_VARIABLES)
def test_nothing_is_pinned_if_the_user_binds_threads(name, machine, monkeypatch):
    masks = machine(range(4))
    launched(monkeypatch)
    monkeypatch.setenv(name, "close")
    cpu.pin_to_share()
    assert masks[0] == set(range(4))


@pytest.mark.parametrize("cores, files, asked, said", [
    (4, {}, "3", "3 threads (OMP_NUM_THREADS)"),  # of each of two: more than cores
    (64, quota_of(2), "", "1 thread, a share of cores 0-63 with a cpu quota of 2"),
])  # fmt: skip
def test_nothing_is_pinned_where_cores_are_shared(machine, monkeypatch, cores, files, asked, said):
    masks = machine(range(cores), files)
    launched(monkeypatch)
    monkeypatch.setattr(cpu, "THREADS_ASKED", asked)
    cpu.pin_to_share()
    assert masks[0] == set(range(cores)) and cpu.describe_threads().startswith(said)


@pytest.mark.parametrize("text, threads", [("", 0), ("4", 4), ("4,2", 4), ("x", 0), ("0", 0), ("9" * 30, 0)])
def test_the_users_thread_count_takes_precedence(text, threads, machine, monkeypatch):
    machine()
    monkeypatch.setattr(cpu, "THREADS_ASKED", text)
    assert cpu.cpu_threads() == (threads or 8)


def test_core_lists_use_the_linux_format():
    assert cpu.listed_cores([8, 0, 1, 2, 5]) == "0-2,5,8" and cpu.cores_in("0-2,5,8\n") == [0, 1, 2, 5, 8]
    assert cpu.cores_in("") == []


# --- threads of processes that a launcher starts

SAYS = """
import os
import ernie_pair
from ernie_pair.runtime.cpu import THREADS_ASKED
print("asked", THREADS_ASKED or "nothing", "found", os.environ.get("OMP_NUM_THREADS", "nothing"))
"""
LAUNCHERS = ("paddle.distributed.launch", "ernie_pair.launcher")
CLEAN = {"without": ["OMP_NUM_THREADS"]}


def log_of_launched(folder, launcher, *words, **environment):
    """The log of says.py, which a launcher starts; cold: what is read while Python starts is tested."""
    (folder / "says.py").write_text(SAYS)
    flags = ["--log_dir", "log", "--nproc_per_node", 1]
    output_of("-m", launcher, *flags, *words, cwd=folder, COLD="1", **CLEAN, **environment)
    return (folder / "log" / "workerlog.0").read_text()


@pytest.mark.parametrize("launcher, asked", [(LAUNCHERS[0], ""), (LAUNCHERS[0], "1"), (LAUNCHERS[1], "3")])
def test_launcher_and_user_omp_num_threads_are_distinguished(launcher, asked, tmp_path):
    said = log_of_launched(tmp_path, launcher, "says.py", **({"OMP_NUM_THREADS": asked} if asked else {}))
    known = asked or "nothing"
    found = known if launcher == "ernie_pair.launcher" else asked or "1"
    assert f"asked {known} found {found}\n" in said


def test_omp_num_threads_set_by_others_is_told_from_the_users():
    """Nothing shows that a launcher has set OMP_NUM_THREADS=1."""
    assert "asked 1 found 1\n" in output_of("-c", SAYS, PADDLE_TRAINER_ID="0", OMP_NUM_THREADS="1")
    before = "import os\nos.environ.pop('OMP_NUM_THREADS', None)\nimport paddle\n"
    assert "asked nothing found 1\n" in output_of("-c", before + SAYS, **CLEAN)


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
    said, cores = output_of("-c", COMPUTES, **CLEAN), cpu.cpu_share_of(0, 1).threads
    assert f"cpu, {cores} thread" in said
    assert f"counts [{cores}, {cores}] 1\n" in said, "what children inherit is as Paddle left it"


# --- memory: what is free for a probe, and what a process keeps for its next step

GB = 10**9
MACHINE = {"proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {64 * GB // 1024} kB\n"}


def memory_of(path, *limits, version=2):
    """The files of a machine with control groups: (folder, limit, used, how much of that is cache)."""
    found = {**MACHINE, "proc/self/cgroup": f"0::/{path}\n"}
    if version == 1:
        found["proc/self/cgroup"] = f"3:cpu,cpuacct:/{path}\n2:memory:/{path}\n"
    *names, cache = cpu.MEMORY_FILES[2 - version]
    for folder, *values in limits:
        texts = [str(value) for value in values[:2]] + [f"anon 5\n{cache} {value}\n" for value in values[2:]]
        found.update((f"sys/fs/cgroup/{folder}{n}", t) for n, t in zip((*names[:2], "memory.stat"), texts))
    return found


@pytest.mark.parametrize("files, free", [
    ({}, float("inf")),
    (MACHINE, 64 * GB),
    (memory_of("", ("", 8 * GB, 3 * GB)), 5 * GB),
    (memory_of("", ("", 8 * GB, 3 * GB, 1 * GB)), 6 * GB),
    (memory_of("", ("", "max", 3 * GB)), 64 * GB),
    (memory_of("", ("", 80 * GB, 0)), 64 * GB),
    (memory_of("", ("", 2 * GB, 3 * GB)), 0),
    (memory_of("a/b", ("a/", 4 * GB, 1 * GB), ("a/b/", 9 * GB, 1 * GB)), 3 * GB),  # the parent has less
    (
        memory_of("docker/7", ("memory/", 8 * GB, 6 * GB, 1 * GB), version=1),
        3 * GB,
    ),  # its path is not seen
])  # fmt: skip
def test_free_memory_is_the_minimum_of_machine_and_cgroups(machine, files, free):
    machine(files=files)
    assert cpu.free_memory() == free


TOUCHES = """
import resource
from threading import Thread
from ernie_pair.runtime.cpu import keep_freed_memory
print(keep_freed_memory() if {kept} else None)

def touch():
    pages = []
    for _ in range(6):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [bytearray({mb} << 20) for _ in range(3)]
        del blocks
        pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    print(*pages)

if {in_thread}:
    thread = Thread(target=touch)
    thread.start()
    thread.join()
else:
    touch()
"""
JEMALLOC = "/usr/lib/libjemalloc.so.2"
CHOSEN = {"LD_PRELOAD": JEMALLOC, "GLIBC_TUNABLES": "glibc.malloc.arena_max=1", "MALLOC_ARENA_MAX": "1"}


@pytest.fixture
def nothing_chosen(monkeypatch):
    for name in [*CHOSEN, *(name for name in os.environ if name.startswith("MALLOC_"))]:
        monkeypatch.delenv(name, raising=False)


def touched(**how):
    """What keep_freed_memory returned, and the page faults of each of six rounds."""
    said, pages = output_of("-c", TOUCHES.format(**how)).splitlines()
    return said, [int(count) for count in pages.split()]


# Also with more than 2 GB in total, and in a second thread, as in Paddle's executor.
@pytest.mark.parametrize("mb, in_thread", [(48, False), (800, False), (48, True)])
def test_freed_memory_is_reused_without_page_faults(nothing_chosen, mb, in_thread):
    said, pages = touched(kept=True, mb=mb, in_thread=in_thread)
    assert said == "True" and pages[0] > 10_000 and max(pages[2:]) < 1_000
    if mb < 800:  # as it comes, each round is given its pages anew
        assert min(touched(kept=False, mb=mb, in_thread=in_thread)[1]) > 10_000


@pytest.mark.parametrize("name, value, is_choice", [
    *((name, value, True) for name, value in CHOSEN.items()),
    ("LD_PRELOAD", "/usr/lib/libfaketime.so", False),
    ("GLIBC_TUNABLES", "glibc.pthread.rseq=0", False),
])  # fmt: skip
def test_the_users_malloc_settings_are_kept(nothing_chosen, name, value, is_choice, monkeypatch):
    assert not cpu.is_chosen_by_user()
    monkeypatch.setenv(name, value)
    assert cpu.is_chosen_by_user() is is_choice
    monkeypatch.setattr(cpu.ctypes, "CDLL", None)
    assert not is_choice or cpu.keep_freed_memory() is False
