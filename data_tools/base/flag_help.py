"""What --help prints: the options of a command by subject, with defaults, units and an example."""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from dataclasses import MISSING, Field, fields
from typing import Any, List, Literal, Sequence, Type, get_args, get_origin

from data_tools.base.options import GROUPS, Options, hints_of

_METAVARS = {bool: "true|false", int: "N", float: "NUMBER", str: "TEXT"}


def help_text(config_classes: Sequence[Type[Options]], program: str) -> str:
    """Return the help of a program; purpose and example are those of the first class."""
    items = [(item, hints_of(one)[item.name]) for one in config_classes for item in fields(one)]
    positionals = "".join(f" {item.name.upper()}" for item, _ in items if item.metadata["positional"])
    example = config_classes[0].EXAMPLE
    parser = ArgumentParser(
        usage=_escaped(f"{program}{positionals} --flag VALUE ..."),
        description=config_classes[0].PURPOSE,
        epilog=f"example:\n  {program} {example}" if example else None,
        formatter_class=_Formatter,
        add_help=False,
    )
    for group in GROUPS:
        of_group = [pair for pair in items if pair[0].metadata["group"] == group]
        if of_group or group == GROUPS[-1]:
            shown = parser.add_argument_group(group)
            for item, hint in sorted(of_group, key=lambda pair: _rank(pair[0])):
                _add(shown, item, hint)
    shown.add_argument("--config", metavar="FILE", help="a YAML file of these flags; those given here win")
    shown.add_argument("-h", "--help", action="store_true", help="show this and leave")
    return parser.format_help()


class _Formatter(RawDescriptionHelpFormatter):
    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=32)


def _rank(item: Field) -> int:
    """Put what has to be given first."""
    return 0 if item.metadata["positional"] else 1 if item.default is MISSING else 2


def _add(group, item: Field, hint) -> None:
    text = _escaped(f"{item.metadata['help']} ({_default_of(item)})")
    if item.metadata["positional"]:
        group.add_argument(item.name, metavar=item.name.upper(), help=text)
    else:
        group.add_argument(f"--{item.name}", metavar=_metavar_of(hint), help=text)


def _default_of(item: Field) -> str:
    """Return the unit and the default of an option, in words."""
    if item.default is MISSING:
        return "required"
    unit = f"{item.metadata['unit']}, " if item.metadata["unit"] else ""
    named = {None: "none", "": "empty", True: "true", False: "false"}
    is_named = item.default is None or isinstance(item.default, (str, bool))
    return f"{unit}default: {named.get(item.default, item.default) if is_named else item.default}"


def _metavar_of(hint) -> str:
    kinds: List[Any] = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
    if get_origin(hint) is Literal:
        return "|".join(map(str, kinds))
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    return "|".join([*(_METAVARS[kind] for kind in kinds if kind in _METAVARS), *words])


def _escaped(text: str) -> str:
    """Double each %: argparse fills in %(prog)s and its like in usage and help."""
    return text.replace("%", "%%")
