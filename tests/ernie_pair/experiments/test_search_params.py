"""Hyperparameter search: resumed, pruned and failed trials, and the best one as a config file."""

import io
import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from places import ROOT
from tiny_pair import candidate_rows, write_model, write_pairs, write_rows

from ernie_pair import SearchParamsConfig, search_params
from ernie_pair.__main__ import _run as run_here
from ernie_pair.core.errors import CheckpointError, InputError, MachineError, NumbersError
from ernie_pair.experiments import search_params as module
from ernie_pair.experiments.study import Outcome, Study, TrialCallback, require_optuna, space_of
from ernie_pair.training.task import TrainResult

SEARCH = "learning_rate=1e-4..2e-2:log batch_size=16,32"
FLAGS = {
    "model_type": "ernie", "from_scratch": True, "max_steps": 12, "device": "cpu", "seed": 3,
    "search": SEARCH, "trials": 4, "startup_trials": 2, "evaluations": 3, "prune_after": 0,
}  # fmt: skip

optuna = pytest.importorskip("optuna")


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


@pytest.fixture
def no_charts(monkeypatch):
    """Draw no charts, which cost more than tiny trials."""
    chart = module.Chart("", "", "")
    monkeypatch.setattr(module, "draw_chart", lambda *given: chart)
    monkeypatch.setattr(module, "svg_in", lambda chart: b"")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A search of three trials that are trained: (config, result, output)."""
    folder, printed = tmp_path_factory.mktemp("finished"), io.StringIO()
    config = config_in(folder, trials=3, pruner="none", checkpoint_steps=2)
    with redirect_stdout(printed):
        return config, search_params(config, verbose=True), printed.getvalue()


class FakeRun:
    """A training run whose accuracy is computed from the learning rate."""

    made, reason = [], ""  # the flags of all runs; why each of them fails, if it does

    def __init__(self, config, callbacks):
        self.made.append(config)
        self.config, self.callback = config, callbacks[0]

    def train(self):
        from ernie_pair.training.callbacks import TrainerState
        from ernie_pair.training.hooks import TrainerControl

        if self.reason:
            raise NumbersError(self.reason)
        config, control, value = self.config, TrainerControl(), 0.0
        for step in range(0, config.max_steps + 1, config.eval_freq):
            value = config.learning_rate * 10 + step / 1000
            state = TrainerState(global_step=step, max_steps=config.max_steps)
            metrics = {"accuracy": value}
            self.callback.on_evaluate(config, state, control, model=None, metrics=metrics)
            if control.should_training_stop:
                break
        return TrainResult(step, {}, value, None, not control.should_training_stop)


@pytest.fixture
def runs(monkeypatch, no_charts):
    """Fake training runs; returns their flags."""
    monkeypatch.setattr(FakeRun, "made", [])
    monkeypatch.setattr(module, "OneRun", FakeRun)
    return FakeRun.made


@pytest.fixture
def failing_runs(runs, monkeypatch):
    monkeypatch.setattr(FakeRun, "reason", "the loss is nan")
    return runs


def table_of(folder):
    return (folder / "trials.tsv").read_text(encoding="utf-8")


def test_the_best_trial_is_saved_as_a_config_file_for_train(finished, tmp_path):
    """Running `train` with the best trial's flags gives byte-identical weights."""
    config, found, printed = finished
    out = Path(config.output_dir)
    assert [each.number for each in found.trials] == [1, 2, 3] and found.best.state == "complete"
    assert found.best.value == max(each.value for each in found.trials)
    assert all(len(each.curve) == 3 for each in found.trials)
    run_here(["train", f"--config={out}/best.yaml", f"--output_dir={tmp_path}/again"])
    assert "amp_dtype" not in (out / "best.yaml").read_text()  # it has its default value
    one, other = (folder / "best" / "model_state.pdparams" for folder in (out, tmp_path / "again"))
    assert one.read_bytes() == other.read_bytes()
    assert found.best_run == out / "trials" / f"trial-{found.best.number:04d}"
    page = (out / "search.html").read_text(encoding="utf-8")
    assert "trial 3" in page and page.count("<figure") == 4 and (out / "trials.svg").read_text()[:4] == "<svg"
    assert json.loads((out / "search.json").read_text())["trials"][0]["params"] == found.trials[0].params
    assert f"best accuracy {found.best.value:.4f}, trial {found.best.number}:" in printed


