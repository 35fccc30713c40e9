import contextlib
from itertools import count
from types import SimpleNamespace

import pytest

from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.core.errors import NumbersError, Stopped
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.training import trainer
from ernie_pair.training.schedule import Schedule
from ernie_pair.training.step_metrics import MAX_SKIPPED_IN_A_ROW
from ernie_pair.training.trainer import Trainer

NAN = float("nan")
TERM = 1 << 20


class SumJob:
    """A fake model: its 'weights' are the batches it has been given.

    ``odd``: the steps with a non-finite loss; with ``skips`` they are skipped.
    """

    def __init__(self, seen=(), odd=(), skips=False, skipped=0):
        self.seen, self.odd, self.skips, self.skipped = list(seen), odd, skips, skipped

    def step(self, batches, number, stop):
        stop.set_total(stop.local())
        is_odd = number in self.odd
        if is_odd and self.skips:
            self.skipped += 1
        else:
            self.seen += batches
        metrics = {"loss": NAN if is_odd else float(len(self.seen))}
        return {**metrics, **({"skipped_updates": self.skipped} if self.skips else {})}

    def evaluate(self, split):
        return {"loss": float(sum(self.seen))}


class ListLog:
    def __init__(self):
        self.events = []

    def tick(self, seconds, waited, work):
        pass

    def scalars(self, split, values, state):
        self.events.append((split, state.step, values["loss"]))


class Watch:
    """Records the steps, and whether the run is paused."""

    def __init__(self):
        self.steps, self.is_paused, self.has_begun = [], False, False

    def step_done(self, step):
        self.steps.append(step)

    def steps_begin(self):
        assert not self.steps
        self.has_begun = True

    @contextlib.contextmanager
    def paused(self):
        assert self.has_begun
        self.is_paused = True
        yield
        self.is_paused = False


def never():
    return False


class Signals(StopSignals):
    """Receives in step N the signals that ``heard(N)`` returns."""

    def __init__(self, heard, state):
        super().__init__()
        self.heard, self.state = heard, state

    def local(self):
        return self.heard(self.state.step + 1)


class Run(Trainer):
    """A run that records everything it did."""

    def __init__(self, max_steps, job=None, state=None, heard=lambda step: 0, enough=never, **changes):
        settings = {"logging_freq": 2, "eval_freq": 3, "checkpoint_steps": 4, "global_batch_size": 2}
        schedule = Schedule(max_steps=max_steps, **{**settings, **changes})
        flags = SimpleNamespace(output_dir="out", device="cpu")
        updates = lambda consumed: ([first, first + 1] for first in count(consumed, 2))  # noqa: E731
        super().__init__(job=job or SumJob(), updates=updates, schedule=schedule, flags=flags, fingerprint={})
        self.state = state or TrainState()
        self.log, self.watchdog, self.stop = ListLog(), Watch(), Signals(heard, self.state)
        self.saved, self.exported, self.judged, self.should_stop = [], [], [], enough

    def __call__(self):
        self.train_steps(self.updates(self.state.consumed_samples))
        return self

    def call(self, event, **about):
        getattr(self, event, lambda: None)()

    def export(self):
        self.exported.append(self.state.step)

    def on_evaluate(self, metrics):
        self.judged.append(self.state.step)

    def save(self):
        assert self.watchdog.is_paused
        self.saved.append((TrainState(**vars(self.state)), list(self.job.seen)))

    def steps(self, split):
        return [step for name, step, _ in self.log.events if name == split]


def stopped(run, match):
    with pytest.raises(Stopped, match=match) as caught:
        run()
    return caught.value.exit_code


def test_logging_evaluation_saving_and_export_occur_when_due():
    run = Run(10, export_steps=5)()
    assert run.steps("train") == [2, 4, 6, 8, 10] and run.steps("valid") == [0, 3, 6, 9, 10]
    assert [state.step for state, _ in run.saved] == [4, 8, 10] and run.exported == [5, 10]
    assert run.watchdog.steps == list(range(1, 11))


