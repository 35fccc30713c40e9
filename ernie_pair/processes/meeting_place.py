"""A barrier for the processes of a run, without a time limit.

gloo gives up on a process that is 30 seconds late, and rank 0 may well be: it writes the checkpoints. So the
waiting is done at the store at which they have met before, and gloo meets those who are there.
"""

import time

POLL_SECONDS = 0.02


class MeetingPlace:
    """A key of ``store`` for every meeting of ``size`` processes; ``name`` tells its keys from others'.

    ``store.add(key, number)`` returns the sum so far of what all processes have added to ``key``.
    """

    def __init__(self, store, size: int, name: str):
        self._store, self._size, self._name = store, size, name
        self._meetings = 0

    def wait_for_all(self) -> None:
        """Wait until every process has come as often as this one."""
        self._meetings += 1
        key = f"ernie_pair/{self._name}/{self._meetings}"
        arrived = self._store.add(key, 1)
        while arrived < self._size:
            time.sleep(POLL_SECONDS)
            arrived = self._store.add(key, 0)
