"""A dry run of two processes: the first one prints the plan for both, and no files are left behind."""

import pytest
import tiny_pretrain
import yaml
from package_command import command
from tiny_pair import train_config

from data_tools.files.results import read_own_config
from ernie_pair.checkpoint.run_config import CONFIG_YAML

pytestmark = pytest.mark.ranks


@pytest.fixture(autouse=True)
def cold(monkeypatch):
    """The log folder of a dry run is named by the process that `launch` becomes."""
    monkeypatch.setenv("COLD", "1")


def left_in(*folders):
    return {str(folder): sorted(map(str, folder.rglob("*"))) for folder in folders}


def plan_in(said):
    """The only plan in the output of the launcher and the processes."""
    assert said.count("made_by: ernie-pair") == 1
    return yaml.safe_load(said[said.index("# The flags of") :])["about"]["plan"]


def test_the_first_of_two_pair_processes_prints_the_plan(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    config = train_config(tmp_path, max_steps=8, dry_run=True)
    words = [f"--{name}={value}" for name, value in vars(config).items() if value not in (None, "")]
    before = left_in(tmp_path)
    done = command("launch", "train", "--processes", 2, *words)
    assert done.code == 0, done.told + done.said
    plan = plan_in(done.said)
    assert (plan["processes"], plan["samples_per_step"], plan["steps"]) == (2, 32, 8)
    assert left_in(tmp_path) == before


def test_pretraining_prints_one_plan_and_then_writes_one_config(tmp_path):
    model = tiny_pretrain.write_model(tmp_path / "model")
    data = tiny_pretrain.write_corpus(tmp_path / "data", model)
    words = tiny_pretrain.flags(model, data, tmp_path / "out", max_steps=2)
    before = left_in(tmp_path)
    done = command("launch", "pretrain", "--processes", 2, *words, "--dry_run")
    assert done.code == 0, done.told + done.said
    assert plan_in(done.said)["processes"] == 2
    assert left_in(tmp_path) == before
    done = command("launch", "pretrain", "--processes", 2, *words)
    assert done.code == 0, done.told + done.said
    assert read_own_config(tmp_path / "out" / CONFIG_YAML)["about"]["layout"]["processes"] == 2
    assert [path.name for path in (tmp_path / "out").glob("config*")] == [CONFIG_YAML]
