"""One op updates all parameters only if their settings are equal; otherwise Paddle's ops stay."""

import paddle
import pytest
from paddle import nn

from ernie_pair.pretrain.graph import optimizers as fused_updates
from ernie_pair.pretrain.graph.optimizers import OPERATOR, fuse_updates


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
    monkeypatch.setattr(fused_updates, "insert_described", lambda *given: ops.append(given))
    monkeypatch.setattr(fused_updates, "sync", lambda main: None)
    paddle.enable_static()
    yield ops
    paddle.disable_static()


def types_of(main):
    return [op.type for op in main.global_block().ops]


@pytest.mark.parametrize("clip", [None, 0.5])
def test_parameters_with_equal_settings_share_one_op(made, clip):
    main = program_of(clip=clip, apply_decay_param_fun=lambda name: "w_" in name)
    fuse_updates(main)
    ((_, _, operator, inputs, _, attributes),) = made
    assert operator == OPERATOR and "adamw" not in types_of(main)
    assert len(inputs["Parameters@VECTOR"]) == 4 and sorted(attributes["decays"]) == pytest.approx(
        [0, 0, 0.01, 0.01]
    )
    assert ("Factor@OPTIONAL" in inputs) == (clip is not None)


@pytest.mark.parametrize(
    "changes",
    [{"attributes": {"learning_rate": 0.5}}, {"attributes": {"need_clip": False}}],
    ids=["rate of its own", "not clipped"],
)
def test_parameters_with_own_settings_are_left_to_paddle(made, changes):
    main = program_of(**changes)
    before = types_of(main)
    fuse_updates(main)
    assert not made and types_of(main) == before and before.count("adamw") == 4
