"""The import rules of the package, checked from the source; nothing is imported or run."""

import ast
import re
import sys
import sysconfig
from dataclasses import fields
from importlib.machinery import PathFinder

import pytest
from places import ROOT

# room: the rooms whose modules it may import; what those may import is included.
BELOW = {
    "ernie_pair/core": (),
    "ernie_pair/core/files": ("ernie_pair/core",),
    "ernie_pair/core/cli": ("ernie_pair/core/files",),
    "data_tools/text": ("ernie_pair/core/cli",),
    "data_tools/audit": ("data_tools/text",),
    "data_tools/corpus": ("data_tools/text",),
    "data_tools": ("data_tools/audit", "data_tools/corpus"),
    "data_tools/samples": ("data_tools/corpus",),
    "ernie_pair/runtime/paddle_patches": ("ernie_pair/core/files",),
    "ernie_pair/runtime/processes": ("ernie_pair/core/cli",),
    "ernie_pair/runtime": ("ernie_pair/runtime/paddle_patches", "ernie_pair/runtime/processes"),
    "ernie_pair": ("ernie_pair/runtime",),
    "ernie_pair/weights": ("ernie_pair/core/files",),
    "ernie_pair/checkpoint": ("ernie_pair", "ernie_pair/weights"),
    "ernie_pair/kernels": ("ernie_pair/runtime",),
    "ernie_pair/models": ("data_tools/text", "ernie_pair/checkpoint"),
    "ernie_pair/inference": ("ernie_pair/kernels", "ernie_pair/models"),
    "ernie_pair/pairs/targets": ("ernie_pair/inference",),
    "ernie_pair/training": ("ernie_pair/models/networks",),
    "ernie_pair/report": ("ernie_pair/training",),
    "ernie_pair/pairs/data": ("ernie_pair/pairs/targets", "ernie_pair/training"),
    "ernie_pair/checks": (
        "data_tools/samples",
        "ernie_pair/pairs/data",
        "ernie_pair/pretraining/config",
        "ernie_pair/retrieval",
    ),
    "ernie_pair/models/networks": ("ernie_pair/inference",),
    "ernie_pair/embeddings": ("ernie_pair/models/networks", "ernie_pair/pairs/data"),
    "ernie_pair/pairs/audit": ("data_tools/audit", "data_tools/corpus", "ernie_pair/pairs/data"),
    "ernie_pair/pairs/robustness": ("ernie_pair/pairs/data",),
    "ernie_pair/pairs/config": ("ernie_pair/pairs/data",),
    "ernie_pair/evaluation": (
        "ernie_pair/embeddings",
        "ernie_pair/pairs/audit",
        "ernie_pair/pairs/config",
        "ernie_pair/pairs/robustness",
        "ernie_pair/report",
    ),
    "ernie_pair/deployment": ("ernie_pair/evaluation",),
    "ernie_pair/pairs/train": ("ernie_pair/deployment",),
    "ernie_pair/evaluation/embeddings": ("ernie_pair/embeddings", "ernie_pair/deployment"),
    "ernie_pair/embeddings/train": ("ernie_pair/evaluation/embeddings",),
    "ernie_pair/mining": ("ernie_pair/retrieval",),
    "ernie_pair/labelling": ("ernie_pair/service",),
    "ernie_pair/pretraining/config": (
        "data_tools/samples",
        "ernie_pair/kernels",
        "ernie_pair/models",
        "ernie_pair/training",
    ),
    "ernie_pair/pretraining/graph": ("ernie_pair/pretraining/config",),
    "ernie_pair/pretraining/convert": ("ernie_pair/pretraining/graph",),
    "ernie_pair/pretraining": ("ernie_pair/pretraining/convert",),
    "ernie_pair/pretraining/mlm": ("ernie_pair/pretraining/convert",),
    "ernie_pair/experiments": ("ernie_pair/pairs/train", "ernie_pair/pretraining/mlm"),
    "ernie_pair/launch": (
        "ernie_pair/embeddings/train",
        "ernie_pair/mining",
        "ernie_pair/pretraining",
        "ernie_pair/experiments",
    ),
    "ernie_pair/pairs": (),
    "ernie_pair/pairs/distill": ("ernie_pair/pairs/train",),
    "ernie_pair/retrieval": ("ernie_pair/embeddings", "ernie_pair/evaluation"),
    "ernie_pair/service": ("ernie_pair/retrieval",),
}
# Their paths are fixed by the recipe; these are the rooms that they belong to.
ROOM_OF = {
    "data_tools/_helpers": "ernie_pair/core/files",
    "data_tools/dataset_utils": "ernie_pair/core/files",
    "data_tools/ernie_dataset": "data_tools/samples",
}
TOP_FOLDERS = ("data_tools", "ernie_pair")
# Above all layers, like scripts/; that the second loads none of them is tested elsewhere.
TOP = {"ernie_pair/__main__.py", "ernie_pair/__init__.py", "ernie_pair/api.py"}
NO_PADDLE = """
    core checkpoint inference launch/notebook.py runtime/processes training/dry_run.py
    training/callbacks.py training/run_log.py training/schedule.py training/step_metrics.py
    training/trainer.py weights/weight_files.py runtime/cpu.py models/temperature.py __init__.py
""".split()
PATCHES = "ernie_pair/runtime/paddle_patches"
PADDLE_INSIDE = (
    "paddle.base", "paddle.framework", "paddle.distributed.launch", "paddle.amp.grad_scaler",
    "paddle.distributed.fleet.meta_optimizers", "paddle.distributed.fleet.utils.hybrid_parallel_util",
)  # fmt: skip
# Python's own: named tuples, os._exit, the pure-Python unpickler; and data_tools' compiled helpers.
KNOWN_PRIVATE = {
    "_asdict",
    "_fields",
    "_replace",
    "_exit",
    "_Unpickler",
    "_helpers",
    "_args_from_interpreter_flags",
}

