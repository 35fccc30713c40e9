"""The arrows of the package, checked from the source; nothing is imported or run."""

import ast
import sys
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "data_tools": {"data_tools"},
    "ernie_pair": {"data_tools", "ernie_pair"},
    "ernie_pair/pair": {"data_tools", "ernie_pair", "ernie_pair.pair"},
    "ernie_pair/pretrain": {"data_tools", "ernie_pair", "ernie_pair.pretrain"},
    "ernie_pair/serve": {"data_tools", "ernie_pair", "ernie_pair.serve"},
}
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
    parts = module.split(".")
    return ".".join(parts[:2]) if "/".join(parts[:2]) in MAY_IMPORT else parts[0]


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_imports_point_downward(folder):
    for path in sources(folder):
        ours = {
            layer_of(module) for module in imports_of(path) if module.startswith(("data_tools", "ernie_pair"))
        }
        upward = ours - MAY_IMPORT[folder]
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
    assert path.stem == "__init__" or find_spec(path.stem) is None


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
    from ernie_pair.pair.audit import AuditPairsConfig
    from ernie_pair.pair.compare import CompareConfig
    from ernie_pair.pair.config import EvaluateConfig, PredictConfig, TrainConfig
    from ernie_pair.pair.export import ExportConfig
    from ernie_pair.pair.launch_config import LaunchConfig
    from ernie_pair.pair.launch_questions import QuestionsConfig
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
    for folder in MAY_IMPORT:
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
