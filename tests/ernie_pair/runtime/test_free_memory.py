"""The memory that a probe may use: on a fake machine, outside and inside cgroup v1 and v2 containers."""

import pytest

from ernie_pair.runtime import cpu as module
from ernie_pair.runtime.cpu import free_memory

GB = 10**9
MACHINE = {"proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {64 * GB // 1024} kB\n"}
OF_GROUP_2, AT_ROOT = {"proc/self/cgroup": "0::/a/b\n"}, {"proc/self/cgroup": "0::/\n"}
OF_GROUP_1 = {"proc/self/cgroup": "3:cpu,cpuacct:/docker/7\n2:memory:/docker/7\n"}


def group(folder, names, *values):
    """The files of a control group: its limit, how much is used, and how much of that is cache."""
    texts = [str(value) for value in values[:2]] + [f"anon 5\n{names[2]} {value}\n" for value in values[2:]]
    return {f"sys/fs/cgroup/{folder}{name}": text for name, text in zip((*names[:2], "memory.stat"), texts)}


@pytest.mark.parametrize(
    "files, free",
    [
        ({}, float("inf")),
        (MACHINE, 64 * GB),
        ({**AT_ROOT, **group("", module.FILES[0], 8 * GB, 3 * GB), **MACHINE}, 5 * GB),
        ({**AT_ROOT, **group("", module.FILES[0], 8 * GB, 3 * GB, 1 * GB), **MACHINE}, 6 * GB),
        ({**AT_ROOT, **group("", module.FILES[0], "max", 3 * GB), **MACHINE}, 64 * GB),
        ({**AT_ROOT, **group("", module.FILES[0], 80 * GB, 0), **MACHINE}, 64 * GB),
        ({**AT_ROOT, **group("", module.FILES[0], 2 * GB, 3 * GB), **MACHINE}, 0),
        (  # the parent group has less
            {**OF_GROUP_2, **group("a/", module.FILES[0], 4 * GB, 1 * GB), **MACHINE}
            | group("a/b/", module.FILES[0], 9 * GB, 1 * GB),
            3 * GB,
        ),
        (  # cgroup v1, in a container that does not see the path of its group
            {**OF_GROUP_1, **group("memory/", module.FILES[1], 8 * GB, 6 * GB, 1 * GB), **MACHINE},
            3 * GB,
        ),
    ],
)
def test_free_memory_is_the_minimum_of_machine_and_cgroups(tmp_path, monkeypatch, files, free):
    monkeypatch.setattr(module, "ROOT", tmp_path)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert free_memory() == free
