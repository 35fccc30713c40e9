"""How often a step of pair training reads a value back from the device, which waits for the GPU."""

from collections import Counter

import paddle
import pytest
from tiny_pair_job import resumed, run, same, tiny_job, weights

from ernie_pair.runtime.processes.stop_signals import StopSignals

LOOKS = ("numpy", "item", "tolist", "__float__", "__bool__", "__int__", "__array__")
WAYS = {
    "plain": {},
    "R-Drop": {"rdrop_alpha": 1.0},
    "FGM": {"fgm_epsilon": 0.5},
    "accumulation": {"gradient_accumulation_steps": 2, "batch_size": 8},
    "clipping": {"grad_clip": 0.1},
}


@pytest.fixture
def looks(monkeypatch):
    """Counts the reads of tensor values, by method name; nested reads count as one."""
    found, inside = Counter(), []

    def counted(name, method):
        def look(self, *arguments, **named):
            if not inside:
                found[name] += 1
            inside.append(name)
            try:
                return method(self, *arguments, **named)
            finally:
                inside.pop()

        return look

    for name in LOOKS:
        if hasattr(paddle.Tensor, name):
            monkeypatch.setattr(paddle.Tensor, name, counted(name, getattr(paddle.Tensor, name)))
    return found


def steps(tiny, first, last):
    return [
        tiny.job.step(batches, number, StopSignals())
        for number, batches in zip(range(first, last + 1), tiny.updates)
    ]


@pytest.mark.parametrize("way", WAYS)
def test_steps_read_no_values_and_reading_metrics_reads_once(folder, looks, way):
    tiny = tiny_job(folder, kernels="plain", sync_freq=100, logging_freq=3, **WAYS[way])
    steps(tiny, 1, 1)
    looks.clear()  # the first step creates the state of the optimizer
    unread = steps(tiny, 2, 7)
    assert not looks
    assert unread[0]["loss"] > 0 and looks == {"numpy": 1}
    assert [("gradient_norm" in metrics) for metrics in unread] == [False, True, False, False, True, False]
    assert looks == {"numpy": 1}


def test_on_nan_skip_reads_one_value_per_step(folder, looks):
    tiny = tiny_job(folder, kernels="plain", on_nan="skip", sync_freq=100)
    steps(tiny, 1, 1)
    looks.clear()
    steps(tiny, 2, 4)
    assert looks == {"numpy": 3}


def test_an_evaluation_copies_its_logits_once(folder, looks):
    tiny = tiny_job(folder, kernels="plain")
    assert len(tiny.job.data.dev) > 2 * tiny.job.config.batch_size
    looks.clear()
    tiny.job.evaluate("valid")
    assert looks == {"numpy": 1}


@pytest.mark.parametrize("way", WAYS)
def test_deferred_reads_change_no_metric_and_no_weight(folder, way):
    each, late = (tiny_job(folder, sync_freq=freq, **WAYS[way]) for freq in (1, 100))
    wanted, found = run(each, 5), steps(late, 1, 5)
    assert list(map(dict, found)) == list(map(dict, wanted))
    assert same(weights(each.job), weights(late.job))


def test_a_run_with_deferred_reads_resumes_bit_identically(folder, tmp_path):
    whole, half, rest = (
        tiny_job(folder, consumed=consumed, sync_freq=100, logging_freq=4) for consumed in (0, 0, 3 * 16)
    )
    wanted = list(map(dict, steps(whole, 1, 6)))
    steps(half, 1, 3)
    resumed(half.job, 3, rest, tmp_path / "out")
    assert list(map(dict, steps(rest, 4, 6))) == wanted[3:]
    assert same(weights(whole.job), weights(rest.job))
