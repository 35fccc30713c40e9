"""Remarks of other libraries that no user can do anything about, and all others."""

import os
import subprocess
import sys

import pytest
from places import ROOT

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


@pytest.mark.parametrize("program", [JIEBA, STATIC], ids=["jieba", "a static program"])
def test_a_start_shows_only_remarks_that_tell_something(program):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONWARNINGS", None)
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    shown = [line for line in done.stderr.splitlines() if "Warning" in line]
    assert len(shown) == 1 and shown[0].endswith("UserWarning: a remark of the user's own code")


def test_each_known_remark_is_seen_without_its_filter():
    """A filter that hides nothing any more is to go."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    program = f"import warnings\nwarnings.filterwarnings = lambda *a, **k: None\n{STATIC}\nimport jieba\n"
    words = [sys.executable, "-c", program]
    said = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120).stderr
    assert "pkg_resources is deprecated as an API" in said and "has been unified with elementwise_add" in said