# Flags that are only type-checked, or that are passed on together by asdict().
CHECKED_ONLY = {"hidden_act", "mp_degree", "pp_degree"}


def test_the_picture_of_the_rooms_shows_what_stands_above_what():
    picture = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("```text\n")[1].split("```")[0]
    lines = {}
    for number, line in enumerate(picture.splitlines()):
        for word in line[:69].split():
            if f"ernie_pair/{word}" in BELOW or word == "data_tools":
                lines.setdefault(word, number)
    rooms = {room.replace("ernie_pair/", "") for room in BELOW if room.startswith("ernie_pair/")}
    assert rooms - lines.keys() == {"pairs"}  # which holds rooms alone
    for room, below in BELOW.items():
        for each in below:
            upper, lower = (name.replace("ernie_pair/", "") for name in (room, each))
            if upper in lines and lower in lines:
                assert lines[lower] > lines[upper], (upper, lower)


def sources(folder):
    return [path for path in sorted((ROOT / folder).glob("*.py")) if str(path.relative_to(ROOT)) not in TOP]


def sources_within(name):
    path = ROOT / name
    assert path.exists()
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def imports_of(path, top_level_only=False):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: write absolute imports"
            of_top = node.module in TOP_FOLDERS
            yield from (f"{node.module}.{name.name}" if of_top else node.module for name in node.names)


def room_of(module):
    """Return the room of a module given by its dotted name; a room belongs to itself."""
    path = module.replace(".", "/")
    inside = max((room for room in BELOW if f"{path}/".startswith(f"{room}/")), key=len)
    return ROOM_OF.get(path, inside)


def may_import(room):
    return {room}.union(*(may_import(lower) for lower in BELOW[room]))


def test_every_folder_is_listed_as_a_room():
    found = {
        str(path.parent.relative_to(ROOT)) for name in TOP_FOLDERS for path in (ROOT / name).rglob("*.py")
    }
    assert found == set(BELOW)


def test_rooms_have_no_circular_imports():
    for room, lower in BELOW.items():
        assert not {room}.intersection(*(may_import(one) for one in lower)) or not lower


@pytest.mark.parametrize("room", BELOW)
def test_imports_point_downward(room):
    for path in sources(room):
        own = room_of(str(path.relative_to(ROOT).with_suffix("")).replace("/", "."))
        ours = {
            room_of(module) for module in imports_of(path) if module.startswith(("data_tools", "ernie_pair"))
        }
        upward = ours - may_import(own)
        assert not upward, f"{path.relative_to(ROOT)} imports {sorted(upward)}"


@pytest.mark.parametrize(
    "path", sources_within("data_tools"), ids=lambda path: str(path.relative_to(ROOT / "data_tools"))
)
def test_data_tools_can_be_imported_without_paddle(path):
    assert not [module for module in imports_of(path, top_level_only=True) if module.startswith("paddle")]


@pytest.mark.parametrize("name", NO_PADDLE)
def test_the_framework_free_rooms_never_import_paddle(name):
    for path in sources_within(f"ernie_pair/{name}"):
        assert not [module for module in imports_of(path) if module.startswith("paddle")], path


def private_names(path):
    """Return the private names of other code that a file uses, and the internal modules of Paddle."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if re.match("_[^_]", node.attr) and not own or ast.unparse(node) in PADDLE_INSIDE:
                yield ast.unparse(node)
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name.name}" for name in node.names]
            yield from (name for name in names if re.match(r"paddle.*\._", name))
            yield from (name for name in names if name.startswith(PADDLE_INSIDE))


@pytest.mark.parametrize("room", [room for room in BELOW if room.startswith("ernie_pair")])
def test_private_names_of_paddle_are_used_in_one_folder_only(room):
    for path in sources(room):
        found = [name for name in private_names(path) if name.rpartition(".")[2] not in KNOWN_PRIVATE]
        assert not found or room == PATCHES, f"{path}: {found}; see {PATCHES}"


@pytest.mark.parametrize("path", sources("data_tools"), ids=lambda path: path.stem)
def test_no_data_tool_shadows_an_installed_module(path):
    """`python data_tools/x.py` puts data_tools/ first on sys.path."""
    assert path.stem == "__init__" or path.stem not in getattr(
        sys, "stdlib_module_names", sys.builtin_module_names
    )
    installed = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    assert path.stem == "__init__" or PathFinder.find_spec(path.stem, installed) is None


def attributes_read():
    """Every attribute name read, and every string, anywhere outside the field declarations."""
    names = set()
    for folder in BELOW:
        for path in sources(folder):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    names.add(node.attr)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    names.update(node.value.split())
    return names


def test_every_flag_is_read_somewhere():
    from command_configs import CONFIGS

    from ernie_pair.launch.launch import LaunchConfig

    read = attributes_read()
    unread = {f.name for config in [*CONFIGS, LaunchConfig] for f in fields(config)} - read
    assert unread <= CHECKED_ONLY
