"""The arguments that scripts/run_pretrain_static.sh passes on, with `echo` in place of Python."""

import os
import shlex
import shutil
import subprocess
from dataclasses import replace

import pytest
from places import SCRIPTS

from ernie_pair.core.cli.cli import parse_config
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig, check_layout
from ernie_pair.runtime.processes.world import World

STUB = 'ROOT=.\nPY=echo\nDEVICE=cpu\nfail() { echo "error: $1" >&2; exit 2; }\n'


@pytest.fixture
def start(tmp_path):
    shutil.copy(SCRIPTS / "run_pretrain_static.sh", tmp_path)
    (tmp_path / "environment.sh").write_text(STUB)

    def run(processes, flags):
        command = ["sh", str(tmp_path / "run_pretrain_static.sh"), *shlex.split(flags)]
        environment = {**os.environ, "NPROC": str(processes)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    return run


def config_of(done):
    return parse_config(PretrainConfig, shlex.split(done.stdout.split("run_pretrain_static.py ")[1]))


def use_python(folder, text, device="gpu"):
    """Let the script call a Python of these lines."""
    (folder / "python").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "python").chmod(0o755)
    stub = STUB.replace("PY=echo", f"PY='{folder}/python'").replace("DEVICE=cpu", f"DEVICE={device}")
    (folder / "environment.sh").write_text(stub)


@pytest.mark.parametrize(("processes", "flags", "groups"), [
    (4, "", 4),
    (4, "--dp_degree 4", 4),
    (4, "--sharding_degree 4", 1),
    (4, "--use_sharding true --sharding_degree=4", 1),
    (8, "--dp_degree 2 --sharding_degree 4", 2),
    (8, "--sharding_degree 4", 2),
])  # fmt: skip
def test_readme_layouts_match_the_number_of_processes(start, processes, flags, groups):
    config = config_of(start(processes, flags))
    assert (config.dp_degree, config.processes, config.max_steps) == (groups, processes, 200_000)
    world = World(0, processes)
    check_layout(replace(config, global_batch_size=0), world, world)


@pytest.mark.parametrize("rate", ["--max-lr 0.5", "--max_lr=0.5", "--max-lr=0.5"])
def test_a_flag_replaces_that_of_the_recipe_however_spelled(start, rate):
    done = start(1, f"{rate} --sharding-degree 1")
    assert config_of(done).max_lr == 0.5
    assert done.stdout.count("max_lr") == done.stdout.count("sharding_degree") == 1


@pytest.mark.parametrize("config", ["--config mine.yaml", "--config=mine.yaml"])
def test_a_config_that_the_recipe_would_override_is_refused(start, config):
    done = start(1, config)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("error: --config would lose to the recipe's flags; ")


@pytest.mark.parametrize("named, started", [("", "0,2"), ("1", "1")])
def test_all_visible_gpus_are_taken_unless_some_are_named(start, tmp_path, named, started):
    text = '[ "$2" != ernie_pair.runtime.gpu ] || exec echo 0,2\necho $*'
    use_python(tmp_path, text, device=f"gpu GPUS={named}")
    done = start(1, "")
    assert f" --gpus {started} " in done.stdout
    config = config_of(done)
    assert config.dp_degree == len(started.split(",")) and config.device == "gpu"
