"""The faults of one line that plant_faults.py can plant in a file of Python.

A fault changes one operator, comparison, constant, axis, bound or call, or removes one statement; texts that
people read stay as they are. Own code: mutmut changes bodies of functions alone, behind wrappers that hide
signatures, cosmic-ray imports Paddle for each fault, and neither removes statements or draws a sample.
"""

import ast
import builtins
import copy
import re
from typing import Any, Iterator, List, NamedTuple, Tuple

OPERATORS = """Add Sub,Sub Add,Mult Div,Div Mult,FloorDiv Div,Mod FloorDiv,Pow Mult,BitAnd BitOr,BitOr BitAnd,
LShift RShift,RShift LShift,And Or,Or And,Lt LtE,LtE Lt,Gt GtE,GtE Gt,Eq NotEq,NotEq Eq,Is IsNot,IsNot Is,
In NotIn,NotIn In"""
OTHER = {getattr(ast, old): getattr(ast, new)() for old, new in map(str.split, OPERATORS.split(","))}
NAMES = """min max,max min,any all,all any,round int,argmin argmax,argmax argmin,minimum maximum,
maximum minimum,sum mean,mean sum,ceil floor,floor ceil,zeros ones,ones zeros"""
OTHER_NAME = dict(map(str.split, NAMES.split(",")))
OF_WORDS = ("say", "warn", "warning", "info", "Error", "option")  # calls whose arguments are read by people
WITHOUT_NAME = (type(None), ast.Constant, ast.UnaryOp)  # bounds that change as numbers do
COMMENT = re.compile(r"\s+#\s.*?(?= -> |$)")
UNCHANGED = (ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Raise, ast.Assert)


class Fault(NamedTuple):
    """A changed file; ``lines``: first and last of the statement; ``name``: the line before and after."""

    file: str
    source: bytes
    lines: Tuple[int, int]
    name: str

    @property
    def key(self) -> str:
        """Return the name without comments: what holds of it holds wherever the line stands."""
        return COMMENT.sub("", self.name)


def faults_in(file: str, source: bytes) -> List[Fault]:
    """Return every fault that can be planted in a file of Python."""
    starts, found = [0], {}
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, new, statement in _changes(ast.parse(source), None):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        changed = source[:begin] + new.encode() + source[end:]
        first, last = source.rfind(b"\n", 0, begin) + 1, source.find(b"\n", end)
        lines = source[first:last], changed[first : last + len(changed) - len(source)]
        name = " -> ".join(" ".join(text.decode().split()) for text in lines)
        body = getattr(statement, "body", None)
        stop = max(statement.lineno, body[0].lineno - 1) if body else statement.end_lineno
        found[changed] = Fault(file, changed, (statement.lineno, stop), name)
    return list(found.values())


def _changes(node: Any, statement: Any) -> Iterator[Tuple[Any, str, Any]]:
    """Yield a node, the text that takes its place, and the statement of which it is a part."""
    if isinstance(node, ast.stmt):
        statement = node
        call = node.value if isinstance(node, ast.Expr) else None
        is_call = isinstance(call, ast.Call) and not _is_of_words(call)
        is_stored = all(isinstance(target, ast.Subscript) for target in getattr(node, "targets", [node]))
        if is_call or is_stored or isinstance(node, (ast.AugAssign, ast.Raise, ast.Break, ast.Continue)):
            yield node, "pass", node
    if isinstance(node, UNCHANGED) or _is_of_words(node):
        return
    for new in _replacements(node):
        yield node, new, statement
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if name in ("annotation", "returns", "decorator_list") or not isinstance(child, ast.AST):
                continue
            if name == "test" and isinstance(child, (ast.Name, ast.Attribute, ast.Call)):
                yield child, f"not {ast.unparse(child)}", statement
            if isinstance(child, ast.keyword) and child.arg == "axis":
                yield child.value, f"1 - abs({ast.unparse(child.value)})", statement
            else:
                yield from _changes(child, statement)


def _is_of_words(node: Any) -> bool:
    functions = [node.func, *node.args[:1]] if isinstance(node, ast.Call) else []  # partial(option, ...) too
    return any(
        ast.unparse(one).endswith(OF_WORDS) for one in functions if isinstance(one, (ast.Name, ast.Attribute))
    )


def _replacements(node: Any) -> Iterator[str]:
    """Yield what may stand in the place of an expression, or of an assignment like ``a += b``."""
    other, value, kind = copy.copy(node), getattr(node, "value", None), type(getattr(node, "op", None))
    if isinstance(node, ast.UnaryOp):
        yield f"({ast.unparse(node.operand)})"
    elif kind in OTHER:
        other.op = OTHER[kind]
        parts = [getattr(node, name) for name in ("left", "right", "value") if hasattr(node, name)]
        if not any(ast.unparse(part).startswith(("'", '"', "f'", 'f"')) for part in parts):  # not of texts
            yield ast.unparse(other) if isinstance(node, ast.AugAssign) else f"({ast.unparse(other)})"
    elif isinstance(node, ast.Compare):
        for place, op in enumerate(node.ops):
            other.ops = [*node.ops[:place], OTHER[type(op)], *node.ops[place + 1 :]]
            yield ast.unparse(other)
    elif isinstance(value, bool):
        yield str(not value)
    elif isinstance(value, (int, float)):
        yield repr(value + 1 if isinstance(value, int) else value * 0.9 or 0.1)
    elif isinstance(node, ast.Slice) and not isinstance(node.upper, WITHOUT_NAME):
        other.upper = ast.BinOp(node.upper, ast.Add(), ast.Constant(1))
        yield ast.unparse(other)
    elif isinstance(node, ast.Attribute) and node.attr in OTHER_NAME:
        yield f"{ast.unparse(node.value)}.{OTHER_NAME[node.attr]}"
    elif isinstance(node, ast.Name) and hasattr(builtins, OTHER_NAME.get(node.id, "none")):
        yield OTHER_NAME[node.id]
