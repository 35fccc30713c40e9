"""What --help prints: the options of a command by subject, with defaults, units and an example."""

import re
import shutil
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from dataclasses import MISSING, Field, fields
from textwrap import fill
from typing import Any, List, Literal, Sequence, Tuple, Type, get_args, get_origin

from data_tools.base.options import GROUPS, Options, hints_of
from data_tools.flags.places import place_word

WIDEST = 100  # columns
_BESIDE = 32  # the column at which the meaning of a flag begins
_LONGEST_CHOICES = 40  # characters; a longer list of them is in the text instead of after the flag
_STREAMS = (("input", "stdin"), ("output", "stdout"))
_METAVARS = {bool: "true|false", int: "N", float: "NUMBER", str: "TEXT"}


def help_text(config_classes: Sequence[Type[Options]], program: str) -> str:
    """Return the help of a program, as wide as the terminal; purpose and example are the first class's."""
    items = [(item, hints_of(one)[item.name]) for one in config_classes for item in fields(one)]
    width = max(40, min(shutil.get_terminal_size().columns, WIDEST) - 2)
    example = config_classes[0].EXAMPLE
    parser = ArgumentParser(
        usage=doubled_percent(_usage(program, items, width)),
        description=_filled(config_classes[0].PURPOSE, width),
        epilog=f"example:\n  {_in_lines(f'{program} {example}', width)}" if example else None,
        formatter_class=lambda prog: RawDescriptionHelpFormatter(
            prog, max_help_position=_BESIDE, width=width
        ),
        add_help=False,
    )
    for group in GROUPS:
        of_group = [pair for pair in items if pair[0].metadata["group"] == group]
        if of_group or group == GROUPS[-1]:
            shown = parser.add_argument_group(group)
            for item, hint in sorted(of_group, key=lambda pair: _rank(pair[0])):
                _add(shown, item, hint)
    shown.add_argument(
        "--config", metavar="FILE", help="a YAML file of these flags; flags on the command line override it"
    )
    shown.add_argument("-h", "--help", action="store_true", help="show this help and exit")
    return parser.format_help()


def _usage(program: str, items: Sequence[Tuple[Field, Any]], width: int) -> str:
    """Return the usage: what is required, and that there is more."""
    needed = [(item, hint) for item, hint in items if item.default is MISSING]
    words = [item.name.upper() for item, _ in needed if item.metadata["positional"]]
    words += [
        f"--{item.name} {metavar_of(item, hint)}" for item, hint in needed if not item.metadata["positional"]
    ]
    lines, indent = [f"{program}"], " " * len("usage: ")
    for word in [*words, "[flags]"]:
        if len(indent) + len(lines[-1]) + 1 + len(word) > width:
            lines.append(" " * 4 + word)
        else:
            lines[-1] += f" {word}"
    return f"\n{indent}".join(lines)


def _filled(purpose: str, width: int) -> str:
    return "\n\n".join(fill(" ".join(part.split()), width) for part in purpose.split("\n\n"))


def _in_lines(command: str, width: int) -> str:
    """Return a command broken before flags into continuation lines of a shell."""
    lines: List[str] = [""]
    for part in re.split(r" (?=--)", command):
        if lines[-1] and len(lines[-1]) + len(part) + 5 > width:
            lines.append("    ")
        lines[-1] += part if not lines[-1].strip() else f" {part}"
    return " \\\n  ".join(lines)


def _rank(item: Field) -> int:
    """Rank required options first."""
    return 0 if item.metadata["positional"] else 1 if item.default is MISSING else 2


def _add(group, item: Field, hint) -> None:
    more = _choices_in_words(item, hint) + _streams_of(item)
    text = doubled_percent(f"{item.metadata['help']}{more} ({_default_of(item)})")
    if item.metadata["positional"]:
        group.add_argument(item.name, metavar=item.name.upper(), help=text)
    else:
        words = item.metadata["values"]
        metavar = metavar_of(item, hint) if words == 1 else ("TEXT",) * words
        group.add_argument(f"--{item.name}", metavar=metavar, nargs=words if words > 1 else None, help=text)


def _default_of(item: Field) -> str:
    """Return the unit and the default of an option, in words."""
    if item.default is MISSING:
        return f"required, or --{item.metadata['unless']}" if item.metadata["unless"] else "required"
    unit = f"{item.metadata['unit']}, " if item.metadata["unit"] else ""
    named = {None: "none", "": "empty", True: "true", False: "false"}
    is_named = item.default is None or isinstance(item.default, (str, bool))
    return f"{unit}default: {named.get(item.default, item.default) if is_named else item.default}"


def metavar_of(item: Field, hint) -> str:
    """Return the placeholder for the value of an option: N, FILE, or its choices if they are short."""
    kinds: List[Any] = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
    choices = choices_of(hint)
    if choices and not _is_short(choices):
        return "NAME"
    numbers = [_METAVARS[kind] for kind in kinds if kind in _METAVARS and kind is not str]
    texts = [place_word(item.name) or _METAVARS[str]] if str in kinds else []
    return "|".join([*numbers, *texts, *choices])


def choices_of(hint) -> List[str]:
    """Return the words that an option of this type takes; true and false only if the type names them."""
    if get_origin(hint) is Literal:
        return [str(word) for word in get_args(hint)]
    return [word for kind in get_args(hint) for word in choices_of(kind)]


def _is_short(choices: Sequence[str]) -> bool:
    return len("|".join(choices)) <= _LONGEST_CHOICES


def _choices_in_words(item: Field, hint) -> str:
    """Return the choices for which there is no room after the flag, unless its help names them."""
    choices = choices_of(hint)
    if not choices or _is_short(choices) or all(word in item.metadata["help"] for word in choices):
        return ""
    return f"; one of {', '.join(choices)}"


def _streams_of(item: Field) -> str:
    streams = [f"standard {one}" for one, key in _STREAMS if item.metadata[key]]
    return f"; -: {streams[0]}" if streams and "-: " not in item.metadata["help"] else ""


def doubled_percent(text: str) -> str:
    """Return a text with each % doubled: argparse expands %(prog)s and the like in usage and help."""
    return text.replace("%", "%%")
