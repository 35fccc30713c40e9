"""TensorBoard, W&B and MLflow besides VisualDL, with stand-ins for their libraries."""

import json
import math
import re
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.errors import InputError
from ernie_pair.core.installation import install_command
from ernie_pair.pairs.config.pair_config import PairConfig
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.training.run_flags import REPORTERS
from ernie_pair.training.run_log import RunLog
from ernie_pair.training.step_metrics import StepWork

NAMED = {
    PairConfig: {"output_dir": "o"},
    PretrainConfig: {"output_dir": "o", "input_dir": "i", "model_name_or_path": "m"},
}


@dataclass
class Flags:
    seed: int = 7
    text_a: str = ""
    texts: str = "长" * 501


def log_steps(folder, steps, names, resumed_at=0):
    log = RunLog(folder, TrainState(resumed_at), max_steps=9, report_to=names)
    log.configuration(Flags())
    for step in steps:
        log.tick(0.5, 0.125, StepWork(samples=8))
        log.scalars("train", {"loss": 1.0 / step, "gradient_norm": math.inf}, TrainState(step, 8 * step))
    log.scalars("valid", {"accuracy": 0.5}, TrainState(steps[-1]))
    log.close()


class FakeWriter:
    made: list = []

    def __init__(self, folder):
        self.folder, self.points, self.texts, self.is_closed = folder, [], [], False
        FakeWriter.made.append(self)

    def add_scalar(self, tag, value, step):
        self.points.append((tag, step, value))

    def add_text(self, tag, text):
        self.texts.append((tag, text))

    def close(self):
        self.is_closed = True


class FakeWandb:
    def __init__(self):
        self.started, self.logged, self.told, self.finished = [], [], {}, 0
        self.config = SimpleNamespace(update=lambda flags, allow_val_change: self.told.update(flags))

    def init(self, **settings):
        self.started.append(settings)
        return self

    def log(self, values, step):
        self.logged.append((step, dict(values)))

    def finish(self):
        self.finished += 1


class FakeMlflow:
    """Stands in for the module and for its client."""

    def __init__(self):
        self.experiments, self.runs, self.metrics, self.params, self.status = {}, [], [], [], []
        self.entities = SimpleNamespace(
            Metric=lambda *metric: metric, Param=lambda name, value: (name, value)
        )

    def MlflowClient(self):
        return self

    def get_experiment_by_name(self, name):
        return self.experiments.get(name)

    def create_experiment(self, name):
        self.experiments[name] = SimpleNamespace(experiment_id="4")
        return "4"

    def search_runs(self, experiments, words):
        assert experiments == ["4"]
        return [run for run in self.runs if f"tags.`ernie_pair.run_id` = '{run.tag}'" == words]

    def create_run(self, experiment, tags, run_name):
        info = SimpleNamespace(run_id=f"r{len(self.runs)}")
        self.runs.append(SimpleNamespace(info=info, tag=tags["ernie_pair.run_id"], name=run_name))
        return self.runs[-1]

    def log_batch(self, run_id, metrics=(), params=()):
        assert run_id == "r0"
        self.metrics += [(name, step, value) for name, value, _, step in metrics]
        self.params += params

    def set_terminated(self, run_id, status="FINISHED"):
        self.status.append(status)


