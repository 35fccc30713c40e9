"""Two processes under Paddle's launcher against one process, static graph over gloo on the CPU."""

import subprocess
import sys

import numpy as np
import pytest
from launched import QUIET, launch_line, one_thread, run_script
from places import SCRIPTS
from run_files import events, files_of
from safetensors.numpy import load_file
from tiny_models import ORDER, POOLER, write_bert
from tiny_pretrain import STATIC, flags, words_of
from waiting import free_port, kill_launched

from ernie_pair.core.errors import InputError
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig, check_layout
from ernie_pair.runtime.processes.world import World

pytestmark = pytest.mark.ranks
PLAIN = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0, "max_steps": 5}
SHARDED = {"dp_degree": 1, "sharding_degree": 2}


def pretrain(world, output, processes=2, fails=False, **changes):
    words = words_of(world, output, processes, **{**PLAIN, **changes})
    run_script(world, *words, processes=processes, fails=fails)
    return world / output


def weights(output):
    return load_file(output / "model_last" / "static_vars.safetensors")


def largest_difference(one, other):
    a, b = weights(one), weights(other)
    assert a.keys() == b.keys()
    return max(np.abs(a[name] - b[name]).max() for name in a)


ALL_AT_ONCE = {
    "micro_batch_size": 4, "global_batch_size": 16, "use_recompute": "true", "hidden_dropout_prob": 0.1,
    "use_amp": "true", "amp_dtype": "float32", "init_loss_scaling": 8, "incr_every_n_steps": 2,
}  # fmt: skip
RESTARTED = {
    "dp-no-validation": {"micro_batch_size": 8, "split": "1,0,0"},
    "dp-all": ALL_AT_ONCE,
    "sharding-all": {**ALL_AT_ONCE, **SHARDED, "use_sharding": "true"},
}


@pytest.mark.parametrize(
    "name",
    ["sharding-all", *(pytest.param(name, marks=pytest.mark.slow) for name in RESTARTED if "dp" in name)],
)
def test_a_killed_and_restarted_run_is_bit_identical(world, name):
    """Both ranks and their launcher are killed some time after the checkpoint of step 2."""
    layout = {**PLAIN, **RESTARTED[name], "decay_steps": 5}
    whole = pretrain(world, f"whole-{name}", **layout)
    line = launch_line(world / "log", *words_of(world, f"cut-{name}", 2, **layout))
    kill_launched(line, world / f"cut-{name}")
    cut = pretrain(world, f"cut-{name}", **layout)
    assert events(whole) == events(cut)
    assert files_of(whole / "model_last") == files_of(cut / "model_last")


@pytest.fixture(scope="module")
def single(world):
    return pretrain(world, "single", processes=1, micro_batch_size=16, decay_steps=5)


@pytest.mark.parametrize("first, then", [(2, 1), (1, 2)])
def test_a_resume_in_another_layout_keeps_samples_and_optimizer(world, single, first, then):
    """Two steps sharded over two processes, then one process with another micro batch, and the reverse."""
    layouts = {1: {"micro_batch_size": 16}, 2: {**SHARDED, "micro_batch_size": 4, "global_batch_size": 16}}
    for processes, steps in ((first, 2), (then, 5)):
        layout = {**layouts[processes], "max_steps": steps, "checkpoint_steps": 1, "decay_steps": 5}
        output = pretrain(world, f"from-{first}-to-{then}", processes, **layout)
    assert largest_difference(single, output) < 2e-5
    parts = [load_file(path) for path in (output / "model_last").glob("optimizer-*")]
    assert len(parts) == then
    merged = {name: array for part in parts for name, array in part.items()}
    (known,) = (load_file(path) for path in (single / "model_last").glob("optimizer-*"))
    assert merged.keys() == known.keys() and sum(map(len, parts)) == len(known)
    assert max(np.abs(merged[name] - known[name]).max() for name in known) < 2e-5
    mine, known = (
        {event["step"]: event["lm_loss"] for event in events(folder, "train")} for folder in (output, single)
    )
    assert mine == pytest.approx(known, abs=1e-5)


def test_a_user_error_is_one_line_in_the_log_of_rank_0(world):
    output = pretrain(world, "refused", fails=True, micro_batch_size=8, min_lr=1)
    assert not output.exists()
    assert "error: --min_lr 1.0 is above" in (world / "log" / "workerlog.0").read_text()