def test_the_clock_covers_data_step_and_reading_alone(monkeypatch):
    now, ticks, read = [0.0], [], trainer.MetricsBuffer.read

    def spend(seconds, then=None):
        now[0] += seconds
        return then

    run, step = Run(4), SumJob.step
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(trainer.MetricsBuffer, "read", lambda buffer: spend(1, read(buffer)))
    monkeypatch.setattr(SumJob, "step", lambda job, *about: spend(2, step(job, *about)))
    run.on_step_end = lambda: spend(100)
    run.log.tick = lambda seconds, waited, work: ticks.append((seconds, waited))
    run.train_steps(spend(0.5, [number]) for number in count())
    # Each step is read at once, and again where it is logged, evaluated or saved.
    assert ticks == [(3.5, 0.5), *[(4.5, 0.5)] * 3]


class Controlled(Run):
    """Sets its control at the end of the steps in ``asked``: {step: {name: value}}."""

    def __init__(self, *arguments, asked, **changes):
        super().__init__(*arguments, **changes)
        self.asked, self.epochs = asked, []

    def on_step_end(self):
        vars(self.control).update(self.asked.get(self.state.step, {}))

    def on_epoch_end(self):
        self.epochs.append(self.state.step)


def test_a_hook_can_request_or_suppress_the_actions_of_a_step():
    everything = dict.fromkeys(("should_log", "should_evaluate", "should_save"), True)
    nothing = dict.fromkeys(everything, False)
    run = Controlled(8, asked={1: everything, 4: nothing, 6: nothing, 8: nothing}, samples_per_epoch=7)()
    assert run.steps("train") == [1, 2] and run.steps("valid") == [0, 1, 3, 7]
    assert [state.step for state, _ in run.saved] == [1, 8]  # the last step is always saved
    assert run.epochs == [4, 7]


def test_an_evaluation_requested_at_a_stop_runs_on_resume():
    def heard(step):
        return TERM if step == 5 else 0

    asked = {5: {"should_evaluate": True}}
    run = Controlled(10, asked=asked, heard=heard)
    stopped(run, "after step 5")
    (state, seen) = run.saved[-1]
    assert state.evaluation_pending and run.judged == [0, 3]
    again = Controlled(10, SumJob(seen), TrainState(**vars(state)), asked=asked)()
    assert again.judged == [5, 6, 9, 10]


def test_a_training_line_holds_means_since_the_previous_line():
    """SumJob's loss of step n is 2 n."""
    run = Run(5, logging_freq=2)()
    assert [loss for split, _, loss in run.log.events if split == "train"] == [3.0, 7.0, 10.0]
    assert run.state.window == {}


def test_a_skipped_step_is_excluded_from_the_means():
    run = Run(4, SumJob(odd=[2], skips=True), logging_freq=4)()
    assert run.log.events[-2][:2] == ("train", 4) and run.log.events[-2][2] == (2 + 4 + 6) / 3


def test_a_resumed_run_sees_the_same_batches_as_a_whole_run():
    whole = Run(10)()
    state, seen = Run(6)().saved[0]
    rest = Run(10, SumJob(seen), TrainState(**vars(state)))()
    assert rest.job.seen == whole.job.seen
    assert [event for event in whole.log.events if event[1] > state.step] == rest.log.events


@pytest.mark.parametrize("step", range(1, 10))
def test_a_stopped_run_saves_and_resumes_as_if_never_stopped(step):
    whole, first = Run(10, export_steps=5)(), Run(10, export_steps=5, heard=lambda now: TERM * (now == step))
    assert stopped(first, f"stopped by SIGTERM after step {step}, saved; run the same command") == 143
    state, seen = first.saved[-1]
    assert state.step == step and len({state.step for state, _ in first.saved}) == len(first.saved)
    second = Run(10, SumJob(seen), state, export_steps=5)()
    assert second.job.seen == whole.job.seen
    events, owed = [*first.log.events, *second.log.events], whole.log.events
    assert sorted(events) == sorted(owed)
    assert first.judged + second.judged == whole.judged
    assert first.exported + second.exported == whole.exported
    assert not second.state.evaluation_pending


