"""The words of LAC 2.1, Baidu's segmenter, whose network Paddle runs on the CPU."""

import os
import re
import sys
from contextlib import contextmanager
from importlib import import_module
from typing import Callable, Dict, Iterable, Iterator, List

from data_tools.errors import InputError

_AT_ONCE = 8000  # characters: LAC is quickest with so many, in lines of like length
_SEGMENT = re.compile(rf"[^\n]{{1,{_AT_ONCE}}}|\n")


def lac_segmenter() -> Callable[[str], List[str]]:
    """text -> its words, whose concatenation is the text. A line end is a word, an endless line is cut.

    Raises ImportError: LAC is not there, or Paddle is not.
    """
    os.environ.setdefault("GLOG_minloglevel", "2")  # Paddle's C++ calls LAC's way to start it outdated
    with _fluid():
        from LAC import LAC
    run = LAC(mode="seg").run

    def words_of(text: str) -> List[str]:
        segments = _SEGMENT.findall(text)
        found: Dict[str, List[str]] = {"\n": ["\n"]}
        distinct = dict.fromkeys(segment for segment in segments if segment != "\n")
        for batch in _batches(sorted(distinct, key=len)):
            found.update(zip(batch, run(batch)))
        words = [word for segment in segments for word in found[segment]]
        if "".join(words) != text:
            raise InputError("lac alters the text that it cuts; choose another --cn_seg_func")
        return words

    return words_of


def _batches(segments: Iterable[str]) -> Iterator[List[str]]:
    batch: List[str] = []
    for segment in segments:
        if batch and len(batch) * len(segment) >= _AT_ONCE:
            yield batch
            batch = []
        batch.append(segment)
    if batch:
        yield batch


@contextmanager
def _fluid():
    """LAC imports what it needs of Paddle as paddle.fluid; since Paddle 2.5 its name is paddle.base."""
    base = import_module("paddle.base")
    names = {"paddle.fluid": base, "paddle.fluid.core": base.core}
    sys.modules.update(names)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
