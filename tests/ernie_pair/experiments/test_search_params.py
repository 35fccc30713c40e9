"""Search of flags: what is searched; resumed, pruned and failed trials; the best one as a config file."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import matplotlib
import pytest
from places import ROOT
from tiny_pair import candidate_rows, write_model, write_pairs, write_rows

from ernie_pair import SearchParamsConfig, search_params
from ernie_pair.__main__ import _run as run_here
from ernie_pair.core.errors import CheckpointError, InputError, MachineError, NumbersError
from ernie_pair.core.files.atomic_folder import only_writer
from ernie_pair.experiments import search_params as module
from ernie_pair.experiments.search_params import TrialCallback, read_space
from ernie_pair.training.task import TrainResult

RATE = "learning_rate: {suggest: float, low: 1e-4, high: 2e-2, log: true}"
SPACE = f"{{{RATE}, batch_size: {{suggest: categorical, choices: [16, 32]}}}}"
FLAGS = {
    "model_type": "ernie", "from_scratch": True, "max_steps": 12, "device": "cpu", "seed": 3,
    "space": SPACE, "trials": 4, "evaluations": 3,
}  # fmt: skip

optuna = pytest.importorskip("optuna")


@pytest.fixture(autouse=True, scope="module")
def no_pictures():
    """Draw no pictures, which cost more than tiny trials, but in one test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PICTURES", ())
        patch.setattr(module, "STARTUP_TRIALS", 2)
        yield


def config_in(folder, **changes):
    return SearchParamsConfig(
        model_name_or_path=str(write_model(folder / "model")),
        train_file=str(write_pairs(folder / "train.tsv", 64, seed=0)),
        dev_file=str(write_pairs(folder / "dev.tsv", 41, seed=1)),
        output_dir=str(folder / "out"),
        **{**FLAGS, **changes},
    )


@pytest.fixture
def config(tmp_path):
    return config_in(tmp_path)


@pytest.fixture(scope="module")
def finished(no_pictures, tmp_path_factory):
    """A search of three trials that are trained: (config, study)."""
    config = config_in(tmp_path_factory.mktemp("finished"), trials=3, pruner="none", checkpoint_steps=2)
    return config, search_params(config)


