"""What scripts/run_pretrain_static.sh hands on, with `echo` in the place of Python."""

import os
import shlex
import shutil
import subprocess
from dataclasses import replace

import pytest
from places import SCRIPTS

from data_tools.base.cli import parse_config
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig, refuse_unready
from ernie_pair.processes.world import World

STUB = 'ROOT=.\nPY=echo\nDEVICE=cpu\nfail() { echo "error: $1" >&2; exit 2; }\n'


@pytest.fixture
def start(tmp_path):
    """Runs the script; the words after the file that the launcher would start."""
    shutil.copy(SCRIPTS / "run_pretrain_static.sh", tmp_path)
    (tmp_path / "environment.sh").write_text(STUB)

    def run(processes, flags):
        command = ["sh", str(tmp_path / "run_pretrain_static.sh"), *shlex.split(flags)]
        environment = {**os.environ, "NPROC": str(processes)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    return run


@pytest.mark.parametrize(
    ("processes", "flags", "groups"),
    [
        (4, "", 4),
        (4, "--dp_degree 4", 4),
        (4, "--sharding_degree 4", 1),
        (4, "--use_sharding true --sharding_degree=4", 1),
        (8, "--dp_degree 2 --sharding_degree 4", 2),
        (8, "--sharding_degree 4", 2),
    ],
)
def test_readme_layouts_match_the_number_of_processes(start, processes, flags, groups):
    handed_on = shlex.split(start(processes, flags).stdout.split("run_pretrain_static.py ")[1])
    config = parse_config(PretrainConfig, handed_on)
    assert (config.dp_degree, config.processes, config.max_steps) == (groups, processes, 200_000)
    world = World(0, processes)
    refuse_unready(replace(config, global_batch_size=0), world, world)


def test_a_warm_up_in_steps_takes_the_place_of_the_rate(start):
    handed_on = shlex.split(start(1, "--warmup_steps 30").stdout.split("run_pretrain_static.py ")[1])
    assert parse_config(PretrainConfig, handed_on).num_warmup_steps == 30


def test_more_shards_than_processes_are_one_line(start):
    done = start(2, "--sharding_degree 4")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: --sharding_degree 4 is above 2 processes"
