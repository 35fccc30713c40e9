"""Write the flags of every command into docs/en/flags.md and docs/zh/flags.md.

python scripts/flags_table.py
"""

import re
from dataclasses import MISSING, Field, fields
from inspect import getsource
from typing import Dict, List, Literal, Type, get_args, get_origin

from readme_block import FLAGS, is_chinese, replace_block

from data_tools.options.options import GROUPS, Options, hints_of
from ernie_pair.__main__ import COMMANDS
from ernie_pair.commands import config_class_of

HEAD, CHINESE_HEAD = ("flag", "default", "what"), ("名称", "默认值", "含义")
SAME, CHINESE_SAME = "The flags of `train`, and:", "`train` 的全部参数，以及："
OF_THE_MACHINE = "gpu if there is one"
CHINESE_DEFAULTS = {
    "required": "必填",
    OF_THE_MACHINE: "有 GPU 时为 gpu",
}  # help texts name `empty` and `none`
BASE = "train"


def publish() -> None:
    """Write the tables into each page that has marks for them."""
    replace_block(FLAGS, render_flags)


def render_flags(page: str) -> str:
    """Return a heading and a table for each command; one with all flags of `train` shows only its own."""
    configs = config_of_each()
    base = {item.name: _cells(item, configs[BASE]) for item in fields(configs[BASE])}
    parts = []
    for name, config in configs.items():
        rows = {item.name: _cells(item, config) for item in _ordered(config)}
        is_longer = name != BASE and base.keys() <= rows.keys()
        if is_longer:
            rows = {key: cells for key, cells in rows.items() if cells != base.get(key)}
        intro = [CHINESE_SAME if is_chinese(page) else SAME, ""] if is_longer else []
        head, words = (CHINESE_HEAD, CHINESE_DEFAULTS) if is_chinese(page) else (HEAD, {})
        cells = [[name, words.get(default, default), what] for name, default, what in rows.values()]
        table = [_line(head), _line(["---"] * len(head)), *map(_line, cells)]
        parts.append("\n".join([f"## {name}", "", *intro, *table]))
    return "\n" + "\n\n".join(parts) + "\n"


def config_of_each() -> Dict[str, Type[Options]]:
    """Return {command as it is typed, without dashes: its class of flags}."""
    return {name.replace("--", ""): config_class_of(entry) for name, entry in COMMANDS.items()}


def _ordered(config: Type[Options]) -> List[Field]:
    """Return the flags by subject, required ones first."""
    return sorted(
        fields(config),
        key=lambda item: (GROUPS.index(item.metadata["group"]), item.default is not MISSING),
    )


def _cells(item: Field, config: Type[Options]) -> List[str]:
    """Return the name of a flag, its default, and its help, with unit and choices."""
    hint = hints_of(config)[item.name]
    kinds = [kind for kind in (hint, *get_args(hint)) if get_origin(kind) is Literal]
    choices = [str(value) for kind in kinds[:1] for value in get_args(kind)]
    name = item.name.upper() if item.metadata["positional"] else f"--{item.name}"
    what = item.metadata["help"] + (f" ({item.metadata['unit']})" if item.metadata["unit"] else "")
    what += f"; one of {', '.join(f'`{choice}`' for choice in choices)}" if choices else ""
    return [f"`{name}`", OF_THE_MACHINE if _asks_the_machine(item, config) else _default(item), what]


def _asks_the_machine(item: Field, config: Type[Options]) -> bool:
    """Return whether the default depends on the machine, which only its source tells."""
    owner = next(one for one in config.__mro__ if item.name in vars(one).get("__annotations__", {}))
    asks = rf"^    {item.name}: .*= (device_option|\w*option\(\s*default_device)\("
    return bool(re.search(asks, getsource(owner), re.M))


def _default(item: Field) -> str:
    if item.default is MISSING:
        return "required"
    named = {None: "none", True: "`true`", False: "`false`", "": "empty"}
    is_named = item.default is None or isinstance(item.default, bool) or item.default == ""
    return named[item.default] if is_named else f"`{item.default}`"


def _line(cells) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |"


if __name__ == "__main__":
    publish()
