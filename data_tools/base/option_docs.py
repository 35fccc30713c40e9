"""The docstring of a class of options: what help() shows of each, its help, choices, unit and default."""

from dataclasses import MISSING, Field, fields
from inspect import cleandoc
from textwrap import fill
from typing import Any, Dict, List, Literal, get_args, get_origin

from data_tools.base.errors import without_flags

WIDTH = 100


class OptionDocs:
    """The ``__doc__`` of a class of options, generated from its options on access.

    ``purpose``: the docstring of the class itself. Below it are the options of the class and of its bases, by
    subject, as Python writes them: ``use_amp``, ``True``.
    """

    def __init__(self, purpose: str):
        self.purpose = cleandoc(purpose)

    def __get__(self, instance: object, owner: Any) -> str:
        groups: Dict[str, List[str]] = {}
        for item in fields(owner):
            if "group" in item.metadata:  # made by option()
                groups.setdefault(item.metadata["group"], []).append(_line_of(item))
        parts = [f"{group}\n" + "\n".join(lines) for group, lines in groups.items()]
        return "\n\n".join([part for part in (self.purpose, *parts) if part])


def _line_of(item: Field) -> str:
    choices = item.metadata["choices"] or (get_args(item.type) if get_origin(item.type) is Literal else ())
    facts = [f"one of {', '.join(choices)}"] if choices else []
    facts += [item.metadata["unit"]] if item.metadata["unit"] else []
    facts += ["required" if item.default is MISSING else f"default: {item.default!r}"]
    text = f"{item.name}: {without_flags(item.metadata['help'])} ({'; '.join(facts)})"
    return fill(text, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False)
