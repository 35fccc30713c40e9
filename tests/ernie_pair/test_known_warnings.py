"""Warnings of other libraries that users can do nothing about are hidden; all others are shown."""

import pytest
from children import python

JIEBA = """
import warnings
import data_tools
import jieba
warnings.warn("a remark of the user's own code")
"""
STATIC = """
import warnings
import ernie_pair
import paddle
paddle.enable_static()
a = paddle.static.data("a", [-1, 3])
b = paddle.static.data("b", [-1, 3])
a + b
warnings.warn("a remark of the user's own code")
"""


REMARKS = (
    "Setuptools is replacing",
    "pkg_resources is deprecated as an API",
    "has been unified with elementw",
)


def run(program, *flags):
    return python(*flags, "-c", program, without=["PYTHONWARNINGS"])


@pytest.mark.parametrize("program", [JIEBA, STATIC], ids=["jieba", "a static program"])
def test_known_warnings_are_hidden_and_others_are_shown(program):
    done = run(program, "-W", "always")
    assert done.returncode == 0 and "UserWarning: a remark of the user's own code" in done.stderr
    assert not [remark for remark in REMARKS if remark in done.stderr]
    by_default = run(program).stderr
    assert [line.partition(": ")[2] for line in by_default.splitlines() if "Warning" in line] == [
        "UserWarning: a remark of the user's own code"
    ]


def test_each_known_warning_appears_without_its_filter():
    """A filter that no longer hides anything should be removed."""
    program = f"import warnings\nwarnings.filterwarnings = lambda *a, **k: None\n{STATIC}\nimport jieba\n"
    said = run(program, "-W", "always").stderr
    assert [remark for remark in REMARKS[1:] if remark not in said] == []  # the first needs another order
