"""The process group, which is joined once and serves every run of the process."""

import sys
from contextlib import nullcontext

import paddle
import pytest

from ernie_pair.runtime.paddle_patches.process_groups import join_processes
from ernie_pair.runtime.processes.world import World
from ernie_pair.training import process_group


@pytest.fixture
def join(monkeypatch):
    """Returns a group of two ranks with a backend; ``DataParallel`` of a model is the text "shared"."""

    def join(backend):
        for name in ("join_processes", "open_store", "skip_destructors"):
            monkeypatch.setattr(process_group, name, lambda: None)
        monkeypatch.setattr(process_group, "StoreBarrier", lambda *words: None)
        monkeypatch.setattr(process_group, "all_start", lambda world: nullcontext())
        monkeypatch.setattr(process_group, "share_weights", lambda model: None)
        monkeypatch.setattr(paddle.distributed, "get_backend", lambda: backend)
        monkeypatch.setattr(paddle, "DataParallel", lambda model: "shared")
        return process_group.ProcessGroup(World(0, 2))

    return join


@pytest.mark.parametrize("backend, shared", [("NCCL", "shared"), ("GLOO", "model")])
def test_widened_sums_of_one_run_do_not_change_the_next(join, monkeypatch, backend, shared):
    averaged = []
    monkeypatch.setattr(
        process_group, "average_gradients", lambda model, fp32_sums: averaged.append(fp32_sums)
    )
    group = join(backend)
    for fp32_sums, forward in [(False, shared), (True, "model"), (False, shared)]:
        assert group.share_gradients("model", fp32_sums) == forward
        group.average_gradients("model")
    assert averaged == ([True] if backend == "NCCL" else [False, True, False])


@pytest.mark.parametrize("backend, times", [("NCCL", 1), ("GLOO", 2)])
def test_passes_beside_the_shared_forward_are_averaged_too(join, monkeypatch, backend, times):
    averaged = []
    monkeypatch.setattr(process_group, "average_gradients", lambda model, fp32_sums: averaged.append(model))
    group = join(backend)
    group.share_gradients("model")
    group.average_gradients("model")
    group.average_gradients("model", of_forward=False)
    assert averaged == ["model"] * times


def test_joining_writes_no_log_and_lists_no_flags_of_paddle(tmp_path, monkeypatch, capfd):
    def init():
        paddle.distributed.parallel._print_modified_flags(
            [{"name": "FLAGS_x", "current_value": 1, "default_value": 2}]
        )

    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "paddle.distributed.fleet.utils.http_server", raising=False)
    monkeypatch.setattr(paddle.distributed, "init_parallel_env", init)
    join_processes()
    assert not list(tmp_path.iterdir()) and capfd.readouterr() == ("", "")
