"""Two processes under Paddle's launcher against one process, static graph over gloo on the CPU."""

import hashlib
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from places import ROOT
from safetensors.numpy import load_file
from tiny_bert import ORDER, POOLER, write_bert
from tiny_pretrain import events, flags, write_corpus, write_model

pytestmark = pytest.mark.ranks
SCRIPT = ROOT / "scripts" / "run_pretrain_static.py"
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
PLAIN = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0, "max_steps": 5}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    model = write_model(folder / "model")
    write_corpus(folder / "data", model)
    return folder


def one_process(world, output, **changes):
    words = flags(world / "model", world / "data", world / output, **{**PLAIN, **changes})
    subprocess.run([sys.executable, str(SCRIPT), *words], check=True, capture_output=True, timeout=300)
    return world / output


def launch_line(world, output, **changes):
    words = flags(world / "model", world / "data", world / output, **{**PLAIN, "dp_degree": 2, **changes})
    launch = [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2"]
    return [*launch, "--log_dir", str(world / f"{output}_log"), str(SCRIPT), *words]


def two_processes(world, output, **changes):
    line = launch_line(world, output, **changes)
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, env=ONE_THREAD)
    return done, world / output


def largest_difference(one, other):
    a, b = (load_file(folder / "model_last" / "static_vars.safetensors") for folder in (one, other))
    assert a.keys() == b.keys()
    return max(np.abs(a[name] - b[name]).max() for name in a)


ALL_AT_ONCE = {
    **{"micro_batch_size": 4, "global_batch_size": 16, "use_recompute": "true", "hidden_dropout_prob": 0.1},
    **{"use_amp": "true", "amp_dtype": "float32", "init_loss_scaling": 8, "incr_every_n_steps": 2},
}


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(
            {"micro_batch_size": 8, "split": "1,0,0"}, id="dp-no-validation", marks=pytest.mark.slow
        ),
        pytest.param({**ALL_AT_ONCE}, id="dp-all", marks=pytest.mark.slow),
        pytest.param(
            {**ALL_AT_ONCE, "dp_degree": 1, "sharding_degree": 2, "use_sharding": "true"}, id="sharding-all"
        ),
    ],
)
def test_a_killed_and_restarted_run_is_bit_identical(world, layout, request):
    name = request.node.callspec.id
    done, whole = two_processes(world, f"whole-{name}", decay_steps=5, **layout)
    assert done.returncode == 0
    cut = kill_after(world, f"cut-{name}", 2, decay_steps=5, **layout)
    done, _ = two_processes(world, f"cut-{name}", decay_steps=5, **layout)
    assert done.returncode == 0
    assert events(whole) == events(cut)
    assert contents(whole) == contents(cut)


def kill_after(world, output, step, **changes):
    """Kill both ranks and their launcher some time after the checkpoint of ``step``."""
    process = subprocess.Popen(
        launch_line(world, output, **changes), start_new_session=True, env=ONE_THREAD, **QUIET
    )
    deadline = time.monotonic() + 120
    while not list((world / output).glob(f"checkpoints/step_{step:08d}")) and time.monotonic() < deadline:
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return world / output


def contents(output):
    """{name: sha256} of the tensors of the last checkpoint."""
    files = (output / "model_last").glob("*.safetensors")
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


SHARDED = {"dp_degree": 1, "sharding_degree": 2}


@pytest.mark.parametrize("first, then", [(2, 1), (1, 2)])
def test_a_resume_in_another_layout_keeps_samples_and_optimizer(world, single, first, then):
    """Two steps sharded over two processes, then one process with another micro batch, and the reverse."""
    output = f"from-{first}-to-{then}"
    sharded = {**SHARDED, "micro_batch_size": 4, "global_batch_size": 16}
    alone = {"micro_batch_size": 16}
    steps = {"checkpoint_steps": 1, "decay_steps": 5}
    for processes, max_steps in ((first, 2), (then, 5)):
        if processes == 2:
            done, _ = two_processes(world, output, max_steps=max_steps, **sharded, **steps)
            assert done.returncode == 0, done.stdout[-2000:]
        else:
            one_process(world, output, max_steps=max_steps, **alone, **steps)
    assert largest_difference(single, world / output) < 2e-5
    parts = {path.name: load_file(path) for path in (world / output / "model_last").glob("optimizer-*")}
    assert len(parts) == then
    merged = {name: array for part in parts.values() for name, array in part.items()}
    (known,) = (load_file(path) for path in (single / "model_last").glob("optimizer-*"))
    assert merged.keys() == known.keys() and sum(map(len, parts.values())) == len(known)
    assert max(np.abs(merged[name] - known[name]).max() for name in known) < 2e-5
    mine, known = (
        {event["step"]: event["lm_loss"] for event in events(folder) if event["split"] == "train"}
        for folder in (world / output, single)
    )
    assert mine == pytest.approx(known, abs=1e-5)


@pytest.fixture(scope="module")
def single(world):
    return one_process(world, "single", micro_batch_size=16, decay_steps=5)


def test_a_user_error_is_one_line_in_the_log_of_rank_0(world):
    done, output = two_processes(world, "refused", micro_batch_size=8, min_lr=1)
    assert done.returncode != 0 and not output.exists()
    assert "error: --min_lr 1.0 is above" in (world / "refused_log" / "workerlog.0").read_text()


def test_a_converted_sharded_run_can_start_another_run(world):
    """The learning rate of the other run is too small to change any weight."""
    done, first = two_processes(world, "converted", **SHARDED, max_steps=2)
    assert done.returncode == 0
    words = ["--static_model_path", str(first / "model_last" / "static_vars"), "--output_dir"]
    script = str(ROOT / "scripts" / "ernie_static_to_dynamic.py")
    command = [sys.executable, script, *words, str(world / "dynamic")]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    still = {"max_lr": 1e-30, "min_lr": 0, "max_steps": 2, "from_scratch": "false"}
    still["model_name_or_path"] = world / "dynamic"
    one_process(world, "way-back", **still)
    done, _ = two_processes(world, "way-back-sharded", **SHARDED, **still)
    assert done.returncode == 0
    for output in ("way-back", "way-back-sharded"):
        assert largest_difference(first, world / output) == 0


@pytest.mark.parametrize("layout", [pytest.param({"dp_degree": 2}, marks=pytest.mark.slow), SHARDED])
def test_two_processes_continue_a_bert_as_one_does(world, layout, request):
    """A BERT without a head for the order: no process learns one, or writes one."""
    start = world / "bert" / "hf"
    if not start.is_dir():
        write_bert(world / "bert", without=(ORDER, POOLER), theirs=True)
    given = {"model_name_or_path": start, "from_scratch": "false", "adam_epsilon": 1e-4}
    single = one_process(world, f"one {request.node.callspec.id}", micro_batch_size=8, **given)
    done, output = two_processes(world, f"two {request.node.callspec.id}", **layout, **given)
    assert done.returncode == 0, done.stdout[-2000:]
    assert largest_difference(single, output) < 2e-5
    assert not [
        name for name in load_file(output / "model_last" / "static_vars.safetensors") if ORDER in name
    ]
