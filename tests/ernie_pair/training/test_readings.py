"""Metrics that are read late, and the means of a training line: all is as if each step was read at once."""

from pathlib import Path

import pytest
from test_loop import TERM, Run, SumJob, stopped

from ernie_pair.checkpoint.manifest import TrainState, parse_state, state_bytes
from ernie_pair.core.errors import NumbersError
from ernie_pair.training.step_metrics import DeferredMetrics, add_step, window_means


class LateJob(SumJob):
    """A SumJob whose metrics are read together; the ranks exchange signals at the same time."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.waiting, self.reads = [], []

    def step(self, batches, number, stop):
        self.stop = stop
        now = stop.requested
        values = super().step(batches, number, _Deaf())
        assert stop.requested == now
        self.waiting.append((DeferredMetrics(self.read), values, number, stop.local()))
        return self.waiting[-1][0]

    def read(self):
        self.reads.append([number for _, _, number, _ in self.waiting])
        self.stop.set_total(max(heard for _, _, _, heard in self.waiting))
        for metrics, values, _, _ in self.waiting:
            metrics.set(values)
        self.waiting = []


class _Deaf:
    def local(self):
        return 0

    def set_total(self, total):
        pass


def test_metrics_are_read_when_something_is_due():
    run = Run(10, LateJob(), logging_freq=4, eval_freq=6, checkpoint_steps=9, sync_freq=0)()
    assert run.job.reads == [[1, 2, 3, 4], [5, 6], [7, 8], [9], [10]]


@pytest.mark.parametrize("sync_freq, reads", [(1, 12), (5, 3), (0, 1)])
def test_sync_freq_only_changes_how_often_metrics_are_read(sync_freq, reads):
    rare = {"logging_freq": 12, "eval_freq": 12, "checkpoint_steps": 12}
    whole, late = Run(12, **rare)(), Run(12, LateJob(), **rare, sync_freq=sync_freq)()
    assert len(late.job.reads) == reads and late.job.seen == whole.job.seen
    assert late.log.events == whole.log.events and late.saved == whole.saved


@pytest.mark.parametrize("step", [1, 3, 4, 7])
def test_a_run_resumed_between_reads_logs_the_same_lines(step):
    settings = {"logging_freq": 5, "eval_freq": 6, "checkpoint_steps": 100}
    whole = Run(10, **settings)()
    first = Run(10, LateJob(), **{**settings, "checkpoint_steps": step}, sync_freq=0)()
    state, seen = first.saved[0]
    assert state.step == step
    rest = Run(10, LateJob(seen), TrainState(**vars(state)), **settings, sync_freq=0)()
    assert rest.log.events == [event for event in whole.log.events if event[1] > step]


def test_metrics_are_read_before_an_action_a_hook_requests():
    class Asking(Run):
        def on_step_end(self):
            self.control.should_log = self.state.step == 3
            self.control.should_save = self.state.step == 5

    rare = {"logging_freq": 0, "eval_freq": 0, "checkpoint_steps": 0}
    run = Asking(7, LateJob(), **rare, sync_freq=0)()
    assert run.job.reads == [[1, 2, 3], [4, 5], [6, 7]]
    assert [event[1:] for event in run.log.events if event[0] == "train"] == [(3, (2 + 4 + 6) / 3)]
    assert run.saved[0][0].window == {"loss": (8.0 + 10.0, 2)}


def test_a_non_finite_loss_is_reported_with_its_own_step():
    run = Run(12, LateJob(odd=[5]), checkpoint_steps=4, logging_freq=4, eval_freq=0, sync_freq=0)
    with pytest.raises(NumbersError, match=r"step 5 \(samples 8 to 9\) is nan"):
        run()
    assert run.state.step == 8 and [state.step for state, _ in run.saved] == [4]
    assert [step for _, step, _ in run.log.events] == [0, 4]


def test_skipped_steps_are_counted_when_metrics_are_read():
    job = LateJob(odd=[2, 3], skips=True)
    run = Run(8, job, logging_freq=4, eval_freq=0, checkpoint_steps=0, sync_freq=0)()
    assert run.state.skipped_updates == 2 and len(job.reads) == 2
    assert [loss for split, _, loss in run.log.events if split == "train"] == [3.0, 9.0]


def test_a_signal_to_another_rank_stops_at_the_next_read():
    settings = {"logging_freq": 4, "eval_freq": 0, "checkpoint_steps": 100, "sync_freq": 0}
    run = Run(20, LateJob(), heard=lambda step: TERM * (step == 6), **settings)
    assert stopped(run, "after step 8, saved") == 143
    assert [state.step for state, _ in run.saved] == [8]


def test_reading_one_step_reads_all_pending_metrics():
    job = LateJob()
    first, second = (job.step([n], n, Run(1).stop) for n in (1, 2))
    assert not job.reads and first["loss"] == 1.0 and job.reads == [[1, 2]]
    assert dict(second) == {"loss": 2.0} and len(second) == 1 and job.reads == [[1, 2]]


NAN, INFINITY = float("nan"), float("inf")
STEPS = [{"loss": 0.1 * step, "accuracy": 1 / step, "learning_rate": 0.5 / step} for step in range(1, 8)]


def window_of(steps, window=None):
    window = window or {}
    for metrics in steps:
        window = add_step(window, metrics)
    return window


def test_a_window_has_means_and_the_latest_learning_rate():
    line = window_means(window_of(STEPS[:2]), STEPS[1])
    assert line == {"loss": (0.1 + 0.2) / 2, "accuracy": 0.75, "learning_rate": 0.25}
    assert list(line) == list(STEPS[1])


@pytest.mark.parametrize("cut", range(len(STEPS)))
def test_resuming_within_a_window_gives_the_same_means(cut):
    state = TrainState(cut, window=window_of(STEPS[:cut]))
    read = parse_state(state_bytes(state), Path("state.json"))
    assert read == state
    whole, resumed = window_of(STEPS), window_of(STEPS[cut:], read.window)
    assert window_means(resumed, STEPS[-1]) == window_means(whole, STEPS[-1])


def test_non_finite_values_are_left_out_if_others_exist():
    steps = [{"loss": NAN, "gradient_norm": INFINITY}, {"loss": 2.0, "gradient_norm": INFINITY}]
    assert window_means(window_of(steps), steps[-1]) == {"loss": 2.0, "gradient_norm": INFINITY}
    assert state_bytes(TrainState(2, window=window_of(steps)))


def test_the_perplexity_is_that_of_the_mean_loss():
    steps = [{"lm_loss": 0.0, "perplexity": 1.0}, {"lm_loss": 2000.0, "perplexity": 1e300}]
    assert window_means(window_of(steps[:1]), steps[0])["perplexity"] == 1.0
    assert window_means(window_of(steps), steps[1])["perplexity"] == pytest.approx(1.0142320547350045e304)
