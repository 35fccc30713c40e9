"""Programs for a GPU, built without one: what is fused, their ops and collectives, and the start weights.

The op counts are those recorded at the last review. A change may be intended: then review the program and
regenerate the counts:
PYTHONPATH=.:tests/support python tests/ernie_pair/pretrain/graph/build_gpu_programs.py 1 (and 2)
"""

import json
from pathlib import Path

import paddle
import pytest
from children import json_of
from paddle import nn
from tiny_pretrain import write_corpus, write_model

from data_tools.files.errors import InputError
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
from ernie_pair.pretrain.graph import fusion, strategy
from ernie_pair.pretrain.graph.fusion import FLASH, NOTHING_FUSED, SOFTMAX_MASK, choose_fused
from ernie_pair.runtime.paddle_patches.pir_programs import builds_pir

HERE = Path(__file__).parent
KNOWN = json.loads((HERE / "gpu_programs.json").read_text())
PATHS = {name: "unused" for name in ("model_name_or_path", "input_dir", "output_dir")}
edited = pytest.mark.skipif(
    builds_pir(), reason="such programs are edited, those of Paddle 3.3 are not: test_pir_programs"
)
HALF = {"use_amp": True, "amp_dtype": "float16"}
LAYERS = 2


@pytest.fixture
def gpu_build(monkeypatch):
    """Make Paddle report that it is a GPU build."""
    monkeypatch.setattr(fusion.paddle, "is_compiled_with_cuda", lambda: True)


def choose(capability=(8, 0), head_size=64, **flags):
    return choose_fused(PretrainConfig(**PATHS, **{"device": "gpu", **flags}), head_size, capability)


@edited
def test_auto_selects_what_the_gpu_and_precision_support(gpu_build):
    assert choose(**HALF)[:3] == (FLASH, True, False)
    assert choose(**HALF, dp_degree=2)[:3] == (FLASH, True, True)
    assert choose(dp_degree=2)[:3] == (SOFTMAX_MASK, False, True)
    assert choose(**HALF, capability=(7, 5))[:3] == (SOFTMAX_MASK, True, False)
    assert choose(**HALF, head_size=4)[:3] == (SOFTMAX_MASK, True, False)
    assert choose(**{**HALF, "amp_dtype": "bfloat16"}, head_size=4)[:3] == ("", True, False)
    assert choose(**HALF, capability=(7, 5), max_seq_len=30)[:3] == ("", True, False)
    assert choose(**HALF, fused_ops="none")[:3] == NOTHING_FUSED[:3]
    assert choose(**HALF, fused_ops="gemm_epilogue")[:3] == ("", True, False)
    assert choose(device="cpu", dp_degree=2) == NOTHING_FUSED


@edited
def test_the_description_says_why_ops_are_not_fused(gpu_build):
    told = choose(**HALF, capability=(7, 5), max_seq_len=500).describe()
    assert told.startswith("fused ops: gemm_epilogue (not attention: flash attention needs compute")
    assert "this GPU has 7.5, and" in told and "not --max_seq_len 500" in told and "\n" not in told
    all_of_them = "fused ops: attention (flash), gemm_epilogue, collectives"
    assert choose(**HALF, dp_degree=2).describe() == all_of_them


@edited
@pytest.mark.parametrize(
    "flags, capability, message",
    [
        ({"fused_ops": "gemm_epilogue"}, (8, 0), "gemm_epilogue: it needs half precision, and .* false"),
        ({"fused_ops": "attention", "max_seq_len": 20}, (8, 0), "half precision, .* not max_seq_len=20"),
        (
            {**HALF, "fused_ops": "attention", "max_seq_len": 20},
            None,
            "GPU does not report its .*, and the fused soft",
        ),
        ({"fused_ops": "collectives"}, (8, 0), "collectives: a single process has none; leave it out"),
        ({"fused_ops": "gemm_epilogue", "device": "cpu"}, None, "there is no such op on a CPU; leave"),
        ({"fused_ops": "adamw"}, (8, 0), "adamw: there is no such op; use auto, none, or some of attention"),
    ],
)
def test_unavailable_fused_ops_give_a_one_line_error(gpu_build, flags, capability, message):
    with pytest.raises(InputError, match=message) as caught:
        choose(capability, **flags)
    assert "\n" not in str(caught.value)


@edited
def test_a_cpu_build_of_paddle_has_no_gemm_epilogue():
    if paddle.is_compiled_with_cuda():
        pytest.skip("a build for GPUs")
    assert choose(**HALF)[:3] == (SOFTMAX_MASK, False, False)
    with pytest.raises(InputError, match="gemm_epilogue: this Paddle is a CPU build; leave it out"):
        choose(**HALF, fused_ops="gemm_epilogue")


# --- ops


@pytest.fixture(scope="module", params=["1", "2"])
def programs(request):
    return request.param, json_of(HERE / "build_gpu_programs.py", request.param)