def test_a_converted_sharded_run_can_start_another_run(world):
    """The learning rate of the other run is too small to change any weight."""
    first = pretrain(world, "converted", **SHARDED, max_steps=2)
    script = str(SCRIPTS / "ernie_static_to_dynamic.py")
    paths = [f"--static_model_path={first}/model_last/static_vars", f"--output_dir={world}/dynamic"]
    subprocess.run([sys.executable, script, *paths], check=True, capture_output=True, timeout=300)
    still = {"max_lr": 1e-30, "min_lr": 0, "max_steps": 2, "from_scratch": "false"}
    still["model_name_or_path"] = world / "dynamic"
    for processes, layout in ((1, {}), (2, SHARDED)):
        output = pretrain(world, f"way-back-{processes}", processes, **layout, **still)
        assert largest_difference(first, output) == 0


@pytest.mark.parametrize("layout", [pytest.param({"dp_degree": 2}, marks=pytest.mark.slow), SHARDED])
def test_two_processes_continue_a_bert_as_one_does(world, layout):
    """A BERT without a head for the order: no process learns one, or writes one."""
    start = world / "bert" / "hf"
    if not start.is_dir():
        write_bert(world / "bert", without=(ORDER, POOLER), theirs=True)
    settings = {"model_name_or_path": start, "from_scratch": "false", "adam_epsilon": 1e-4}
    name = "-".join(layout)
    one = pretrain(world, f"one-{name}", processes=1, micro_batch_size=8, **settings)
    two = pretrain(world, f"two-{name}", **layout, **settings)
    assert largest_difference(one, two) < 2e-5
    assert not [name for name in weights(two) if ORDER in name]


def two_machines(world, outputs, **changes):
    """Start the same command on both, each with its own output; wait for both."""
    master, runs = f"127.0.0.1:{free_port()}", []
    for node, output in enumerate(outputs):
        launch = ["-m", "paddle.distributed.launch", "--nnodes", "2", "--rank", node, "--nproc_per_node", "1"]
        launch += ["--master", master, "--log_dir", world / f"log{node}"]
        words = flags(world / "model", world / "data", output, dp_degree=2, **changes)
        line = list(map(str, [sys.executable, *launch, STATIC, *words]))
        runs.append(subprocess.Popen(line, env=one_thread(), **QUIET))
    codes = [run.wait(timeout=240) for run in runs]
    logs = [path.read_text()[-1500:] for path in sorted(world.glob("log?/workerlog.*"))]
    assert codes == [0, 0], "\n".join(logs)


@pytest.mark.slow
def test_unshared_folders_each_hold_all_a_resume_needs(world):
    outputs, whole = ([world / f"{run}_{node}" for node in (0, 1)] for run in ("cut", "whole"))
    for folders, steps in ((outputs, 2), (outputs, 4), (whole, 4)):
        two_machines(world, folders, share_folder="false", decay_steps=4, max_steps=steps)
    names, others = (sorted(path.name for path in (out / "model_last").iterdir()) for out in outputs)
    assert "optimizer-00000-of-00001.safetensors" in names and names == others
    assert events(outputs[0], "train") == events(whole[0], "train")
    assert not (outputs[1] / "metrics.jsonl").exists()
    for output in (*outputs, whole[1]):
        assert largest_difference(whole[0], output) == 0


def test_two_machines_can_write_to_one_shared_folder(world):
    two_machines(world, [world / "shared"] * 2, max_steps=2, decay_steps=4)
    assert (world / "shared" / "model_last").resolve().name == "step_00000002"
    assert events(world / "shared")[-1]["step"] == 2


def test_optimizer_shards_across_unshared_folders_are_refused():
    flags = {name: "unused" for name in ("model_name_or_path", "input_dir", "output_dir")}
    layout = {"dp_degree": 1, "sharding_degree": 4, "use_sharding": True, "share_folder": False}
    config = PretrainConfig(**flags, **layout, device="cpu")
    check_layout(config, World(0, 4), World(0, 4))
    with pytest.raises(InputError, match="share_folder=False .* pass sharding_degree=2"):
        check_layout(config, World(0, 4), World(0, 2))
