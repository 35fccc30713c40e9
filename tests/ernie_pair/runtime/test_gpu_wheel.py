"""Processes of the GPU build of Paddle on a machine that need not have a GPU.

pytest -m gpu_wheel        in an environment with that build
"""

import os
import subprocess
import sys

import pytest
from places import ROOT

from ernie_pair.launch.notebook import _environments
from ernie_pair.runtime.gpu import installed_build

BUILD = installed_build()
pytestmark = [
    pytest.mark.gpu_wheel,
    pytest.mark.skipif(not (BUILD and BUILD.cuda), reason="the GPU build of Paddle is not installed"),
]


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


RANK = """
import sys
import numpy as np
import paddle
from ernie_pair.runtime.device import start_device
from ernie_pair.runtime.processes.world import launched_world

world = launched_world()
start_device("cpu", world)
if sys.argv[1] == "static":
    from ernie_pair.pretraining.graph.program_state import RankSums
    from ernie_pair.pretraining.graph.step import start_static

    start_static("cpu", world.size)
    add_up = RankSums(world.size, paddle.static.Executor(paddle.CPUPlace()))
else:
    from ernie_pair.training.process_group import join_process_group

    add_up = join_process_group(world).all_reduce_now
print(add_up(np.full(2, world.rank + 1.0)).tolist())
"""


@pytest.mark.parametrize("graph", ["static", "dynamic"])
def test_cpu_processes_with_assigned_gpus_use_gloo(graph):
    """The launcher assigns each a GPU, as on a machine with two, but they run with --device cpu."""
    ranks = [python(RANK, graph, **environment) for environment in _environments(2, ["0", "1"])]
    assert [said_by(rank) for rank in ranks] == ["[3.0, 3.0]"] * 2