def test_charts_of_a_search_show_every_trial(config, monkeypatch):
    config = replace(config, best_metric="accuracy")
    require_optuna()
    outcomes = [
        Outcome(1, "complete", {"learning_rate": 1e-3, "batch_size": 16}, 0.5, {1: 0.4, 2: 0.5}),
        Outcome(2, "pruned", {"learning_rate": 1e-4, "batch_size": 32}, 0.2, {1: 0.2}),
        Outcome(3, "complete", {"learning_rate": 2e-3, "batch_size": 32}, 0.3, {1: 0.1, 2: 0.3}),
        Outcome(4, "failed", {"learning_rate": 1e-2, "batch_size": 16}, None, {}),
        Outcome(5, "complete", {"learning_rate": 3e-3, "batch_size": 16}, 0.7, {1: 0.7}),
    ]
    charts = {}
    monkeypatch.setattr(
        module, "draw_chart", lambda title, draw, note: draw(charts.setdefault(title, Figure().subplots()))
    )
    module.charts_of(outcomes, space_of(config), config)
    drawn = {
        title: {
            tuple(point) for line in axes.lines if line.get_marker() == "o" for point in line.get_xydata()
        }
        for title, axes in charts.items()
    }
    measured = [each for each in outcomes if each.value is not None]
    assert drawn["Trials"] == {(each.number, each.value) for each in measured}
    assert drawn["learning_rate"] == {(each.params["learning_rate"], each.value) for each in measured}
    assert drawn["batch_size"] == {(each.params["batch_size"] // 16 - 1, each.value) for each in measured}
    (best,) = (line for line in charts["Trials"].lines if line.get_label() == "best so far")
    assert best.get_xydata().tolist() == [[1, 0.5], [3, 0.5], [5, 0.7]]
    assert [dict(line.get_xydata().tolist()) for line in charts["Curves"].lines] == [
        o.curve for o in outcomes
    ]
    assert charts["learning_rate"].get_xscale() == "log" and charts["batch_size"].get_xscale() == "linear"
    assert all(axes.get_xlabel() and axes.get_ylabel() == "accuracy" for axes in charts.values())
    assert optuna.logging.get_verbosity() == optuna.logging.WARNING  # it says nothing of its trials


def test_the_untrained_model_does_not_count_as_a_trial_value(config, no_charts):
    """All trials share it, so none could beat another: here every learning rate only does harm."""
    harm = {"search": "learning_rate=0.5,1", "pruner": "none", "best_metric": "loss"}
    found = search_params(replace(config, trials=2, **harm))
    for each in found.trials:
        assert each.value == min(each.curve.values())


def test_more_trials_continue_a_finished_search(config, runs, tmp_path):
    search_params(config)
    assert len(runs) == 4
    search_params(config)
    assert len(runs) == 4
    search_params(replace(config, trials=5))
    assert len(runs) == 5
    whole = replace(config, trials=5, output_dir=str(tmp_path / "whole"))
    search_params(whole)
    assert table_of(tmp_path / "whole") == table_of(tmp_path / "out")


@pytest.mark.parametrize("pruner, pruned", [("median", True), ("asha", True), ("none", False)])
def test_a_poor_trial_is_pruned(config, runs, pruner, pruned):
    found = search_params(replace(config, trials=10, pruner=pruner))
    states = [each.state for each in found.trials]
    assert ("pruned" in states) == pruned and states[found.best.number - 1] == "complete"
    for each in found.trials:
        if each.state == "pruned":
            assert len(each.curve) < 3 and each.value < found.best.value


def test_a_trial_is_not_pruned_at_its_last_evaluation(config, runs):
    """Pruning would save no more work there, and its value may be the best."""
    found = search_params(replace(config, trials=10, pruner="asha", evaluations=2, prune_after=1))
    assert {each.state for each in found.trials} == {"complete"}


DIES = """
import json, os, sys
from ernie_pair import SearchParamsConfig, search_params
from ernie_pair.experiments.study import Study, Trial

flags, place, number = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
report, complete = Trial.report, Study.complete

def report_and_die(self, evaluation, value, **given):
    stops = report(self, evaluation, value, **given)
    if place == "evaluation" and self.number == number and evaluation == 2:
        os._exit(9)
    return stops

def complete_and_die(self, trial, value):
    if place == "end" and trial == number:
        os._exit(9)
    complete(self, trial, value)

Trial.report, Study.complete = report_and_die, complete_and_die
search_params(SearchParamsConfig(**flags))
"""


@pytest.mark.parametrize("place", ["evaluation", "end"])
def test_a_killed_search_resumes_to_the_same_trials(finished, tmp_path, place):
    """Killed during an evaluation of its second trial, or before that trial was recorded as complete."""
    whole, killed = Path(finished[0].output_dir), replace(finished[0], output_dir=str(tmp_path / "killed"))
    words = [sys.executable, "-c", DIES, json.dumps(asdict(killed)), place, "2"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 9, done.stderr[-1500:]
    assert table_of(tmp_path / "killed").count("\n") == 2  # the header and the first trial
    events = tmp_path / "killed" / "trials" / "trial-0002" / "metrics.jsonl"
    assert events.is_file()
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
    assert not (tmp_path / "stopped" / "trials" / "trial-0002").exists()
    search_params(stopped)
    assert table_of(tmp_path / "stopped") == table_of(whole)


def test_a_trial_killed_while_sampling_gets_the_same_values(config, tmp_path):
    """Each value depends only on the seed and its position, not on when it is sampled."""
    space = space_of(config)
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole = Study(tmp_path / "whole", config, space).next_trial()
    Study(tmp_path / "killed", config, space[:1]).next_trial()
    killed = Study(tmp_path / "killed", config, space).next_trial()
    assert killed.number == whole.number == 1 and killed.params == whole.params


def test_a_pruned_but_unrecorded_trial_is_not_retrained(config, runs, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def die(study, number):
        raise Killed

    asked = replace(config, trials=10)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Study, "prune", die)
        search_params(asked)
    before = len(runs)
    found = search_params(asked)
    assert found.trials[before - 1].state == "pruned" and len(runs) == 10


def test_incompatible_flags_fail_only_their_own_trial(config, runs):
    """R-Drop needs dropout: a trial without it fails, and the search continues."""
    search = "dropout=0.0,0.1 rdrop_alpha=0.0,1.0"
    found = search_params(replace(config, search=search, trials=8, pruner="none"))
    failed = [each for each in found.trials if each.state == "failed"]
    assert failed and all(each.params == {"dropout": 0.0, "rdrop_alpha": 1.0} for each in failed)
    assert "compares two passes" in failed[0].reason and found.best.state == "complete"


def test_a_search_without_a_successful_trial_is_an_error(config, failing_runs):
    with pytest.raises(NumbersError, match="none of 2 trials has a accuracy .the loss is nan."):
        search_params(replace(config, trials=2))


def test_changed_flags_a_held_lock_and_damage_are_refused(config, runs, tmp_path):
    search_params(replace(config, trials=1))
    with pytest.raises(InputError, match="weight_decay was 0.01 and is now 0.02; give another output_dir"):
        search_params(replace(config, weight_decay=0.02))
    with pytest.raises(InputError, match="search space was .*; give another output_dir"):
        search_params(replace(config, search="batch_size=16,32"))
    lock = module.RunLock(tmp_path / "out" / "search.lock")
    with pytest.raises(InputError, match="is locked by another run"):
        search_params(config)
    lock.release()
    (tmp_path / "out" / "study.db").write_text("no database")
    with pytest.raises(CheckpointError, match="study.db cannot be read as a study"):
        search_params(config)
    assert len(runs) == 1


def test_a_study_that_cannot_grow_is_an_error_of_the_disk(config, monkeypatch, tmp_path):
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    (tmp_path / "out").mkdir()
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, usual[1]))  # above what is written before it
    try:
        with pytest.raises(MachineError, match="study.db cannot be written .*ulimit -f"):
            Study(tmp_path / "out", config, [])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)


@pytest.mark.parametrize("strategy", ["epoch", "no"])
def test_trials_without_their_evaluations_are_refused(config, strategy):
    with pytest.raises(InputError, match=f"evaluation_strategy {strategy}: trials are compared at"):
        replace(config, evaluation_strategy=strategy)


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
    assert [run.output_dir[-10:] for run in runs] == ["trial-0001", "trial-0002"]


SPACED = {
    "max_steps": 0, "epochs": 1, "evaluations": 4, "search": "dropout=0,0.1", "batch_size": 8,
    "trials": 1,
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
