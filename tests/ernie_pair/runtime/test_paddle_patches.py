"""Patches of Paddle are in effect only while needed, and fail on an unknown Paddle."""

from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from paddle.amp import grad_scaler
from paddle.distributed.fleet.meta_optimizers import AMPOptimizer, common
from paddle.distributed.launch.controllers.controller import Controller, ControllerBase
from paddle.distributed.launch.job.container import Container
from paddle.distributed.launch.job.pod import Pod
from paddle.distributed.launch.utils.process_context import ProcessContext

from ernie_pair.runtime.paddle_patches import static_programs
from ernie_pair.runtime.paddle_patches.core_settings import replaced
from ernie_pair.runtime.paddle_patches.launcher import end_noted, private_environment
from ernie_pair.runtime.paddle_patches.layers import activation_of
from ernie_pair.runtime.paddle_patches.optimizer_state import AnyDeviceGradScaler
from ernie_pair.runtime.paddle_patches.static_programs import (
    amp_by,
    describe_broadcast,
    describe_sum,
    is_broadcast,
    is_sum,
    place_of,
    without_nccl,
)
from ernie_pair.runtime.paddle_version import can_pretrain

REPAIRS = {
    "environment": (
        lambda: private_environment(lambda: None),
        [(Controller, "save_pod_env"), (Controller, "save_pod_log")]
        + [(ProcessContext, "_start"), (Container, "__str__")],
    ),
    "end": (end_noted, [(Pod, "stop"), (Container, "tail"), (ControllerBase, "signal_handler")]),
    "amp": (lambda: amp_by(lambda optimizer: optimizer), [(AMPOptimizer, "_init_wrapped_opt")]),
    "no NCCL": (without_nccl, [(common.CollectiveHelper, "_init_communicator")]),
}


@pytest.mark.parametrize("repair, names", REPAIRS.values(), ids=REPAIRS)
def test_a_patch_is_undone_even_if_its_context_raises(repair, names):
    before = [vars(owner)[name] for owner, name in names]
    with pytest.raises(SystemExit), repair():
        assert not any(vars(owner)[name] is known for (owner, name), known in zip(names, before))
        raise SystemExit(1)
    assert all(vars(owner)[name] is known for (owner, name), known in zip(names, before))


def test_patching_an_attribute_that_paddle_lacks_is_an_error():
    with pytest.raises(AttributeError, match="Pod has no exit_status"), replaced(Pod, "exit_status", None):
        pytest.fail("nothing was replaced")


@pytest.mark.parametrize(
    "is_initialized, is_cpu, lies_on_cpu", [(True, True, True), (True, False, False), (False, True, False)]
)
def test_the_place_of_a_cpu_variable_is_the_cpu(is_initialized, is_cpu, lies_on_cpu):
    """On a GPU the powers of AdamW's betas are in CPU memory; uninitialised variables are nowhere."""
    place = SimpleNamespace(is_cpu_place=lambda: is_cpu)
    variable = SimpleNamespace(_is_initialized=lambda: is_initialized, _place=lambda: place)
    found = place_of(variable, "gpu")
    assert (str(found) == str(paddle.CPUPlace())) is lies_on_cpu and (found == "gpu") is not lies_on_cpu


def test_a_cpu_loss_scaler_leaves_the_tracer_unchanged():
    tracer = grad_scaler._dygraph_tracer
    scale = AnyDeviceGradScaler(init_loss_scaling=8.0, decr_every_n_nan_or_inf=1)
    assert grad_scaler._dygraph_tracer is tracer
    assert scale.scale(paddle.to_tensor(2.0)).item() == 16.0
    scale.judge(False)
    assert scale.value == 4.0


@pytest.fixture
def programs():
    """An old-style main and startup program, with two variables in the main program."""
    if not can_pretrain(paddle.__version__):
        pytest.skip("this Paddle builds no such programs")
    paddle.enable_static()
    try:
        main, startup = paddle.static.Program(), paddle.static.Program()
        block = main.global_block()
        yield main, startup, [block.create_var(name=name, shape=[2], dtype="float64") for name in "ab"]
    finally:
        paddle.disable_static()


@pytest.mark.parametrize(
    "known", [{"c_allreduce_sum", "c_broadcast", "all_reduce", "broadcast"}, {"all_reduce"}]
)
def test_collectives_use_the_op_names_of_this_paddle(monkeypatch, known):
    monkeypatch.setattr(static_programs, "_has_op", known.__contains__)
    added, sent = describe_sum("a", "b"), describe_broadcast("a", 1, op_role=2)
    if "c_allreduce_sum" in known:
        assert added == {
            "type": "c_allreduce_sum",
            "inputs": {"X": ["a"]},
            "outputs": {"Out": ["b"]},
            "attrs": {"ring_id": 0, "use_calc_stream": True},
        }
        assert sent["attrs"] == {"ring_id": 0, "root": 1, "use_calc_stream": True, "op_role": 2}
    else:
        assert added == {
            "type": "all_reduce",
            "inputs": {"x": ["a"]},
            "outputs": {"out": ["b"]},
            "attrs": {"ring_id": 0, "reduce_type": 0},
        }
        assert sent["type"] == "broadcast" and sent["attrs"] == {"ring_id": 0, "root": 1, "op_role": 2}


def test_collectives_of_this_paddle_are_recognised(programs):
    main, _, (source, total) = programs
    block = main.global_block()
    block.append_op(**describe_sum(source, total))
    block.append_op(**describe_broadcast(total, 0))
    block.append_op(type="scale", inputs={"X": [source]}, outputs={"Out": [total]}, attrs={"scale": 1.0})
    assert [is_sum(op) for op in block.ops] == [True, False, False]
    assert [is_broadcast(op) for op in block.ops] == [False, True, False]


def test_truncated_normals_end_at_two_standard_deviations(programs):
    """Paddle 3 truncates at -2 and 2 unless told otherwise, so that weights would differ from 2.6."""
    main, startup, _ = programs
    with paddle.static.program_guard(main, startup):
        drawn = paddle.create_parameter(
            [4000], "float32", default_initializer=paddle.nn.initializer.TruncatedNormal(0.5, 0.02)
        )
    static_programs.cut_normals(startup)
    paddle.seed(5)
    scope = paddle.static.Scope()
    with paddle.static.scope_guard(scope):
        paddle.static.Executor(paddle.CPUPlace()).run(startup)
    numbers = np.array(scope.find_var(drawn.name).get_tensor())
    assert 0.46 < numbers.min() < 0.462 and 0.538 < numbers.max() < 0.54


@pytest.mark.parametrize("name, known", [("gelu", "gelu"), ("relu", "relu"), ("silu", "")])
def test_an_activation_is_recognised_whatever_its_name(monkeypatch, name, known):
    """Paddle 3.2 calls F.gelu `_gelu`."""
    function = getattr(paddle.nn.functional, name)
    renamed = SimpleNamespace(**{"__name__": f"_{name}"})
    assert activation_of(SimpleNamespace(activation=function)) == known
    monkeypatch.setattr(paddle.nn.functional, name, renamed)
    assert activation_of(SimpleNamespace(activation=renamed)) == known
