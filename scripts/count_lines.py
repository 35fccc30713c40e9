"""Count what the house is made of, beside its limits: python scripts/count_lines.py

Exit code 1: a limit is passed. Limits only fall. A tiny run is traced, in the environment of the tests.
"""

import ast
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("data_tools", "ernie_pair")
OPTIONS = "ernie_pair/core/cli/"  # which flags there are is known there
KERNELS = "ernie_pair/kernels/library.py"  # the first call into it from a model is its first layer
LIMITS = {  # what is counted: at most, aim
    "lines of data_tools and ernie_pair": (67_092, 42_000),
    "lines of scripts": (5_727, 3_500),
    "lines of tests": (64_036, 36_000),
    "files of the package": (294, 200),
    "lists of flag names outside options": (0, 0),
    "flags, distinct": (315, 200),
    "flags of train": (79, 50),
    "files on the stack to the first layer": (9, 5),
    "functions run before the first layer": (1_268, 400),
    "% of the package that `train` loads": (40, 25),
    "lines of JSON and CSV": (1_647, 1_500),
    "KB of the changelog": (5, 6),
}
TRAIN = """train --model_name_or_path model --model_type ernie --from_scratch true --train_file train.tsv
--dev_file train.tsv --output_dir out --max_steps 1 --batch_size 4 --device cpu"""
MODEL = {
    "vocab_size": 6, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 32, "max_position_embeddings": 128, "type_vocab_size": 2,
}  # fmt: skip
WORDS = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "a")


def files_in(*patterns: str) -> list[Path]:
    """Return the files of ``patterns`` that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *patterns]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def lines_in(*patterns: str) -> int:
    return sum(path.read_bytes().count(b"\n") for path in files_in(*patterns))


def counts() -> dict[str, int]:
    """Return the number of each of LIMITS today."""
    from dataclasses import fields

    from ernie_pair.commands import COMMANDS, config_class_of

    flags = {name: {item.name for item in fields(config_class_of(each))} for name, each in COMMANDS.items()}
    distinct = set().union(*flags.values())
    package = [path for folder in PACKAGES for path in files_in(f"{folder}/*.py")]
    lists = [one for path in package for one in flag_lists_in(path, distinct)]
    with ThreadPoolExecutor() as pool:
        (files, functions), modules = pool.map(_answer_of, ("trace", "loaded"))
    numbers = [
        lines_in("data_tools/*.py", "ernie_pair/*.py"), lines_in("scripts/*.py"), lines_in("tests/*.py"),
        len(package), len(lists), len(distinct), len(flags["train"]), files, functions,
        round(100 * modules / len(package)), lines_in("*.json", "*.jsonl", "*.csv"),
        -(-(ROOT / "CHANGELOG.md").stat().st_size // 1024),
    ]  # fmt: skip
    return dict(zip(LIMITS, numbers))


def flag_lists_in(path: Path, flags: set[str]) -> Iterator[str]:
    """Yield the constants of a module whose items, two or more, are names of flags alone, outside options.

    They say a fact about flags that belongs to their declaration. A mapping of flags to plain values is the
    command line of one run, as of a benchmark, and is not counted.
    """
    if OPTIONS in path.as_posix():
        return
    for node in ast.parse(path.read_bytes()).body:
        value = getattr(node, "value", None) if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        if isinstance(value, ast.Call) and value.args:  # frozenset((...))
            value = value.args[0]
        if isinstance(value, ast.Dict) and not any(map(_refers, value.values)):
            continue
        items = getattr(value, "keys", None) or getattr(value, "elts", [])
        words = [item.value for item in items if isinstance(item, ast.Constant)]
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):  # "...".split()
            words = str(getattr(value.func.value, "value", "")).split()
        if len(words) > 1 and len(words) >= len(items) and flags.issuperset(words):
            yield f"{path.relative_to(ROOT)}:{node.lineno}"


def _refers(value: ast.expr) -> bool:
    """Return whether a value names something, or is made of several."""
    return any(isinstance(node, (ast.Name, ast.Attribute, ast.Tuple)) for node in ast.walk(value))


def _answer_of(question: str) -> Any:
    """Return what this file answers as a program of its own, which has loaded nothing."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, question]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        sys.exit(f"error: {question}: {reason}; use the Python of the tests, as sh scripts/lint.sh makes it")
    return json.loads(lines[-1])


def loaded() -> int:
    """Return how many modules of the package are loaded with that of `train`."""
    from ernie_pair.commands import COMMANDS, function_of

    function_of(COMMANDS["train"])
    return sum(name.split(".")[0] in PACKAGES for name in sys.modules)


def trace() -> None:
    """Train a tiny model until its first layer; print the package's files on the stack, and functions run."""
    from ernie_pair.__main__ import main

    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps(MODEL))
    Path("model/vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
    Path("train.tsv").write_text("a\taa\t0\naa\ta\t1\n" * 4)
    inside = tuple(f"{ROOT / folder}/" for folder in PACKAGES)
    run = set()

    def on_call(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(inside):
            run.add(code)
            if code.co_filename.endswith(KERNELS):
                stack = [frame.f_code for frame, _ in traceback.walk_stack(frame)]
                if any(each.co_name == "forward" for each in stack):
                    files = {each.co_filename for each in stack if each.co_filename.startswith(inside)}
                    print(json.dumps([len(files), len(run)]), flush=True)
                    os._exit(0)

    sys.argv = ["ernie-pair", *TRAIN.split()]
    sys.setprofile(on_call)
    main()


def main() -> None:
    now = counts()
    print(f"{'what':<42}{'today':>8}{'at most':>10}{'aim':>8}")
    for name, (most, aim) in LIMITS.items():
        print(f"{name:<42}{now[name]:>8,}{most:>10,}{aim:>8,}{'   too many' if now[name] > most else ''}")
    sys.exit(any(now[name] > most for name, (most, _) in LIMITS.items()))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    if sys.argv[1:] == ["loaded"]:
        print(loaded())
    elif sys.argv[1:] == ["trace"]:
        trace()
    else:
        main()
