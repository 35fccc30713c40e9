"""Programs of pretraining for Paddle 3.3, built for a GPU without one: operators, and what is refused."""

from pathlib import Path

import pytest
from children import json_of

from data_tools.files.errors import InputError
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
from ernie_pair.pretrain.graph.fusion import choose_fused
from ernie_pair.pretrain.graph.pir_program import build_pir_program
from ernie_pair.runtime.paddle_patches.pir_programs import builds_pir

pytestmark = pytest.mark.skipif(not builds_pir(), reason="programs of Paddle 3.3")
COUNTS = Path(__file__).with_name("pir_counts.py")
LAYERS = 2
PATHS = {name: "unused" for name in ("model_name_or_path", "input_dir", "output_dir")}


@pytest.fixture(scope="module", params=[1, 2])
def built(request):
    return request.param, json_of(COUNTS, str(request.param))


def test_several_processes_sum_labels_gradients_and_parts(built):
    """One collective for each, whatever the number of parameters: no two ranks can meet in different ones."""
    processes, layouts = built
    for name, counts in layouts.items():
        collectives = [counts[program].get("all_reduce", 0) for program in ("main", "update", "test")]
        accumulates = name == "accumulation"
        expected = [1 if accumulates else 3, 2 if accumulates else 0, 0] if processes > 1 else [0, 0, 0]
        assert collectives == expected, name


def test_a_process_updates_what_it_owns(built):
    processes, layouts = built
    for name, counts in layouts.items():
        moves = counts["update" if name == "accumulation" else "main"]
        assert moves["lamb_" if name == "lamb" else "adamw_"] == counts["owned"], name
        assert moves["squared_l2_norm"] == counts["parameters"], name
        assert (counts["owned"] < counts["parameters"]) == (processes > 1)


def test_precision_recompute_and_skipping_add_their_operators(built):
    _, layouts = built
    plain, half = layouts["plain"]["main"], layouts["bfloat16 O1"]["main"]
    assert half["cast"] > plain["cast"] + 10 * LAYERS and "check_finite_and_unscale_" not in {**plain, **half}
    again = layouts["recompute"]["main"]
    assert again["softmax"] == 2 * plain["softmax"] and again["softmax_grad"] == plain["softmax_grad"]
    assert again["dropout"] == plain["dropout"] + 3 * LAYERS
    assert layouts["skip"]["main"]["check_finite_and_unscale_"] == 1
    assert "update_loss_scaling_" in layouts["skip"]["main"]
    for counts in layouts.values():
        assert not {"dropout", "softmax_grad", "adamw_"} & counts["test"].keys()


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"use_amp": True, "amp_level": "O2", "amp_dtype": "float16"}, "^amp_level O2: "),
        ({"use_amp": True, "reduce_dtype": "half", "amp_dtype": "float16"}, "^reduce_dtype half: "),
    ],
)
def test_what_a_program_of_3_3_does_not_do_is_refused(flags, message):
    config = PretrainConfig(**PATHS, device="gpu", **flags)
    with pytest.raises(InputError, match=message):
        build_pir_program(config, None)


def test_fused_ops_of_a_gpu_are_refused_by_name():
    config = PretrainConfig(**PATHS, device="gpu", fused_ops="attention")
    with pytest.raises(InputError, match="^fused_ops attention: such ops are put into programs"):
        choose_fused(config, 64, (8, 0))
