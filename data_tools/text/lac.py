"""Segment words with LAC 2.1 of Baidu, whose network Paddle runs on the CPU."""

import os
import re
import sys
from contextlib import contextmanager
from importlib import import_module
from typing import Callable, List

from data_tools.base.errors import InputError

_SEGMENT = re.compile(r"[^\n]{1,10000}|\n")  # memory: 1 KB a character


def lac_segmenter() -> Callable[[str], List[str]]:
    """Return the segmenter of LAC: text -> its words, whose concatenation is the text.

    A line end is a word, a very long line is cut. Raises ImportError if LAC or Paddle is missing.
    The segmenter raises InputError if LAC alters the text.
    """
    os.environ.update(GLOG_minloglevel="2")  # Paddle's C++ warns of the deprecated way in which LAC starts it
    with _fluid():
        from LAC import LAC
    run = LAC(mode="seg").run

    def words_of(text: str) -> List[str]:
        words: List[str] = []
        # Line by line: given many at once, Paddle 2.6 sometimes cuts them differently, or not at all.
        for segment in _SEGMENT.findall(text):
            words += run(segment) if segment != "\n" else ["\n"]
        if "".join(words) != text:
            raise InputError("lac alters the text that it cuts; choose another --cn_seg_func")
        return words

    return words_of


@contextmanager
def _fluid():
    """Provide paddle.base in this context under its older name paddle.fluid, by which LAC imports it."""
    base = import_module("paddle.base")
    names = {"paddle.fluid": base, "paddle.fluid.core": base.core}
    sys.modules.update(names)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
