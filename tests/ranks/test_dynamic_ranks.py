"""Dynamic pretraining in two processes: runs that are killed, and resumed in another layout or graph."""

import numpy as np
import pytest
from launched import launch_line, run_script
from run_files import events, files_of
from safetensors.numpy import load_file
from tiny_pretrain import words_of
from waiting import kill_launched

pytestmark = pytest.mark.ranks
STEPS = {"max_steps": 5, "decay_steps": 5, "graph": "dynamic"}
SHARDED = {"dp_degree": 1, "sharding_degree": 2}
NO_DROPOUT = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
SCALED = {"use_amp": "true", "amp_dtype": "float32", "init_loss_scaling": 8, "incr_every_n_steps": 2}


def pretrain(world, output, processes=2, fails=False, **changes):
    words = words_of(world, output, processes, **{**STEPS, **changes})
    return run_script(world, *words, processes=processes, fails=fails)


KILLED = {
    "sharded": {**SHARDED, **SCALED, "use_recompute": "true", "kernels": "plain"},
    "data parallel": {"on_nan": "skip"},
}


@pytest.mark.parametrize("name", ["sharded", pytest.param("data parallel", marks=pytest.mark.slow)])
def test_a_killed_and_restarted_run_is_bit_identical(world, name):
    """Both ranks and their launcher are killed after the checkpoint of step 2; dropout, two passes a step."""
    layout = {**STEPS, "global_batch_size": 16, "micro_batch_size": 4, **KILLED[name]}
    pretrain(world, f"whole {name}", **layout)
    line = launch_line(world / "log", *words_of(world, f"cut {name}", 2, **layout))
    kill_launched(line, world / f"cut {name}")
    logs = pretrain(world, f"cut {name}", **layout)
    assert "resumed" in logs[0]
    whole, cut = (world / f"{run} {name}" for run in ("whole", "cut"))
    assert events(whole) == events(cut)
    assert files_of(whole / "model_last") == files_of(cut / "model_last")


def state_of(output):
    state = {}
    for path in sorted((output / "model_last").glob("*.safetensors")):
        state.update({f"{path.name[:9]} {name}": array for name, array in load_file(path).items()})
    return state


ALIKE = {**NO_DROPOUT, **SCALED, "adam_epsilon": 1e-6, "kernels": "plain", "global_batch_size": 16}
LAYOUTS = {
    "one": (1, {"micro_batch_size": 16}),
    "sharded": (2, {**SHARDED, "micro_batch_size": 4}),
    "static": (1, {"micro_batch_size": 8, "graph": "static"}),
    "static sharded": (2, {**SHARDED, "micro_batch_size": 8, "graph": "static"}),
}


@pytest.fixture(scope="module")
def whole(world):
    pretrain(world, "whole", 1, **ALIKE, **LAYOUTS["one"][1])
    return state_of(world / "whole")


@pytest.mark.parametrize(
    "first, then",
    [("sharded", "one"), ("one", "sharded"), ("sharded", "static"), ("static sharded", "sharded")],
)
def test_a_run_resumes_in_another_layout_or_graph(world, whole, first, then):
    """Weights, moments, loss scale and its counts go along."""
    output = f"from {first} to {then}"
    for name, steps in ((first, 2), (then, 5)):
        processes, layout = LAYOUTS[name]
        logs = pretrain(world, output, processes, **{**ALIKE, **layout, "max_steps": steps})
    assert "resumed" in logs[0]
    found = state_of(world / output)
    assert found.keys() == whole.keys() and any("loss_scaling_0" in name for name in found)
    for name, array in whole.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=2e-6, err_msg=name)
