"""The GPU build of Paddle after `pip install ".[gpu]"` and `ernie-pair doctor --link_cuda`; needs no GPU.

pytest -m gpu_wheel        in an environment with that build, 3 GB
"""

import mmap
import os
import struct
import subprocess
import sys

import pytest
from places import ROOT

from ernie_pair.launch.notebook.notebook_launcher import _environments
from ernie_pair.runtime.gpu import cuda_links as libraries
from ernie_pair.runtime.gpu.builds import installed_build
from ernie_pair.runtime.gpu.check_process import run_check
from ernie_pair.runtime.gpu.cuda_links import unmade_links

BUILD = installed_build()
pytestmark = [
    pytest.mark.gpu_wheel,
    pytest.mark.skipif(not (BUILD and BUILD.cuda), reason="the GPU build of Paddle is not installed"),
]


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch):
    for name in ("LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_HOME", "CUDA_PATH", "FLAGS_cudnn_dir"):
        monkeypatch.delenv(name, raising=False)


def python(program, *words, **environment):
    command = [sys.executable, "-c", program, *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/"
    )


def said_by(process):
    said, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return said.splitlines()[-1]


def test_links_are_there_and_every_library_loads():
    assert unmade_links(BUILD) == []
    found = run_check("libraries", seconds=300)
    wanted = {*libraries.FIRST, *libraries.OTHERS, *libraries.OF_SEVERAL, "libcudnn_cnn_infer.so.8"}
    assert found.faults == [] and wanted <= set(found.facts["loaded"])


ASKS = """
import paddle
core = paddle.base.core
paddle.set_device("cpu")
paddle.nn.Conv1D(2, 2, 1)(paddle.ones([1, 2, 3]))  # opens cuDNN, which opens nvrtc or aborts the process
print(paddle.device.get_cudnn_version(), core.nccl_version())
"""


def test_paddle_finds_cudnn_nvrtc_and_nccl_by_itself():
    assert said_by(python(ASKS)) == "8700 21903"


COMPILES = """
import ctypes, sys
nvrtc, program = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p()
source = b'extern "C" __global__ void f(float* x) { x[0] = 1; }'
print(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"f.cu", 0, None, None),
      nvrtc.nvrtcCompileProgram(program, 0, None))
"""


def test_nvrtc_compiles_when_loaded_through_its_link():
    assert said_by(python(COMPILES, str(BUILD.libraries / "libnvrtc.so"))) == "0 0"


RANK = """
import sys
import numpy as np
import paddle
from ernie_pair.runtime.device import start_device
from ernie_pair.runtime.processes.world import launched_world

world = launched_world()
start_device("cpu", world)
if sys.argv[1] == "static":
    from ernie_pair.pretrain.graph.step_monitors import RankSums
    from ernie_pair.pretrain.graph.strategy import start_fleet

    start_fleet("cpu", world.size)
    add_up = RankSums(world.size, paddle.static.Executor(paddle.CPUPlace()), cpu=True)
else:
    from ernie_pair.train.process_group import join_process_group

    add_up = join_process_group(world).all_reduce_now
print(add_up(np.full(2, world.rank + 1.0)).tolist())
"""


@pytest.mark.parametrize("graph", ["static", "dynamic"])
def test_cpu_processes_with_assigned_gpus_use_gloo(graph):
    """The launcher assigns each a GPU, as on a machine with two, but they run with --device cpu."""
    ranks = [python(RANK, graph, **environment) for environment in _environments(2, ["0", "1"])]
    assert [said_by(rank) for rank in ranks] == ["[3.0, 3.0]"] * 2


# A fat binary has a header and then pieces, each with its kind (1: PTX, 2: machine code), the size of its
# header, the size of its data and, at offset 28, its compute capability.
BEGINS = struct.pack("<IHH", 0xBA55ED50, 1, 16)  # magic number, version, header size
CODE = 2  # the kind of machine code; 1: PTX


def fat_binaries_in(path):
    """Return, for each fat binary in a shared library, {(kind, capability)} of its pieces."""
    found = []
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data.find(BEGINS)
        while start >= 0:
            at, pieces = start + len(BEGINS) + 8, set()
            end = at + struct.unpack_from("<Q", data, start + len(BEGINS))[0]
            while at < end:
                kind, _, head, size = struct.unpack_from("<HHIQ", data, at)
                pieces.add((kind, divmod(struct.unpack_from("<I", data, at + 28)[0], 10)))
                at += head + size
            found.append(pieces)
            start = data.find(BEGINS, end)
    return found


def test_the_build_table_matches_the_binaries():
    """Hundreds hold Paddle's kernels; 8 of 811 come from a library, for other GPUs and with PTX."""
    fat = fat_binaries_in(BUILD.libraries / "libphi.so") + fat_binaries_in(
        BUILD.folder / "base" / "libpaddle.so"
    )
    of_paddle = {(CODE, capability) for capability in BUILD.capabilities}
    others = [pieces for pieces in fat if pieces != of_paddle]
    assert len(fat) > 500 and len(others) < len(fat) / 50
    fused = fat_binaries_in(BUILD.libraries / "libflashattn.so")
    assert fused and all(pieces == {(CODE, (8, 0)), (CODE, (8, 6))} for pieces in fused)
