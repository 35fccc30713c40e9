"""Write the flags of every command into docs/en/flags.md and docs/zh/flags.md.

python scripts/flags_table.py
"""

import re
from dataclasses import MISSING, Field, fields
from functools import cache
from inspect import getsource
from typing import List, Type

from readme_block import FLAGS, head_of, is_chinese, plain_rows, replace_block

from ernie_pair.commands import COMMANDS, config_class_of
from ernie_pair.core.cli.cli import help_order
from ernie_pair.core.cli.options import GROUPS, Options, hints_of, kind_of

SAME, CHINESE_SAME = "The flags of `train`, and:", "`train` 的全部参数，以及："
OF_THE_MACHINE = "gpu if there is one"
# Help texts name `empty` and `none`.
CHINESE_DEFAULTS = {"required": "必填", OF_THE_MACHINE: "有 GPU 时为 gpu"}
NAMED = {None: "none", True: "`true`", False: "`false`", "": "empty"}
BASE = "train"


def render_flags(page: str) -> str:
    """Return a heading and a table for each command; one with all flags of `train` shows only its own."""
    # Commands as they are typed, without dashes.
    configs = {name.replace("--", ""): config_class_of(entry) for name, entry in COMMANDS.items()}
    base = {item.name: _cells(item, configs[BASE]) for item in fields(configs[BASE])}
    parts = []
    for name, config in configs.items():
        # By subject, required ones first.
        ordered = sorted(
            fields(config), key=lambda item: (GROUPS.index(item.metadata["group"]), help_order(item))
        )
        rows = {item.name: _cells(item, config) for item in ordered}
        is_longer = name != BASE and base.keys() <= rows.keys()
        if is_longer:
            rows = {key: cells for key, cells in rows.items() if cells != base.get(key)}
        intro = [CHINESE_SAME if is_chinese(page) else SAME, ""] if is_longer else []
        words = CHINESE_DEFAULTS if is_chinese(page) else {}
        cells = [[flag, words.get(default, default), what] for flag, default, what in rows.values()]
        table = plain_rows(head_of(FLAGS, page), cells).replace("<", "&lt;")
        parts.append("\n".join([f"## {name}", "", *intro, table]))
    return "\n" + "\n\n".join(parts) + "\n"


def _cells(item: Field, config: Type[Options]) -> List[str]:
    """Return the name of a flag, its default, and its help, with unit and choices."""
    kind = kind_of(hints_of(config)[item.name])
    is_either = kind.base is bool and bool(kind.words)
    choices = ("true", "false", *kind.words) if is_either else kind.words
    name = item.name.upper() if item.metadata["positional"] else f"--{item.name}"
    what = item.metadata["help"] + (f" ({item.metadata['unit']})" if item.metadata["unit"] else "")
    what += f"; one of {', '.join(f'`{choice}`' for choice in choices)}" if choices else ""
    is_named = item.default is None or isinstance(item.default, bool) or item.default == ""
    default = NAMED[item.default] if is_named else f"`{item.default}`"
    # Whether it depends on the machine is known from the source alone.
    owner = next(one for one in config.__mro__ if item.name in vars(one).get("__annotations__", {}))
    if re.search(rf"^    {item.name}: .*= (\w*option\(\s*default_device)\(", _source(owner), re.M):
        default = OF_THE_MACHINE
    return [f"`{name}`", "required" if item.default is MISSING else default, what]


_source = cache(getsource)


if __name__ == "__main__":
    replace_block(FLAGS, render_flags)
