"""A training that dies after a step, as if it was killed."""

from contextlib import contextmanager
from unittest.mock import patch

import pytest

from ernie_pair.training.job import TaskJob


class Killed(BaseException):
    """None of our code catches it."""


@contextmanager
def killed_after(step):
    """A training in the dynamic graph that is started inside dies once it has taken ``step``."""
    step_of = TaskJob.step

    def until_killed(job, batches, number, stop):
        if number > step:
            raise Killed
        return step_of(job, batches, number, stop)

    with patch.object(TaskJob, "step", until_killed), pytest.raises(Killed):
        yield
