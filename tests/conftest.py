import logging
import os
import re
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from warm_commands import warm_environment

import ernie_pair  # noqa: F401 - before Paddle, which it sets up
from ernie_pair.launcher import ports_not_given_by_chance

# For the tests that start Paddle's launcher itself, side by side with others that open ports.
os.environ.setdefault("PORT_RANGE", ports_not_given_by_chance())

# Ray 2.60 gives a cluster a token of this user as soon as it finds one, and connects without it.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")

# A background shell ignores both, and what it starts inherits that; a handler is not inherited.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda *_: None)


def pytest_configure(config):
    """Start the programs of tests from a warm process; one folder for all workers, which inherit its name."""
    if "COLD" in os.environ:
        return
    os.fsync = lambda descriptor: None  # no test loses power but those that trace a cold process
    if "WARM_PYTHON" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="warm")
        warm = warm_environment(Path(folder.name))
        os.environ["WARM_PYTHON"] = warm.__enter__()
        config.add_cleanup(folder.cleanup)
        config.add_cleanup(lambda: warm.__exit__(None, None, None))
    sys.executable = os.environ["WARM_PYTHON"]


# Their files take longest, so they begin first: the workers end together.
LONGEST = ("recipes", "ranks", "faults")


# What the file of a test that depends on the level of the processor names: .ci/run runs these twice.
OF_A_LEVEL = re.compile("bf16|avx")


def pytest_ignore_collect(collection_path, config):
    """Import no file without such a test where these alone are asked for."""
    is_asked = config.option.markexpr.startswith("level ") and collection_path.suffix == ".py"
    return True if is_asked and not OF_A_LEVEL.search(collection_path.read_text("utf-8")) else None


def pytest_collection_modifyitems(items):
    named = {path: bool(OF_A_LEVEL.search(path.read_text("utf-8"))) for path in {item.path for item in items}}
    for item in items:
        if named[item.path]:
            item.add_marker("level")
    items.sort(key=lambda item: item.path.parent.name not in LONGEST)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Write half a character that a test has logged as its number: xdist sends reports as UTF-8."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode("utf-8")) for name, text in report.sections
    ]
    return report


@pytest.fixture
def tmp_path(tmp_path_factory):
    """A folder without the test's name in its path: messages quote it, and tests search them for words."""
    return tmp_path_factory.mktemp("t")


@pytest.fixture(scope="module")
def module_path(tmp_path_factory):
    """A folder for the tests of a module."""
    return tmp_path_factory.mktemp("m")


@pytest.fixture(scope="module")
def world(module_path):
    """A folder with a tiny model, and a corpus of it in data."""
    from tiny_pretrain import write_corpus, write_model  # by tests of pretraining alone

    write_corpus(module_path / "data", write_model(module_path / "model"))
    return module_path


@pytest.fixture(autouse=True)
def _same_signals():
    """A run that was stopped ignores signals at its end; the programs of later tests would inherit that."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before):
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _fresh_console():
    """A test that starts a run's console leaves the logger as it was for the tests after it."""
    logger = logging.getLogger("ernie_pair")
    before = logger.handlers, logger.propagate, logger.level
    logger.handlers, logger.propagate = [], True
    yield
    logger.handlers, logger.propagate = before[:2]
    logger.setLevel(before[2])