def of_one(programs):
    processes, found = programs
    if processes != "1":
        pytest.skip("fused in the same way")
    return found


@edited
@pytest.mark.gpu_wheel
@pytest.mark.skipif(not paddle.is_compiled_with_cuda(), reason="Paddle's build for CPUs has no such ops")
@pytest.mark.parametrize(
    "name, passes", [("float16 O1", 1), ("float16 O2", 1), ("bfloat16 O1, recompute", 2)]
)
def test_fused_ops_replace_the_plain_ones(programs, name, passes):
    found = of_one(programs)
    plain, fused = found[name], found[f"{name}, fused"]
    assert fused["flash_attn"] == LAYERS * passes and fused["flash_attn_grad"] == LAYERS
    assert "softmax" not in fused and plain["softmax"] == LAYERS * passes
    assert fused["dropout"] == plain["dropout"] - LAYERS * passes
    assert fused["fused_gemm_epilogue"] > 6 * LAYERS and "matmul_v2" not in fused and "matmul_v2" in plain
    assert fused["all"] < 0.9 * plain["all"]


@edited
def test_softmax_and_mask_are_fused_into_one_op(programs):
    """An older GPU has no flash attention; the mask is expanded to a square once for all layers."""
    found = of_one(programs)
    plain, fused = found["float16 O1"], found["float16 O1, 7.5, fused"]
    assert fused["fused_softmax_mask"] == LAYERS and "softmax" not in fused
    assert fused["dropout"] == plain["dropout"] and fused["all"] < plain["all"]


@edited
def test_op_counts_match_the_recorded_programs(programs):
    processes, found = programs
    plain = {name: counts for name, counts in found.items() if "fused" not in name}
    if paddle.__version__ > "3":  # 2.6 merges the overflow checks of half and other gradients
        for counts in (counts for name, counts in plain.items() if "O2" in name):
            counts["all"] += len(("concat", "reduce_any"))
    assert plain == KNOWN[f"{processes} process(es)"]


@edited
def test_each_strategy_adds_its_expected_ops(programs):
    processes, found = programs
    plain = found["float32"]
    for name, counts in found.items():
        assert (counts["cast"] > 50) == ("float16" in name)
        assert counts.get("conditional_block", 0) == ("gradient merge" in name)
        assert (counts["dropout"] > plain["dropout"]) == ("recompute" in name)
        assert ("check_finite_and_unscale" in counts) == (" float16" in f" {name}" or "skip" in name)
        assert "seed" not in counts, "recompute's seed ops cannot be repeated"
        assert ("c_broadcast" in counts) == (processes != "1")
        moves = counts["lamb" if "lamb" in name else "adamw"]
        assert moves < 46 if processes != "1" else moves == 46
        assert ("lamb" in counts) != ("adamw" in counts)
        assert counts.get("check_finite_and_unscale", 0) <= 1, name
    assert found["float16 O1"]["cast"] < found["float16 O1, more in float32"]["cast"] - 20


# --- gradients are summed over the processes in float32 in every layout, unless half sums are requested


def collectives(processes, which):
    """{"layout; precision; sums; fused": {"c_allreduce_sum float32": how many}}."""
    return json_of(HERE / "build_collectives.py", processes, which, timeout=600)


EVERY = pytest.param("all", marks=pytest.mark.slow)  # those too that float16 stands for


@pytest.fixture(scope="module", params=["few", EVERY])
def of_two(request):
    return collectives(2, request.param)


@edited
@pytest.mark.parametrize("which, count", [("few", 7), pytest.param("all", 18, marks=pytest.mark.slow)])
def test_one_process_has_no_collectives(which, count):
    found = collectives(1, which)
    assert len(found) == count and not any(found.values())


@edited
def test_gradients_are_summed_in_float32_in_every_layout(of_two, request):
    seen = set()
    for name, found in of_two.items():
        layout, precision, sums, _ = name.split("; ")
        added = {kind.split()[1] for kind in found if kind.startswith("c_allreduce_sum")}
        if sums == "float32":
            assert added - {"float64"} == {"float32"}, name  # float64: the ranks' label counts
            seen.add((layout, precision))
    is_every = "all" in request.node.name
    assert len(seen) == (7 + 7 if is_every else 7 + 4) + 4  # with half-precision weights no gradient merge


@edited
def test_half_sums_and_broadcasts_have_the_dtypes_asked_for(of_two):
    for name, found in of_two.items():
        layout, precision, sums, _ = name.split("; ")
        half = precision.split()[0]
        if sums == "half":
            assert found[f"c_allreduce_sum {half}"] > found.get("c_allreduce_sum float32", 0) > 0, name
        sent = {kind.split()[1] for kind in found if kind.startswith("c_broadcast")}
        narrow = {half} if "O2" in precision else set()
        assert sent == ({"float32"} | narrow if "sharding" in layout else set()), name


