"""Programs of pretraining: their operators, built for a GPU without one, their start, and late reading."""

from pathlib import Path

import pytest
from children import json_of
from tiny_pretrain import write_corpus, write_model

COUNTS = Path(__file__).with_name("program_counts.py")
LAYERS = 2


@pytest.fixture(scope="module", params=[1, 2])
def printed(request):
    return request.param, *json_of(COUNTS, str(request.param))


@pytest.fixture
def built(printed):
    return printed[:2]


def test_a_card_attends_in_half_precision_in_every_layer(printed):
    """Flash attention takes no float32, which a sum with a bias is, nor the seed of a pass for dropout."""
    asked = [["paddle.bfloat16", 0.0]] * LAYERS
    assert printed[2] == {"plain": asked, "recompute": asked * 2, "dropout": []}


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


# --- the seed determines the weights at the start

PROGRAM = """
import json
import paddle
from gpu_program import build
from tiny_pretrain import VOCAB
paddle.enable_static()
program = build(1, device="cpu")
program.start(1234)
weights = program.weights()
weights["embedding_0.w_0"] = weights["embedding_0.w_0"][:len(VOCAB)]  # the rows after it mean nothing
table = weights["embedding_0.w_0"].ravel()
size = sum(float(abs(array.astype("float64")).sum()) for array in weights.values())
print("\\n" + json.dumps([len(weights), size, float(abs(table).max()), *map(float, table[:5])]))
"""
# Number of weights, sum of absolute values, the embedding's maximum and first values.
START = [46, 30503.11826797291, 0.03987697511911392]
START += [0.00740954, -0.00553122, -0.01480218, -0.0164937, -0.00641244]


def test_start_weights_are_known():
    assert json_of("-c", PROGRAM, WARM="1") == pytest.approx(START, rel=1e-6)


# --- a step reads nothing back from the device until its metrics are needed


@pytest.fixture(scope="module")
def seen(module_path):
    write_corpus(module_path / "data", write_model(module_path / "model"))
    return json_of(Path(__file__).with_name("read_late.py"), module_path, timeout=600)


@pytest.mark.parametrize("way", ["plain", "merge", "skip", "no clipping", "recompute", "many passes"])
def test_a_step_reads_nothing_and_its_metrics_are_the_same(seen, way):
    # With "skip" the next learning rate depends on skipped steps; 132 passes fill the records every step.
    assert seen[way]["reads"] == {"skip": 6, "many passes": 2}.get(way, 0)
    assert seen[way]["looks at all ops"] == 0
    assert seen[way]["same metrics"] and seen[way]["same evaluation"] and seen[way]["same weights"]


def test_a_held_program_gives_the_same_losses_as_the_executor(seen):
    assert seen["held as run"] and seen["merge"]["passes"] == 3
