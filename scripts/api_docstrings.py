"""Docstrings as the API page of mkdocs shows them: options with their help, examples as code."""

import re
from dataclasses import MISSING
from pydoc import locate
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^>>> .*(?:\n(?!\s*$).*)*)", re.M)


class ApiDocstrings(griffe.Extension):
    """Document each option by its help, and fence each example of a docstring."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring and ">>> " in obj.docstring.value:
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        if "option(" not in str(attr.value) or not isinstance(attr.parent, griffe.Class):
            return
        item = locate(attr.parent.path).__dataclass_fields__[attr.name]
        unit = item.metadata["unit"]
        text = f"{item.metadata['help']} ({unit})" if unit else item.metadata["help"]
        attr.docstring = griffe.Docstring(text, parent=attr)
        attr.value = None if item.default is MISSING else repr(item.default)
