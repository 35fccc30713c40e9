"""What is reported and set for each version of Paddle; the installed version is faked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from data_tools.files.errors import InputError
from ernie_pair.runtime import paddle_version
from ernie_pair.runtime.gpu.builds import Build
from ernie_pair.runtime.paddle_version import (
    NEW_PROGRAMS,
    choose_programs,
    refuse_without_programs,
    why_programs_do_not_train,
)


@pytest.fixture
def installed(monkeypatch):
    """Fake the installed version of Paddle, not yet loaded and with nothing set for it."""
    monkeypatch.delenv(NEW_PROGRAMS, raising=False)
    monkeypatch.delitem(sys.modules, "paddle", raising=False)

    def install(version):
        build = Build(version, "", True, Path("/no/paddle")) if version else None
        monkeypatch.setattr(paddle_version, "installed_build", lambda: build)

    return install


@pytest.mark.parametrize(
    "version, set_to",
    [("", None), ("2.6.2", None), ("3.0.0", "0"), ("3.1.1", "0"), ("3.2.2", None), ("3.3.1", None)],
)
def test_old_programs_are_requested_only_of_paddle_3_0_and_3_1(installed, version, set_to):
    installed(version)
    choose_programs()
    assert os.environ.get(NEW_PROGRAMS) == set_to


def test_the_users_setting_for_paddle_is_kept(installed, monkeypatch):
    installed("3.1.1")
    monkeypatch.setenv(NEW_PROGRAMS, "1")
    choose_programs()
    assert os.environ[NEW_PROGRAMS] == "1"


@pytest.mark.parametrize("version", ["", "2.6.1", "2.6.2", "3.0.0", "3.1.1"])
def test_versions_with_static_programs_are_accepted(installed, version):
    installed(version)
    choose_programs()
    refuse_without_programs("pretraining")


@pytest.mark.parametrize("version", ["2.5.2", "3.2.0", "3.3.1", "3.4.0", "4.0.0"])
def test_versions_without_static_programs_are_refused(installed, version):
    installed(version)
    choose_programs()
    with pytest.raises(InputError) as caught:
        refuse_without_programs("pretraining")
    said = caught.value.message
    assert said.startswith(
        "pretraining needs the static programs of Paddle 2.6.2, 3.0 or 3.1, which " + version
    )
    assert "cpu3]" in said and "\n" not in said


@pytest.mark.parametrize("value", ["1", "true"])
def test_the_error_for_new_programs_names_their_variable(installed, monkeypatch, value):
    installed("3.1.1")
    monkeypatch.setenv(NEW_PROGRAMS, value)
    with pytest.raises(InputError, match=f"if {NEW_PROGRAMS} is 0 while it is loaded; unset that variable"):
        refuse_without_programs("the converter")


@pytest.mark.parametrize(
    "version, is_said", [("", False), ("2.6.2", False), ("3.0.0", True), ("3.1.1", True), ("3.3.1", False)]
)
def test_old_programs_of_paddle_3_do_not_train_pairs(installed, version, is_said):
    installed(version)
    choose_programs()
    said = why_programs_do_not_train()
    assert bool(said) == is_said and (not said or said.startswith(f"Paddle {version} has no backward pass"))


def test_a_paddle_that_is_already_loaded_is_queried_directly(installed, monkeypatch):
    installed("3.1.1")
    loaded = type(sys)("paddle")
    monkeypatch.setitem(sys.modules, "paddle", loaded)
    loaded.get_flags = lambda name: {name: True}
    choose_programs()  # too late
    with pytest.raises(InputError, match="import ernie_pair before paddle"):
        refuse_without_programs("pretraining")
    loaded.get_flags = lambda name: {name: False}
    refuse_without_programs("pretraining")


def test_the_package_selects_programs_before_loading_paddle():
    program = (
        "import ernie_pair, sys; from ernie_pair.runtime import paddle_version as p; assert 'paddle' not in"
        " sys.modules; import paddle; assert paddle.__version__ == p.paddle_version();"
        " p.can_pretrain(paddle.__version__) and p.refuse_without_programs('it')"
    )
    environment = {name: value for name, value in os.environ.items() if name != NEW_PROGRAMS}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
