"""Repairs of Paddle last as long as they are needed, and notice another Paddle."""

from types import SimpleNamespace

import paddle
import pytest
from paddle.amp import grad_scaler
from paddle.distributed.fleet.meta_optimizers import AMPOptimizer, common
from paddle.distributed.launch.controllers.controller import Controller
from paddle.distributed.launch.job.container import Container
from paddle.distributed.launch.job.pod import Pod
from paddle.distributed.launch.utils.process_context import ProcessContext

from ernie_pair.device.paddle_patches.grad_scaler import AnyDeviceGradScaler
from ernie_pair.device.paddle_patches.launcher import own_exit_code, private_environment
from ernie_pair.device.paddle_patches.replaced import replaced
from ernie_pair.device.paddle_patches.static_fleet import amp_by, without_nccl
from ernie_pair.device.paddle_patches.static_variables import place_of

REPAIRS = {
    "environment": (
        private_environment,
        [(Controller, "save_pod_env"), (Controller, "save_pod_log")]
        + [(ProcessContext, "_start"), (Container, "__str__")],
    ),
    "exit code": (own_exit_code, [(Pod, "stop"), (Pod, "exit_code")]),
    "amp": (lambda: amp_by(lambda optimizer: optimizer), [(AMPOptimizer, "_init_wrapped_opt")]),
    "no NCCL": (without_nccl, [(common.CollectiveHelper, "_init_communicator")]),
}


@pytest.mark.parametrize("repair, names", REPAIRS.values(), ids=REPAIRS)
def test_a_repair_ends_with_its_context_however_that_ends(repair, names):
    before = [vars(owner)[name] for owner, name in names]
    with pytest.raises(SystemExit), repair():
        assert not any(vars(owner)[name] is known for (owner, name), known in zip(names, before))
        raise SystemExit(1)
    assert all(vars(owner)[name] is known for (owner, name), known in zip(names, before))


def test_a_name_that_this_paddle_has_not_is_told():
    with pytest.raises(AttributeError, match="Pod has no exit_status"), replaced(Pod, "exit_status", None):
        pytest.fail("nothing was replaced")


@pytest.mark.parametrize(
    "is_initialized, is_cpu, lies_on_cpu", [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_variable_keeps_to_its_own_place(is_initialized, is_cpu, lies_on_cpu):
    """On a GPU the powers of AdamW's betas lie in the CPU's memory; what was never set lies nowhere."""
    place = SimpleNamespace(is_cpu_place=lambda: is_cpu)
    variable = SimpleNamespace(_is_initialized=lambda: is_initialized, _place=lambda: place)
    found = place_of(variable, "gpu")
    assert (str(found) == str(paddle.CPUPlace())) is lies_on_cpu and (found == "gpu") is not lies_on_cpu


def test_a_loss_scale_on_a_cpu_leaves_the_tracer_as_it_was():
    tracer = grad_scaler._dygraph_tracer
    scale = AnyDeviceGradScaler(init_loss_scaling=8.0, decr_every_n_nan_or_inf=1)
    assert grad_scaler._dygraph_tracer is tracer
    assert scale.scale(paddle.to_tensor(2.0)).item() == 16.0
    scale.judge(False)
    assert scale.value == 4.0
