"""Two machines: two launchers with one master address, with a shared output folder or one each."""

import os
import subprocess
import sys

import numpy as np
import pytest
from places import ROOT
from ports import free_port
from safetensors.numpy import load_file
from tiny_pretrain import events, flags, write_corpus, write_model

from data_tools.files.errors import InputError
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig, refuse_unready
from ernie_pair.runtime.processes.world import World

pytestmark = pytest.mark.ranks

SCRIPT = ROOT / "scripts" / "run_pretrain_static.py"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nodes")
    write_corpus(folder / "data", write_model(folder / "model"))
    return folder


def two_machines(world, outputs, **changes):
    """Start the same command on both, each with its own output; wait for both."""
    master = f"127.0.0.1:{free_port()}"
    runs = []
    for node, output in enumerate(outputs):
        launch = [sys.executable, "-m", "paddle.distributed.launch", "--nnodes", "2", "--rank", str(node)]
        launch += ["--nproc_per_node", "1", "--master", master, "--log_dir", str(world / f"log{node}")]
        words = flags(world / "model", world / "data", output, dp_degree=2, **changes)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        runs.append(subprocess.Popen([*launch, str(SCRIPT), *words], env=environment, **pipes))
    codes = [run.wait(timeout=240) for run in runs]
    told = [path.read_text()[-1500:] for path in sorted(world.glob("log?/workerlog.*"))]
    assert codes == [0, 0], "\n".join(told)


def weights(output):
    return load_file(output / "model_last" / "static_vars.safetensors")


@pytest.mark.slow
def test_unshared_folders_each_hold_all_a_resume_needs(world):
    outputs = [world / "first", world / "second"]
    unshared = {"share_folder": "false", "decay_steps": 4}
    two_machines(world, outputs, max_steps=2, **unshared)
    two_machines(world, outputs, max_steps=4, **unshared)
    whole = [world / "whole_first", world / "whole_second"]
    two_machines(world, whole, max_steps=4, **unshared)
    names = sorted(path.name for path in (outputs[0] / "model_last").iterdir())
    assert "optimizer-00000-of-00001.safetensors" in names
    assert names == sorted(path.name for path in (outputs[1] / "model_last").iterdir())
    cut, uncut = ([e for e in events(out) if e["split"] == "train"] for out in (outputs[0], whole[0]))
    assert cut == uncut and not (outputs[1] / "metrics.jsonl").exists()
    for output in (*outputs, whole[1]):
        ours, known = weights(output), weights(whole[0])
        assert all(np.array_equal(ours[name], known[name]) for name in known)


def test_two_machines_can_write_to_one_shared_folder(world):
    two_machines(world, [world / "shared"] * 2, max_steps=2, decay_steps=4)
    assert (world / "shared" / "model_last").resolve().name == "step_00000002"
    assert events(world / "shared")[-1]["step"] == 2


def test_optimizer_shards_across_unshared_folders_are_refused():
    flags = {name: "unused" for name in ("model_name_or_path", "input_dir", "output_dir")}
    config = PretrainConfig(
        **flags, device="cpu", dp_degree=1, sharding_degree=4, use_sharding=True, share_folder=False
    )
    refuse_unready(config, World(0, 4), World(0, 4))
    with pytest.raises(InputError, match="share_folder=False .* pass sharding_degree=2"):
        refuse_unready(config, World(0, 4), World(0, 2))