@edited
def test_fusing_reduces_collectives_and_keeps_their_dtypes(of_two):
    for layout in ("sharding", "sharding, merge"):
        fused, plain = (of_two[f"{layout}; float16 O1; float32; {fused}"] for fused in ("auto", "none"))
        assert fused.keys() == plain.keys()
        assert plain["c_broadcast float32"] == 46 and fused["c_broadcast float32"] == 2  # one for each owner
    assert plain["c_allreduce_sum float32"] == 46 and fused["c_allreduce_sum float32"] == 1


# --- one op updates all parameters if their settings are equal, or else those of Paddle stay


def program_of(attributes=None, clip=0.5, **settings):
    """A program that trains two layers; ``attributes`` belong to the weight of the second."""
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
        x = paddle.static.data("x", [None, 4], "float32")
        weight = paddle.ParamAttr(**(attributes or {}))
        loss = nn.Linear(4, 2, weight_attr=weight)(nn.Linear(4, 4)(x)).sum()
        settings = {"learning_rate": 0.1, "weight_decay": 0.01, **settings}
        grad_clip = nn.ClipGradByGlobalNorm(clip) if clip else None
        paddle.optimizer.AdamW(grad_clip=grad_clip, **settings).minimize(loss)
    return main


@pytest.fixture
def made(monkeypatch):
    """The ops that would replace Paddle's in the program; the operator itself is not loaded here."""
    ops = []
    monkeypatch.setattr(strategy, "insert_described", lambda *given: ops.append(given))
    monkeypatch.setattr(strategy, "sync", lambda main: None)
    paddle.enable_static()
    yield ops
    paddle.disable_static()


def types_of(main):
    return [op.type for op in main.global_block().ops]


@edited
@pytest.mark.parametrize("clip", [None, 0.5])
def test_parameters_with_equal_settings_share_one_op(made, clip):
    main = program_of(clip=clip, apply_decay_param_fun=lambda name: "w_" in name)
    strategy.fuse_updates(main)
    ((_, _, operator, inputs, _, attributes),) = made
    assert operator == strategy.OPERATOR and "adamw" not in types_of(main)
    assert len(inputs["Parameters@VECTOR"]) == 4 and sorted(attributes["decays"]) == pytest.approx(
        [0, 0, 0.01, 0.01]
    )
    assert ("Factor@OPTIONAL" in inputs) == (clip is not None)


@edited
@pytest.mark.parametrize(
    "changes",
    [{"attributes": {"learning_rate": 0.5}}, {"attributes": {"need_clip": False}}],
    ids=["rate of its own", "not clipped"],
)
def test_parameters_with_own_settings_are_left_to_paddle(made, changes):
    main = program_of(**changes)
    before = types_of(main)
    strategy.fuse_updates(main)
    assert not made and types_of(main) == before and before.count("adamw") == 4


# --- random start weights are the same in every version of Paddle, so a seed determines a run

PROGRAM = """
import json
from gpu_program import build, start
from tiny_pretrain import VOCAB
with start(1):
    program = build(1, device="cpu")
    program.start(1234)
    weights = program.weights()
weights["embedding_0.w_0"] = weights["embedding_0.w_0"][:len(VOCAB)]  # the rows after it mean nothing
table = weights["embedding_0.w_0"].ravel()
size = sum(float(abs(array.astype("float64")).sum()) for array in weights.values())
print("\\n" + json.dumps([len(weights), size, float(abs(table).max()), *map(float, table[:5])]))
"""
# Number of weights, sum of absolute values, the embedding's maximum and first values, from Paddle 2.6.2.
START = [46, 30503.11826797291, 0.03987697511911392]
START += [0.00740954, -0.00553122, -0.01480218, -0.0164937, -0.00641244]


def test_start_weights_are_the_same_in_every_paddle_version():
    assert json_of("-c", PROGRAM) == pytest.approx(START, rel=1e-6)


# --- a step reads nothing back from the device until its metrics are needed


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("late")
    write_corpus(folder / "data", write_model(folder / "model"))
    return json_of(Path(__file__).with_name("read_late.py"), folder, timeout=600)


@edited
@pytest.mark.parametrize("way", ["plain", "merge", "skip", "no clipping", "recompute", "many passes"])
def test_a_step_fetches_nothing_and_its_metrics_are_the_same(seen, way):
    assert seen[way]["fetches"] == 0 and seen[way]["looks at all ops"] == 0
    # With "skip" the next learning rate depends on skipped steps; 132 passes fill the records every step.
    assert seen[way]["reads"] == {"skip": 6, "many passes": 2}.get(way, 0)
    assert seen[way]["same metrics"] and seen[way]["same evaluation"] and seen[way]["same weights"]


@edited
def test_a_held_program_gives_the_same_losses_as_the_executor(seen):
    assert seen["held as run"] and seen["merge"]["passes"] == 3
