from itertools import count

import pytest

from data_tools.errors import NumbersError
from ernie_pair.loop import Rhythm, TrainState, train


class SumJob:
    """A stand-in for a model: its 'weights' are what it has been fed."""

    def __init__(self, seen=(), nan_at=0):
        self.seen, self.nan_at = list(seen), nan_at

    def update(self, batches, step):
        self.seen += batches
        return {"loss": float("nan") if step == self.nan_at else float(len(self.seen))}

    def evaluate(self, split):
        return {"loss": float(sum(self.seen))}


class ListLog:
    def __init__(self):
        self.events = []

    def tick(self, seconds, samples):
        pass

    def scalars(self, split, values, state):
        self.events.append((split, state.step, values["loss"]))


def rhythm(max_steps, **changes):
    settings = {"logging_freq": 2, "eval_freq": 3, "checkpoint_steps": 4, "global_batch_size": 2, **changes}
    return Rhythm(max_steps=max_steps, **settings)


def run(max_steps, job=None, state=None, **changes):
    job, state, log, saved, exported = job or SumJob(), state or TrainState(), ListLog(), [], []
    updates = ([first, first + 1] for first in count(state.consumed_samples, 2))
    train(
        rhythm(max_steps, **changes),
        job,
        updates,
        state,
        log,
        save=lambda state: saved.append((state.step, list(job.seen))),
        export=lambda state: exported.append(state.step),
        judge=lambda state, metrics: None,
    )
    return job, log, saved, exported


def test_what_is_due_when():
    _, log, saved, exported = run(10, export_steps=5)
    steps = {split: [step for name, step, _ in log.events if name == split] for split in ("train", "valid")}
    assert steps == {"train": [2, 4, 6, 8, 10], "valid": [0, 3, 6, 9, 10]}
    assert [step for step, _ in saved] == [4, 8, 10] and exported == [5, 10]


def test_the_end_of_an_epoch_is_evaluated():
    _, log, _, _ = run(10, eval_freq=0, samples_per_epoch=7)
    assert [step for name, step, _ in log.events if name == "valid"] == [0, 4, 7, 10]


def test_a_run_cut_in_two_sees_the_same_batches_as_one_run():
    whole, log, _, _ = run(10)
    _, _, saved, _ = run(6)
    step, seen = saved[0]
    rest, rest_log, _, _ = run(10, SumJob(seen), TrainState(step, 2 * step))
    assert rest.seen == whole.seen
    assert [event for event in log.events if event[1] > step] == [
        event for event in rest_log.events if event[1] > step
    ]


def test_a_finished_run_does_nothing():
    job, log, saved, _ = run(4, SumJob([7]), TrainState(4, 8))
    assert job.seen == [7] and not log.events and not saved


def test_nothing_is_published_from_a_loss_that_is_not_finite():
    with pytest.raises(NumbersError, match="update 4 is nan"):
        run(10, SumJob(nan_at=4))
