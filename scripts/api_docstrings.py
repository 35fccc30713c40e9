"""Docstrings as the API page of mkdocs shows them: options with their help, examples as code."""

import ast
import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^>>> .*(?:\n(?!\s*$).*)*)", re.M)


class ApiDocstrings(griffe.Extension):
    """Document each option by its help, and fence each example of a docstring."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Put the examples of a docstring between fences."""
        if obj.docstring and ">>> " in obj.docstring.value:
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Give an attribute that is made by option(...) its help as docstring and its default as value."""
        value = str(attr.value or "")
        if not value.startswith("option("):
            return
        call = ast.parse(value, mode="eval").body
        assert isinstance(call, ast.Call)
        words = {word.arg: word.value for word in call.keywords}
        text = _text_of(words.get("help"))
        unit = _text_of(words.get("unit"))
        attr.docstring = griffe.Docstring(f"{text} ({unit})" if unit else text, parent=attr)
        attr.value = ast.unparse(call.args[0]) if call.args else None


def _text_of(node: Any) -> str:
    """Return the string that an expression is, or its source if it is more than a string."""
    if node is None:
        return ""
    try:
        return str(ast.literal_eval(node))
    except ValueError:
        return ast.unparse(node)