@pytest.fixture
def tools(monkeypatch):
    FakeWriter.made = []
    fakes = SimpleNamespace(
        tensorboardX=SimpleNamespace(SummaryWriter=FakeWriter), wandb=FakeWandb(), mlflow=FakeMlflow()
    )
    for name, fake in vars(fakes).items():
        monkeypatch.setitem(sys.modules, name, fake)
    for name in ("WANDB_PROJECT", "WANDB_NAME", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    return fakes


def points_of(values):
    return [(name, step, value) for step, several in values for name, value in several.items()]


def losses(points):
    return [(step, value) for name, step, value in points if name == "train/loss"]


def test_every_tool_receives_what_visualdl_receives(tmp_path, tools):
    log_steps(tmp_path / "out", [1, 2], REPORTERS)
    run_id = json.loads((tmp_path / "out" / "run.json").read_text())["run_id"]
    (board,) = FakeWriter.made
    assert board.folder == str(tmp_path / "out" / "tensorboard" / run_id) and board.is_closed
    assert board.texts == [("configuration", f"seed: 7  \ntext_a:   \ntexts: {Flags.texts}")]
    (started,) = tools.wandb.started
    assert (started["id"], started["resume"], started["name"]) == (run_id, "allow", "out")
    assert (started["project"], started["dir"]) == ("ernie-pair", str(tmp_path / "out"))
    assert tools.wandb.told == vars(Flags()) and tools.wandb.finished == 1
    assert tools.mlflow.params == [("seed", "7"), ("text_a", ""), ("texts", Flags.texts[:-1])]
    assert [run.tag for run in tools.mlflow.runs] == [run_id] and tools.mlflow.status == ["FINISHED"]
    for points in (board.points, points_of(tools.wandb.logged), tools.mlflow.metrics):
        assert losses(points) == [(1, 1.0), (2, 0.5)] and ("valid/accuracy", 2, 0.5) in points
        assert {name.partition("/")[0] for name, _, _ in points} == {"train", "valid"}
        assert not [name for name, _, _ in points if "gradient_norm" in name]  # not finite


def test_a_resumed_run_continues_in_each_tool(tmp_path, tools):
    log_steps(tmp_path, [1, 2, 3], REPORTERS)
    log_steps(tmp_path, [3, 4], REPORTERS, resumed_at=2)
    assert losses(FakeWriter.made[1].points) == [(1, 1.0), (2, 0.5), (3, 1 / 3), (4, 0.25)]  # written again
    assert len({settings["id"] for settings in tools.wandb.started}) == 1
    assert losses(points_of(tools.wandb.logged))[3:] == [(3, 1 / 3), (4, 0.25)]
    assert len(tools.mlflow.runs) == 1 and tools.mlflow.status == ["FINISHED", "RUNNING", "FINISHED"]
    assert len(tools.mlflow.params) == 3 and losses(tools.mlflow.metrics)[3:] == [(3, 1 / 3), (4, 0.25)]


@pytest.mark.parametrize("failing", ["init", "log", "finish"])
def test_a_failing_tool_is_dropped_and_the_run_continues(tmp_path, tools, monkeypatch, failing, caplog):
    def fail(*args, **kwargs):
        raise ConnectionError("no\nroute to host")

    monkeypatch.setattr(FakeWandb, failing, fail)
    monkeypatch.setattr("ernie_pair.training.run_log.logger.propagate", True)
    log_steps(tmp_path, [1, 2], REPORTERS)
    said = [record.getMessage() for record in caplog.records if "report_to" in record.getMessage()]
    assert said == ["--report_to wandb: no route to host; the run continues without it"]
    assert losses(tools.mlflow.metrics) == [(1, 1.0), (2, 0.5)]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("name", REPORTERS)
def test_a_missing_library_of_a_tool_is_an_error(name, monkeypatch):
    (library,) = REPORTERS[name]
    monkeypatch.setitem(sys.modules, library, None)
    missing = re.escape(f"{library} is not installed; {install_command(name)}")
    for make in (PairConfig, PretrainConfig):
        with pytest.raises(InputError, match=missing):
            make(**NAMED[make], report_to=f"{name}")


def test_report_to_is_parsed_for_pretraining_and_pair_training(tools):
    words = ["--model_name_or_path=m", "--input_dir=d", "--output_dir=o", "--report_to=mlflow,wandb,mlflow"]
    assert parse_config(PretrainConfig, words).reporters == ("mlflow", "wandb")
    assert PairConfig("o", report_to="none").reporters == PairConfig("o").reporters == ()


def test_report_to_is_passed_on_by_pair_training(tmp_path, tools):
    from tiny_pair import train_config

    from ernie_pair.pairs.train.train_pair import train_pair

    config = train_config(tmp_path, report_to="wandb", max_steps=2, warmup_steps=1)
    train_pair(config)
    assert [step for step, _ in losses(points_of(tools.wandb.logged))] == [1, 2]
    assert (tools.wandb.told["warmup_steps"], tools.wandb.told["output_dir"]) == (1, config.output_dir)
