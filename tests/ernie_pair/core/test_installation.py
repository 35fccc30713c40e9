"""The pip command in error messages: right for a checkout, for a wheel, and for an install by name."""

import ast
import json
import re
import signal
import sys

import pytest
from packaging.requirements import Requirement
from places import ROOT

from ernie_pair.core import installation
from ernie_pair.core.cli.cli import MAX_MESSAGE
from ernie_pair.core.errors import InputError
from ernie_pair.core.installation import import_optional, install_command, raise_interrupt

METADATA = """Metadata-Version: 2.1
Name: ernie-pair
Version: 0.1.0
Provides-Extra: serve
Requires-Dist: numpy<2
Requires-Dist: absent_of_all>=3
Requires-Dist: absent_server<0.116,>=0.115; extra == "serve"
Requires-Dist: packaging>=1000; extra == "serve"
Requires-Dist: pytest>=1; extra == "serve"
Requires-Dist: absent_of_python_2; python_version < "3" and extra == "serve"
Requires-Dist: ernie-pair[serve]; extra == "test"
Requires-Dist: ernie-pair[test]; extra == "test"
Requires-Dist: absent_tester; extra == "test"
"""
MANY = "".join(f'Requires-Dist: absent_library_{n}==1.2.3; extra == "many"\n' for n in range(30))


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install the package as pip would, from ``url``, in a folder that is not a checkout."""
    site = tmp_path / "site"
    folder = site / "ernie_pair-0.1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(METADATA + MANY)
    (folder / "WHEEL").write_text("Wheel-Version: 1.0\nTag: cp311-cp311-linux_x86_64\n")
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    monkeypatch.setattr(installation, "_HERE", site)

    def install(**direct_url):
        if direct_url:
            (folder / "direct_url.json").write_text(json.dumps(direct_url))
        return tmp_path

    return install


def test_a_checkout_gets_an_editable_install_command(tmp_path, monkeypatch):
    here = tmp_path / "a clone"
    here.mkdir()
    (here / "pyproject.toml").write_text("")
    monkeypatch.setattr(installation, "_HERE", here)
    assert install_command("serve") == f"pip install -e '{here}[serve]'"
    monkeypatch.chdir(here)
    assert install_command("serve") == "pip install -e '.[serve]'"


def test_an_install_by_name_lists_the_missing_requirements(installed):
    installed()
    assert install_command("serve") == "pip install 'absent_server<0.116,>=0.115' 'packaging>=1000'"
    assert install_command("test").split()[2:] == [
        *("'absent_server<0.116,>=0.115'", "'packaging>=1000'", "absent_tester")
    ]
    with pytest.raises(InputError) as caught:
        import_optional("absent_server.app", "serve")
    command = "pip install 'absent_server<0.116,>=0.115' 'packaging>=1000'"
    assert caught.value.message == f"absent_server is not installed; {command}"


def test_a_library_of_several_extras_has_the_bounds_of_all(installed, tmp_path):
    installed()
    names = ("ernie-pair[serve]", "absent_server<0.115.5")
    narrow = "".join(f'Requires-Dist: {name}; extra == "old"\n' for name in names)
    path = tmp_path / "site" / "ernie_pair-0.1.0.dist-info" / "METADATA"
    path.write_text(path.read_text() + narrow)
    found = {one.name: str(one.specifier) for one in installation.requirements_of("old")}
    assert found["absent_server"] == "<0.115.5,<0.116,>=0.115" and list(found).count("packaging") == 1


@pytest.mark.parametrize("paddle", ["3.3.1", ""])
def test_a_missing_library_is_one_of_the_installed_stack(monkeypatch, paddle):
    """PaddleNLP, without what it requires, where there is a Paddle."""
    versions = {"paddlepaddle": paddle, "paddlepaddle-gpu": "", "paddlenlp": ""}
    monkeypatch.setattr(installation, "version_of", versions.get)
    for name in ("absent_of_all", "paddlenlp", "scipy"):
        monkeypatch.setitem(sys.modules, name, None)
    for name, extra in (
        ("absent_of_all", installation.extra_here()),
        ("scipy", installation.training_extra()),
    ):
        with pytest.raises(InputError, match=re.escape(install_command(extra))):
            import_optional(name)
    with pytest.raises(InputError, match=re.escape(installation.PADDLENLP_COMMAND)) as caught:
        import_optional("paddlenlp")
    assert ("[" not in caught.value.message) is bool(paddle)


def test_a_wheel_that_still_exists_is_named_in_the_command(installed, tmp_path):
    wheel = tmp_path / "ernie_pair-0.1.0-py3-none-any.whl"
    wheel.write_text("")
    installed(url=wheel.as_uri(), archive_info={})
    assert install_command("serve") == f"pip install 'ernie-pair[serve] @ {wheel.as_uri()}'"
    Requirement(f"ernie-pair[serve] @ {wheel.as_uri()}")
    wheel.unlink()
    assert install_command("serve").startswith("pip install 'absent_server")


def test_an_installed_source_folder_is_named_in_the_command(installed, tmp_path):
    installed(url=tmp_path.as_uri(), dir_info={})
    assert install_command("serve").startswith("pip install 'absent_server")
    (tmp_path / "pyproject.toml").write_text("")
    assert install_command("serve") == f"pip install '{tmp_path}[serve]'"


@pytest.mark.parametrize("direct_url, shown", [
    ({"url": "https://host/x.whl", "archive_info": {}}, "https://host/x.whl"),
    (
        {"url": "https://host/x", "vcs_info": {"vcs": "git", "commit_id": "1a2b"}},
        "git+https://host/x@1a2b",
    ),
])  # fmt: skip
def test_the_original_install_url_is_used_in_the_command(installed, direct_url, shown):
    installed(**direct_url)
    assert install_command("serve") == f"pip install 'ernie-pair[serve] @ {shown}'"


@pytest.mark.parametrize("extra", ["many", "unknown"])
def test_a_too_long_or_unknown_extra_names_the_wheel(installed, extra):
    installed()
    said = install_command(extra)
    assert said == f"pip install 'PATH/ernie_pair-*.whl[{extra}]', the wheel that this was installed from"
    assert len(said) < MAX_MESSAGE


def test_an_interrupt_during_an_import_is_no_missing_library(tmp_path, monkeypatch):
    """An extension that is interrupted ends its import with an error of its own."""
    lines = "import os, signal", "os.kill(os.getpid(), signal.SIGINT)", "raise ImportError('failed')"
    (tmp_path / "interrupted_library.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            import_optional("interrupted_library", "serve")
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_interrupt_behind_an_import_error_is_raised():
    interrupt = KeyboardInterrupt()
    try:
        raise ImportError("initialization failed") from interrupt
    except ImportError as error:
        with pytest.raises(KeyboardInterrupt):
            raise_interrupt(error)
    raise_interrupt(ImportError("no such module"))


def test_every_import_that_may_fail_asks_for_an_interrupt():
    for folder in ("data_tools", "ernie_pair"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.ExceptHandler)
                    and node.type
                    and "ImportError" in ast.unparse(node.type)
                ):
                    asks = "raise_interrupt(error)" in ast.unparse(node.body[0])
                    assert asks or path.name == "installation.py", f"{path}:{node.lineno}"
