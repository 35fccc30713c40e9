"""Two processes give the same result, whichever way they are started."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from launched import one_thread, run_script
from places import SCRIPTS
from run_files import events, files_of
from tiny_pair import toy_rows, write_model, write_pairs

from ernie_pair import PairCallback, PairConfig, PairTrainer, notebook_launcher
from ernie_pair.checkpoint.checkpoint_folder import MANIFEST
from ernie_pair.core.errors import InputError, LostProcessError
from ernie_pair.runtime.processes.world import launched_world

pytestmark = pytest.mark.ranks
SETTINGS = {
    "model_type": "ernie", "from_scratch": True, "max_steps": 8, "batch_size": 8, "learning_rate": 5e-3,
    "eval_freq": 3, "logging_freq": 1, "checkpoint_steps": 4, "device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ways")
    return {
        "model_name_or_path": str(write_model(folder / "model")),
        "train_file": str(write_pairs(folder / "train.tsv", 90, seed=0)),
        "dev_file": str(write_pairs(folder / "dev.tsv", 41, seed=1)),
        **SETTINGS,
    }


def train(flags, folder, changes=None, compute_metrics=None, callbacks=()):
    os.environ["OMP_NUM_THREADS"] = "1"
    names = ("model_name_or_path", "train_file", "dev_file")
    settings = {name: value for name, value in flags.items() if name not in names}
    config = PairConfig(folder, **{**settings, **(changes or {})})
    given = [flags[name] for name in names]
    trainer = PairTrainer(given[0], config, *given[1:], compute_metrics=compute_metrics, callbacks=callbacks)
    result = trainer.train()
    metrics = trainer.evaluate()
    assert {name: metrics[name] for name in result.metrics} == result.metrics
    assert metrics.keys() - result.metrics.keys() == {"runtime", "samples_per_second"}
    predicted = trainer.predict(list(toy_rows(9, seed=2)))
    return result, predicted


@pytest.fixture(scope="module")
def notebook(flags, tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebook")
    return folder, *notebook_launcher(train, (flags, str(folder)))


def assert_same_run(ours, theirs):
    assert events(ours) == events(theirs)
    assert files_of(ours / "model_last") == files_of(theirs / "model_last")


def test_the_result_of_the_first_process_is_returned(notebook):
    folder, result, predicted = notebook
    assert (result.step, result.is_done) == (8, True) and result.best_model.is_dir()
    assert predicted.predictions.shape == (9, 2) and predicted.label_ids.tolist() == [0, 1] * 4 + [0]
    assert json.loads((folder / "model_last" / MANIFEST).read_text())["topology"]["processes"] == 2


def train_on_ids(flags, folder):
    """The same run on token ids, in batches that a collator makes; its metrics, and those of all ranks."""
    os.environ["OMP_NUM_THREADS"] = "1"
    model, config = flags["model_name_or_path"], PairConfig(folder, **SETTINGS)
    texts = PairTrainer(model, config)
    rows = [texts.encode(flags[name]) for name in ("train_file", "dev_file")]
    trainer = PairTrainer(model, config, *rows, data_collator=texts.collate)
    trainer.train()
    metrics = trainer.evaluate()
    (Path(folder) / f"metrics{launched_world().rank}.json").write_text(json.dumps(metrics))
    return metrics


def test_ids_and_a_collator_give_the_run_of_the_texts(flags, notebook, tmp_path):
    metrics = notebook_launcher(train_on_ids, (flags, str(tmp_path)))
    assert events(tmp_path) == events(notebook[0])
    told = [json.loads((tmp_path / f"metrics{rank}.json").read_text()) for rank in (0, 1)]
    assert told == [metrics, metrics] and metrics["runtime"] > 0


def test_the_script_under_paddle_launcher_makes_the_same_run(flags, notebook, tmp_path):
    words = [f"--{name}={value}" for name, value in {**flags, "output_dir": tmp_path / "out"}.items()]
    run_script(tmp_path, SCRIPTS / "train_pair.py", *words)
    assert_same_run(tmp_path / "out", notebook[0])


def test_a_launch_file_makes_the_same_run_and_exit_code(flags, notebook, tmp_path, monkeypatch):
    of_file = {"launch": {"processes": 2}, **flags, "output_dir": str(tmp_path / "out")}
    (tmp_path / "pair.yaml").write_text(yaml.safe_dump(of_file))
    monkeypatch.chdir(tmp_path)
    for name, value in one_thread().items():
        monkeypatch.setenv(name, value)
    line = [sys.executable, "-m", "ernie_pair", "launch", "pair.yaml"]
    subprocess.run(line, check=True, capture_output=True, timeout=300)
    assert_same_run(tmp_path / "out", notebook[0])
    assert sorted(path.name for path in (tmp_path / "out" / "log").glob("workerlog.*"))[1] == "workerlog.1"
    done = subprocess.run([*line, "--train_file=absent.tsv"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "error: absent.tsv: no such file" in done.stdout + done.stderr


class Notes(PairCallback):
    """Called on the first rank only, but stops all of them."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def on_step_end(self, args, state, control, **kwargs):
        control.should_save = control.should_save or state.global_step == 3

    def on_log(self, args, state, control, **kwargs):
        with open(self.folder / f"heard.{launched_world().rank}", "a") as heard:
            heard.write(f"{state.global_step} ")
        control.should_training_stop = state.global_step == 5