class FakeRun:
    """A training run whose accuracy is computed from the learning rate."""

    made, reason = [], ""  # the flags of all runs; why each of them fails, if it does

    def __init__(self, config, callbacks):
        self.made.append(config)
        self.config, self.callback = config, callbacks[0]

    def train(self):
        from ernie_pair.training.callbacks import TrainerControl, TrainerState

        if self.reason:
            raise NumbersError(self.reason)
        config, control, value = self.config, TrainerControl(), 0.0
        folder = Path(config.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(f"learning_rate: {config.learning_rate}\n")
        for step in range(0, config.max_steps + 1, config.eval_freq):
            value = config.learning_rate * 10 + step / 1000
            state = TrainerState(global_step=step, max_steps=config.max_steps)
            metrics = {"accuracy": value}
            self.callback.on_evaluate(config, state, control, model=None, metrics=metrics)
            if control.should_training_stop:
                break
        return TrainResult(step, {}, value, None, not control.should_training_stop)


@pytest.fixture
def runs(monkeypatch):
    monkeypatch.setattr(FakeRun, "made", [])
    monkeypatch.setattr(module, "TrainingRun", FakeRun)
    return FakeRun.made


@pytest.fixture
def failing_runs(runs, monkeypatch):
    monkeypatch.setattr(FakeRun, "reason", "the loss is nan")
    return runs


def table_of(folder):
    return (folder / "trials.tsv").read_text(encoding="utf-8")


def states_of(study):
    return [trial.state.name for trial in study.trials]


def test_a_space_is_read_from_a_file_as_from_a_flag(config, tmp_path):
    text = f"{RATE}\nbatch_size:\n  suggest: categorical\n  choices: [16, 32]\n"
    (tmp_path / "space.yaml").write_text(text, encoding="utf-8")
    space = read_space(replace(config, space=str(tmp_path / "space.yaml")))
    assert space == read_space(config)
    assert space["learning_rate"] == {"suggest": "float", "low": 1e-4, "high": 2e-2, "log": True}


@pytest.mark.parametrize(
    "space, reason",
    [
        ("{}", "there is nothing to search"),
        ("none.yaml", "none.yaml"),
        ("{dropout: [0.1", "while parsing"),
        ("{dropout: 0.1}", "TypeError"),
        ("{lerning_rate: {suggest: float, low: 0, high: 1}}", "lerning_rate is not a flag to search"),
        ("{output_dir: {suggest: categorical, choices: [a, b]}}", "output_dir is not a flag to search"),
        ("{dropout: {suggest: gamma, low: 0, high: 1}}", "suggest_gamma"),
        ("{dropout: {suggest: float, low: 0.1}}", "high"),
        ("{dropout: {suggest: float, low: 0.3, high: 0.1}}", "low <= high"),
        ("{dropout: {suggest: float, low: 0, high: 0.5, by: 2}}", "by"),
        ("{learning_rate: {suggest: float, low: 0, high: 1, log: true}}", "low > 0"),
        ("{dropout: {suggest: float, low: 0, high: 1.5}}", "dropout=1.5 is not below 1"),
        ("{batch_size: {suggest: int, low: 0, high: 16}}", "batch_size=0 is below 1"),
        ("{pooling: {suggest: categorical, choices: [cls, most]}}", "pooling"),
    ],
)
def test_a_space_that_cannot_be_searched_is_refused(config, space, reason):
    with pytest.raises(InputError, match=reason):
        search_params(replace(config, space=space))
    assert not Path(config.output_dir).exists()


def test_the_best_trial_is_saved_as_a_config_file_for_train(finished, tmp_path):
    """Running `train` with the best trial's flags gives byte-identical weights."""
    config, study = finished
    out = Path(config.output_dir)
    assert states_of(study) == ["COMPLETE"] * 3
    assert all(len(trial.intermediate_values) == 3 for trial in study.trials)
    assert all(trial.value == max(trial.intermediate_values.values()) for trial in study.trials)
    run_here(["train", f"--config={out}/best.yaml", f"--output_dir={tmp_path}/again"])
    one, other = (folder / "best" / "model_state.pdparams" for folder in (out, tmp_path / "again"))
    assert one.read_bytes() == other.read_bytes()
    assert os.readlink(out / "best").startswith(f"trials/trial-{study.best_trial.number:04d}/best-")
    loaded = optuna.load_study(study_name="ernie-pair", storage=f"sqlite:///{out}/study.db")
    assert [trial.params for trial in loaded.trials] == [trial.params for trial in study.trials]


def test_the_page_has_the_pictures_of_optuna(config, runs, monkeypatch, capsys):
    before = dict(matplotlib.rcParams)
    pictures = ("optimization_history", "intermediate_values", "slice", "param_importances")
    monkeypatch.setattr(module, "PICTURES", pictures)
    study = search_params(replace(config, trials=2, pruner="none"))
    page = (Path(config.output_dir) / "search.html").read_text(encoding="utf-8")
    assert 3 <= page.count("<figure") <= 4 and "params_learning_rate" in page
    assert str(study.best_params["learning_rate"]) in page
    assert optuna.logging.get_verbosity() == optuna.logging.WARNING  # it says nothing of its trials
    assert dict(matplotlib.rcParams) == before  # which other pictures of the process are drawn with


def test_the_untrained_model_does_not_count_as_a_trial_value(config):
    """All trials share it, so none could beat another: here every learning rate only does harm."""
    space = "{learning_rate: {suggest: categorical, choices: [0.5, 1.0]}}"
    study = search_params(replace(config, trials=2, space=space, pruner="none", best_metric="loss"))
    assert all(trial.value == min(trial.intermediate_values.values()) for trial in study.trials)


def test_more_trials_continue_a_finished_search(config, runs, tmp_path):
    search_params(config)
    search_params(config)
    assert len(runs) == 4
    search_params(replace(config, trials=5))
    assert len(runs) == 5
    search_params(replace(config, trials=5, output_dir=str(tmp_path / "whole")))
    assert table_of(tmp_path / "whole") == table_of(tmp_path / "out")


@pytest.mark.parametrize("pruner, pruned", [("median", True), ("asha", True), ("none", False)])
def test_a_poor_trial_is_pruned(config, runs, pruner, pruned):
    study = search_params(replace(config, trials=10, pruner=pruner, evaluations=4))
    assert ("PRUNED" in states_of(study)) == pruned and study.best_trial.state.name == "COMPLETE"
    for trial in study.trials:
        assert len(trial.intermediate_values) == 4 or trial.state.name == "PRUNED"


def test_a_trial_is_not_pruned_at_its_last_evaluation(config, runs):
    """Pruning would save no more work there, and its value may be the best."""
    assert set(states_of(search_params(replace(config, trials=8, pruner="asha", evaluations=2)))) == {
        "COMPLETE"
    }


DIES = """
import json, os, sys
import optuna
from ernie_pair import SearchParamsConfig, search_params
from ernie_pair.experiments import search_params as module

flags, place = json.loads(sys.argv[1]), sys.argv[2]
module.PICTURES = ()
report, tell = optuna.Trial.report, optuna.Study.tell

def report_and_die(self, value, step):
    report(self, value, step)
    if place == "evaluation" and self.number == 1 and step == 2:
        os._exit(9)

def die_and_tell(self, number, *given, **more):
    if place == "end" and number == 1:
        os._exit(9)
    return tell(self, number, *given, **more)

optuna.Trial.report, optuna.Study.tell = report_and_die, die_and_tell
search_params(SearchParamsConfig(**flags))
"""


@pytest.mark.parametrize("place", ["evaluation", "end"])
def test_a_killed_search_resumes_to_the_same_trials(finished, tmp_path, place):
    """Killed during an evaluation of its second trial, or before that trial was recorded as complete."""
    whole, killed = Path(finished[0].output_dir), replace(finished[0], output_dir=str(tmp_path / "killed"))
    words = [sys.executable, "-c", DIES, json.dumps(asdict(killed)), place]
    environment = {**os.environ, "WARM": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 9, done.stderr[-1500:]
    assert table_of(tmp_path / "killed").count("\n") == 2  # the header and the first trial
    assert (tmp_path / "killed" / "trials" / "trial-0001" / "metrics.jsonl").is_file()
    search_params(killed)
    assert table_of(tmp_path / "killed") == table_of(whole)
    one, other = (folder / "best" / "model_state.pdparams" for folder in (whole, tmp_path / "killed"))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("place", ["step", "between"])
def test_a_signal_at_the_end_of_a_trial_stops_the_search(finished, tmp_path, monkeypatch, place):
    """In its last step, which saves as ever, and between two trials."""
    whole, stopped = Path(finished[0].output_dir), replace(finished[0], output_dir=str(tmp_path / "stopped"))
    evaluate, publish = TrialCallback.on_evaluate, module._Search._publish

    def at_the_last_step(callback, args, state, control, **kwargs):
        if place == "step" and state.global_step == state.max_steps:
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(callback, args, state, control, **kwargs)

    def after_a_trial(search):
        if place == "between":
            os.kill(os.getpid(), signal.SIGTERM)
        return publish(search)

    with monkeypatch.context() as patches:
        patches.setattr(TrialCallback, "on_evaluate", at_the_last_step)
        patches.setattr(module._Search, "_publish", after_a_trial)
        with pytest.raises(SystemExit) as ended:
            search_params(stopped)
    assert ended.value.code == 143
    assert not (tmp_path / "stopped" / "trials" / "trial-0001").exists()
    search_params(stopped)
    assert table_of(tmp_path / "stopped") == table_of(whole)


def test_incompatible_flags_fail_only_their_own_trial(config, runs):
    """R-Drop needs dropout: a trial without it fails, and the search continues."""
    one, other = (f"{{suggest: categorical, choices: [0.0, {value}]}}" for value in (0.1, 1.0))
    study = search_params(replace(config, space=f"{{dropout: {one}, rdrop_alpha: {other}}}", trials=8))
    failed = [trial for trial in study.trials if trial.state.name == "FAIL"]
    assert failed and all(trial.params == {"dropout": 0.0, "rdrop_alpha": 1.0} for trial in failed)
    assert "compares two passes" in failed[0].user_attrs["reason"] and study.best_trial


def test_a_search_without_a_successful_trial_is_an_error(config, failing_runs):
    with pytest.raises(NumbersError, match="no trial has a accuracy .the loss is nan."):
        search_params(replace(config, trials=2))


def test_changed_flags_a_second_search_and_damage_are_refused(config, runs, tmp_path):
    search_params(replace(config, trials=1))
    with pytest.raises(InputError, match="weight_decay was 0.01 and is now 0.02; give another output_dir"):
        search_params(replace(config, weight_decay=0.02))
    with pytest.raises(InputError, match="search space was .*; give another output_dir"):
        search_params(replace(config, space=f"{{{RATE}}}"))
    with only_writer(tmp_path / "out"), pytest.raises(MachineError, match="another run writes this folder"):
        search_params(config)
    (tmp_path / "out" / "study.db").write_text("no database")
    with pytest.raises(CheckpointError, match="study.db cannot be read or written as a study"):
        search_params(config)
    assert len(runs) == 1


def test_missing_optuna_is_reported_with_install_advice(config, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"optuna is not installed; pip install .*tune"):
        search_params(replace(config))
    assert not (tmp_path / "out").exists()


def test_a_search_whose_first_trial_is_refused_leaves_no_folder(config, tmp_path):
    with pytest.raises(InputError, match="max_seq_len=4000 is more than the model's 128 positions"):
        search_params(replace(config, max_seq_len=4000))
    assert not (tmp_path / "out").exists()


def test_trials_inherit_the_flags_of_train(config, runs):
    search_params(replace(config, trials=2, weight_decay=0.3, max_steps=10, evaluations=4))
    assert {run.weight_decay for run in runs} == {0.3} and {run.eval_freq for run in runs} == {3}
    assert [run.output_dir[-10:] for run in runs] == ["trial-0000", "trial-0001"]


SPACED = {
    "max_steps": 0, "epochs": 1, "evaluations": 4, "batch_size": 8, "trials": 1,
    "space": "{dropout: {suggest: float, low: 0.0, high: 0.1}}",
}  # fmt: skip


def test_evaluations_are_spaced_over_the_rows_that_are_kept(config, failing_runs, tmp_path):
    """Rows with a bad label are left out: 64 pairs in batches of 8 take 8 steps, whatever else is there."""
    with open(tmp_path / "train.tsv", "a", encoding="utf-8") as file:
        file.writelines("你好\t您好\t5\n" for _ in range(64))
    with pytest.raises(NumbersError):
        search_params(replace(config, on_bad_row="skip", **SPACED))
    assert failing_runs[0].eval_freq == 2


def test_evaluations_of_a_ranking_are_spaced_over_queries(config, failing_runs, tmp_path):
    """A step takes --batch_size queries: 64 of them, of three to five candidates, take 8 steps of 8."""
    header = ("sentence1", "sentence2", "label", "topic")
    for seed, (name, size) in enumerate((("train", 64), ("dev", 16))):
        write_rows(tmp_path / f"{name}.tsv", [header, *((*r, r[0]) for r in candidate_rows(size, seed))])
    with pytest.raises(NumbersError):
        search_params(replace(config, target="ranking", query="topic", best_metric="auto", **SPACED))
    assert failing_runs[0].eval_freq == 2
