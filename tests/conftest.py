import logging

import pytest


@pytest.fixture(autouse=True)
def _fresh_console():
    """A test that starts a run's console leaves the logger as it was for the tests after it."""
    logger = logging.getLogger("ernie_pair")
    before = logger.handlers, logger.propagate, logger.level
    logger.handlers, logger.propagate = [], True
    yield
    logger.handlers, logger.propagate = before[:2]
    logger.setLevel(before[2])