def counted(prediction):
    assert launched_world().is_first
    return {"rows": len(prediction.label_ids)}


def test_callbacks_and_metrics_of_the_first_rank_apply_to_all(flags, notebook, tmp_path):
    settings = {"compute_metrics": counted, "callbacks": [Notes(tmp_path)]}
    result, _ = notebook_launcher(train, (flags, str(tmp_path / "out"), None, *settings.values()))
    assert (result.step, result.is_done, result.metrics["rows"]) == (5, False, 41)
    assert [path.name for path in tmp_path.glob("heard.*")] == ["heard.0"]
    assert (tmp_path / "heard.0").read_text() == "1 2 3 4 5 "
    assert (tmp_path / "out" / "checkpoints" / "step_00000003").is_dir()
    notebook_launcher(train, (flags, str(tmp_path / "out")))
    assert files_of(tmp_path / "out" / "model_last") == files_of(notebook[0] / "model_last")


def test_both_processes_stop_early_at_the_same_step(flags, tmp_path):
    idle = {"learning_rate": 1e-12, "eval_freq": 1, "early_stopping_patience": 3}
    result, _ = notebook_launcher(train, (flags, str(tmp_path / "out"), idle))
    assert (result.step, result.is_done) == (3, False)  # the start counts as an evaluation
    assert (tmp_path / "out" / "model_last").resolve().name == "step_00000003"


class Broken(PairCallback):
    def on_evaluate(self, args, state, control, **kwargs):
        if state.global_step:
            raise LookupError("no such thing")


def test_an_error_in_a_callback_ends_both_processes(flags, tmp_path):
    with pytest.raises(LookupError, match="no such thing"):
        notebook_launcher(train, (flags, str(tmp_path / "out"), None, None, [Broken()]))


def train_until_killed(flags, folder):
    from ernie_pair.pairs.train.train_pair import PairTask

    step_of = PairTask.step

    def killed(self, batches, step, stop):
        if step == 5 and self.process_group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return step_of(self, batches, step, stop)

    PairTask.step = killed
    return train(flags, folder)


def test_a_killed_process_is_named_in_the_error(flags, tmp_path, capsys):
    with pytest.raises(LostProcessError, match="rank 1 was killed by SIGKILL"):
        notebook_launcher(train_until_killed, (flags, str(tmp_path / "out")))
    assert "error: rank 1 (pid " in capsys.readouterr().out


def test_bad_input_raises_the_same_error_as_with_one_process(flags, tmp_path):
    with pytest.raises(InputError, match="absent.tsv: no such file; give"):
        notebook_launcher(train, ({**flags, "train_file": "absent.tsv"}, str(tmp_path / "out")))


# A notebook whose run never ends by itself. Like a kernel, it takes interrupts even where the shell that
# started the tests has them ignored.
ENDLESS = """
import sys, json, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from ernie_pair import notebook_launcher
from test_notebook_launcher import train
notebook_launcher(train, (json.loads(sys.argv[1]), sys.argv[2], {"max_steps": 10**6}))
"""


def test_interrupting_the_notebook_lets_the_run_save_first(flags, tmp_path):
    words = ["-c", ENDLESS, json.dumps(flags), str(tmp_path / "out")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    notebook = subprocess.Popen([sys.executable, *words], env=one_thread(), **pipes)
    for line in notebook.stdout:
        if re.search(r"train step +6/", line):
            notebook.send_signal(signal.SIGINT)
            break
    shown, errors = notebook.communicate(timeout=120)
    assert "KeyboardInterrupt" in errors
    newest = max(path.name for path in (tmp_path / "out" / "checkpoints").iterdir())
    assert f"stopped by SIGTERM after step {int(newest[5:])}, saved" in shown
