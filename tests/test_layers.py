"""The arrows of the package, checked from the source; nothing is imported or run."""

import ast
import sys
import sysconfig
from dataclasses import fields
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BELOW = {
    "data_tools": (),
    "ernie_pair": ("data_tools",),
    "ernie_pair/pretrain": ("ernie_pair",),
    "ernie_pair/serve": ("ernie_pair",),
    "ernie_pair/pair/data": ("ernie_pair",),
    "ernie_pair/pair/audit": ("ernie_pair/pair/data",),
    "ernie_pair/pair": ("ernie_pair/pair/data", "ernie_pair/pair/audit"),
    "ernie_pair/pair/evaluation": ("ernie_pair/pair",),
    "ernie_pair/pair/compare": ("ernie_pair/pair/evaluation",),
    "ernie_pair/pair/export": ("ernie_pair/pair",),
    "ernie_pair/pair/launch": ("ernie_pair/pair",),
}
TOP_FOLDERS = ("data_tools", "ernie_pair")
TOP = {"__main__.py"}  # stands above the layers, as scripts/ does
NO_PADDLE = (
    *("loop.py", "schedule.py", "world.py", "weights.py", "runlog.py", "cpu_math.py"),
    *("checkpoint.py", "checkpoint_folder.py", "manifest.py", "together.py", "signals.py", "watchdog.py"),
    *("pair_rows.py", "pair_scores.py", "temperature.py", "shipped_model.py", "backends.py", "predictor.py"),
    *("notebook.py", "notebook_rank.py", "notebook_ranks.py", "__init__.py"),
)

# Flags whose type is the whole check, or that are handed on together by asdict().
CHECKED_ONLY = {"tokenizer_name", "data_format", "hidden_act"}


def sources(folder):
    return [path for path in sorted((ROOT / folder).glob("*.py")) if path.name not in TOP]


def imports_of(path, top_level_only=False):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: write absolute imports"
            yield node.module


def layer_of(module):
    """The folder that it lies in, or is."""
    path = module.replace(".", "/")
    return max((folder for folder in BELOW if f"{path}/".startswith(f"{folder}/")), key=len)


def may_import(folder):
    return {folder}.union(*(may_import(lower) for lower in BELOW[folder]))


def test_every_folder_has_its_layer():
    found = {
        str(path.parent.relative_to(ROOT)) for name in TOP_FOLDERS for path in (ROOT / name).rglob("*.py")
    }
    assert found == set(BELOW)


@pytest.mark.parametrize("folder", BELOW)
def test_imports_point_downward(folder):
    for path in sources(folder):
        ours = {
            layer_of(module) for module in imports_of(path) if module.startswith(("data_tools", "ernie_pair"))
        }
        upward = ours - may_import(folder)
        assert not upward, f"{path.relative_to(ROOT)} imports {sorted(upward)}"


@pytest.mark.parametrize("path", sources("data_tools"), ids=lambda path: path.name)
def test_data_tools_never_need_paddle_to_be_imported(path):
    assert not [module for module in imports_of(path, top_level_only=True) if module.startswith("paddle")]


@pytest.mark.parametrize("name", NO_PADDLE)
def test_the_framework_free_layer_never_imports_paddle(name):
    assert not [module for module in imports_of(ROOT / "ernie_pair" / name) if module.startswith("paddle")]


@pytest.mark.parametrize("path", sources("data_tools"), ids=lambda path: path.stem)
def test_no_data_tool_shadows_an_installed_module(path):
    """`python data_tools/x.py` puts data_tools/ first on sys.path."""
    assert path.stem == "__init__" or path.stem not in getattr(
        sys, "stdlib_module_names", sys.builtin_module_names
    )
    installed = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    assert path.stem == "__init__" or PathFinder.find_spec(path.stem, installed) is None


def configs():
    from data_tools.audit_text import AuditConfig
    from data_tools.build_vocab import VocabConfig
    from data_tools.create_pretraining_data import CreateConfig
    from data_tools.make_sample import SampleConfig
    from data_tools.prepare import PrepareConfig
    from data_tools.trans_to_json import TransConfig
    from ernie_pair.doctor import DoctorConfig
    from ernie_pair.inspect_data import InspectConfig
    from ernie_pair.new_model import NewModelConfig
    from ernie_pair.pair.audit.audit_pairs import AuditPairsConfig
    from ernie_pair.pair.compare.compare_starts import CompareConfig
    from ernie_pair.pair.config import EvaluateConfig, PredictConfig, TrainConfig
    from ernie_pair.pair.export.export_pair import ExportConfig
    from ernie_pair.pair.launch.launch_config import LaunchConfig
    from ernie_pair.pair.launch.launch_questions import QuestionsConfig
    from ernie_pair.pair.run_shipped import RunConfig
    from ernie_pair.pretrain.config import PretrainConfig
    from ernie_pair.pretrain.convert import ConvertConfig
    from ernie_pair.serve.run import ServeConfig

    return [
        *(VocabConfig, CreateConfig, SampleConfig, TransConfig, DoctorConfig, NewModelConfig),
        *(AuditConfig, AuditPairsConfig, PrepareConfig, InspectConfig),
        *(CompareConfig, EvaluateConfig, PredictConfig, TrainConfig, PretrainConfig, ConvertConfig),
        *(ExportConfig, RunConfig, ServeConfig, LaunchConfig, QuestionsConfig),
    ]


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
    read = attributes_read()
    unread = {f.name for config in configs() for f in fields(config)} - read
    assert unread <= CHECKED_ONLY