def test_a_stop_in_the_last_step_has_no_effect():
    run = Run(4, heard=lambda now: TERM * (now == 4))()
    assert run.steps("valid") == [0, 3, 4] and run.saved[-1][0] == TrainState(4, 8)


@pytest.mark.parametrize(
    "heard, name, code",
    [(1, "SIGINT", 130), (3, "SIGINT", 130), (1 << 10, "SIGHUP", 143), (5 * TERM + 7, "SIGTERM", 143)],
)
def test_the_signal_is_decoded_from_the_sum_over_ranks(heard, name, code):
    assert stopped(Run(10, heard=lambda now: heard), f"stopped by {name} after step 1") == code


def test_nothing_is_saved_or_exported_from_a_non_finite_loss():
    run = Run(10, SumJob(odd=[4]), checkpoint_steps=1, eval_freq=1, export_steps=1)
    with pytest.raises(NumbersError, match=r"step 4 \(samples 6 to 7\) is nan"):
        run()
    assert [state.step for state, _ in run.saved] == [1, 2, 3] == run.exported
    assert run.judged == [0, 1, 2, 3]


def test_a_skipped_update_is_counted_and_the_run_continues():
    run = Run(10, SumJob(odd=[4, 7], skips=True))()
    assert run.state == TrainState(10, 20, skipped_updates=2) and len(run.job.seen) == 16
    again = Run(12, SumJob(odd=[12], skips=True, skipped=2), TrainState(**vars(run.state)))()
    assert again.state.skipped_updates == 3


def test_too_many_skips_in_a_row_end_the_run():
    odd = range(3, 200)
    run = Run(200, SumJob(odd=odd, skips=True))
    with pytest.raises(NumbersError, match="50 steps in a row were skipped, up to 52"):
        run()
    scattered = [step for step in range(1, 200) if step % MAX_SKIPPED_IN_A_ROW]
    assert Run(200, SumJob(odd=scattered, skips=True))().state.step == 200


class Ending(Run):
    """Ends early, once it has taken ``last`` steps."""

    def __init__(self, *arguments, last):
        super().__init__(*arguments, enough=lambda: self.state.step >= last)


@pytest.mark.parametrize("step", [3, 5, 8, 10])
def test_an_early_stop_completes_everything_due_first(step):
    whole, run = Run(10)(), Ending(10, last=step)()
    state, seen = run.saved[-1]
    assert run.state.step == state.step == step and len(seen) == 2 * step
    assert run.log.events == [event for event in whole.log.events if event[1] <= step]
    assert run.judged == [judged for judged in whole.judged if judged <= step]
    assert run.judged[0] == 0
    assert len({state.step for state, _ in run.saved}) == len(run.saved)
    again = Ending(10, SumJob(seen), TrainState(**vars(state)), last=step)()
    assert again.job.seen == seen and not again.log.events and not again.saved
    more = Run(10, SumJob(seen), TrainState(**vars(state)))()
    assert more.job.seen == whole.job.seen


def test_a_pending_evaluation_can_trigger_an_early_stop():
    run = Run(10, heard=lambda now: TERM * (now == 3))
    stopped(run, "after step 3")
    state, seen = run.saved[-1]
    again = Run(10, SumJob(seen), state, enough=lambda: not state.evaluation_pending)()
    assert again.judged == [3] and again.job.seen == seen and not again.saved


def test_without_validation_data_only_evaluation_is_omitted():
    whole, run = Run(10, export_steps=5)(), Run(10, export_steps=5, has_validation=False)()
    assert run.log.events == [event for event in whole.log.events if event[0] == "train"]
    assert run.job.seen == whole.job.seen and run.exported == whole.exported
    assert run.judged == whole.judged and [s.step for s, _ in run.saved] == [s.step for s, _ in whole.saved]
