"""No command overwrites a file unasked: predict, evaluate, run, audit pairs and compare."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT
from tiny_pair import write_pairs
from tiny_ship import ship, write_trained

from ernie_pair.core.errors import InputError
from ernie_pair.evaluation.evaluate_pair import evaluate_pair
from ernie_pair.evaluation.predict_pair import predict_pair
from ernie_pair.experiments.compare_starts import CompareConfig, compare_starts
from ernie_pair.mining.mine_pairs import MineConfig, mine_pairs
from ernie_pair.pairs.audit.audit_pairs import AuditPairsConfig, audit_pairs
from ernie_pair.pairs.audit.new_pairs import PairsToTextConfig, pairs_to_text
from ernie_pair.pairs.config.ask_config import EvaluateConfig, PredictConfig


@pytest.fixture(scope="module")
def world(module_path):
    ship(write_trained(module_path / "model"), module_path / "ship")
    return module_path


def predict(world, pairs, out, **flags):
    predict_pair(PredictConfig(str(world / "model"), str(pairs), str(out), device="cpu", **flags))


def evaluate(world, pairs, out, **flags):
    words = {"bootstrap": 0, "device": "cpu", **flags}
    evaluate_pair(EvaluateConfig(str(world / "model"), str(pairs), str(out), **words))


def run(world, pairs, out, **flags):
    predict_pair(PredictConfig(str(world / "ship"), str(pairs), str(out), **flags))


def audit(world, pairs, out, **flags):
    audit_pairs(AuditPairsConfig(str(pairs), output_dir=str(Path(out).parent), **flags))


def to_text(world, pairs, out, **flags):
    pairs_to_text(PairsToTextConfig(str(pairs), str(out), **flags))


COMMANDS = {
    "predict": (predict, "out.tsv", {"scores": True}),
    "evaluate": (evaluate, "out", {"at_precision": 0.5}),
    "run": (run, "out.tsv", {"scores": True}),
    "audit-pairs": (audit, "audit.json", {"max_seq_len": 9}),
    "pairs-to-text": (to_text, "out.txt", {"on_bad_row": "skip"}),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_results_are_overwritten_only_with_overwrite_true(world, tmp_path, name, capfd):
    command, output, other = COMMANDS[name]
    pairs, out = write_pairs(tmp_path / "pairs.tsv", 12), tmp_path / "results" / output
    out.parent.mkdir()
    out.write_text("mine")
    with pytest.raises(InputError, match=f"{output} exists; pass overwrite=True"):
        command(world, pairs, out)
    assert out.read_text() == "mine" and [path.name for path in out.parent.iterdir()] == [output]
    command(world, pairs, out, overwrite=True)
    made = out.stat()
    capfd.readouterr()
    command(world, pairs, out)
    assert "nothing to do" in capfd.readouterr().err and out.stat().st_mtime_ns == made.st_mtime_ns
    with pytest.raises(InputError, match=rf"{output} exists; .*it was made with {next(iter(other))}"):
        command(world, pairs, out, **other)
    write_pairs(pairs, 14, seed=3)
    with pytest.raises(InputError, match=f"{output} exists; .*from other content of "):
        command(world, pairs, out)
    command(world, pairs, out, overwrite=True, **other)
    assert out.stat().st_ino != made.st_ino


def mine(world, pairs, out, **flags):
    mine_pairs(MineConfig(str(pairs), str(out), device="cpu", **flags))


REJECTED = {
    "predict": (predict, "out.tsv", "out.tsv.rejected.jsonl"),
    "evaluate": (evaluate, "out", "out.rejected.jsonl"),
    "audit-pairs": (audit, "audit.json", "train.rejected.jsonl"),
    "mine": (mine, "out.tsv", "out.tsv.train.rejected.jsonl"),
    "pairs-to-text": (to_text, "out.txt", "out.txt.train.rejected.jsonl"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_rejected_rows_of_a_killed_run_do_not_stop_the_next(world, tmp_path, name):
    command, output, rejected = REJECTED[name]
    pairs, out = write_pairs(tmp_path / "pairs.tsv", 12), tmp_path / "results" / output
    pairs.write_bytes(pairs.read_bytes() + b"one column\n")
    told = out.with_name(rejected)
    for content in ("", '{"file": "pairs.tsv", "line": 3, "reason": "1 column"}\n'):
        out.parent.mkdir()
        told.write_text(content)
        command(world, pairs, out, on_bad_row="skip")
        assert out.is_file() and "1 column instead of" in told.read_text()
        shutil.rmtree(out.parent)
    out.parent.mkdir()
    told.write_text("mine\n")
    with pytest.raises(InputError, match=f"{rejected}: .* it is not such a file; move it elsewhere"):
        command(world, pairs, out, on_bad_row="skip")
    assert told.read_text() == "mine\n" and not out.exists()


@pytest.mark.parametrize("name", ["predict", "evaluate", "run"])
def test_inputs_are_never_overwritten(world, tmp_path, name):
    pairs = write_pairs(tmp_path / "pairs.tsv", 12)
    before = pairs.read_bytes()
    (tmp_path / "link").symlink_to(pairs)
    os.link(pairs, tmp_path / "hard")
    for out in (pairs, tmp_path / "link", tmp_path / "hard"):
        with pytest.raises(InputError, match="would be written over input_file"):
            COMMANDS[name][0](world, pairs, out, overwrite=True)
    weights = next(path for path in (world / ("ship" if name == "run" else "model")).iterdir())
    with pytest.raises(InputError, match="would be written over model"):
        COMMANDS[name][0](world, pairs, weights, overwrite=True)
    assert pairs.read_bytes() == before and (tmp_path / "link").is_symlink()


def test_an_evaluation_records_which_kernels_it_used(world, tmp_path, capfd):
    pairs, report = write_pairs(tmp_path / "pairs.tsv", 12), tmp_path / "report"
    report.mkdir()
    (report / "report.html").write_text("mine")
    with pytest.raises(InputError, match=r"report\.html exists; pass overwrite=True"):
        evaluate(world, pairs, tmp_path / "out.json", report=str(report))
    assert (report / "report.html").read_text() == "mine" and not (tmp_path / "out.json").exists()
    evaluate(world, pairs, tmp_path / "out.json", report=str(report), kernels="plain", overwrite=True)
    reason = "plain kernels of Paddle: --kernels plain"
    for name in (tmp_path / "out.json", report / "report.json"):
        assert json.loads(name.read_text())["kernels"] == reason
    assert f"<dt>Computed by</dt><dd>{reason}</dd>" in (report / "report.html").read_text()
    log = capfd.readouterr().err
    assert " on cpu, " in log and ", 1 process" in log and reason in log


@pytest.mark.parametrize("name", ["compare.json", "test.jsonl", "plan.json"])
def test_a_comparison_does_not_overwrite_user_files(world, tmp_path, name):
    train = {"train_file": "train.tsv", "dev_file": "dev.tsv", "device": "cpu", "max_steps": 1}
    for split in ("train", "dev"):
        train[f"{split}_file"] = str(write_pairs(tmp_path / f"{split}.tsv", 12))
    (tmp_path / "pair.yaml").write_text(json.dumps(train))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text('{"mine": 1}')
    config = CompareConfig(
        starts=f"a={world / 'model'} b=random:{world / 'model'}",
        train_config=str(tmp_path / "pair.yaml"),
        output_dir=str(tmp_path / "out"),
    )
    with pytest.raises(
        InputError, match=rf"{name} (exists; pass overwrite=True|is not a plan of compare starts)"
    ):
        compare_starts(config)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]
    assert (tmp_path / "out" / name).read_text() == '{"mine": 1}'


# Runs a command with constant logits in place of the model's, and prints its peak memory in MB.
PEAK = """
import re, sys
import numpy as np
from ernie_pair.pairs.config.ask_config import PredictConfig
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.evaluation import predict_pair
from ernie_pair.evaluation.inference_model import InferenceModel

def answer(self, rows, *more):
    return np.zeros((len(rows), 2), dtype=np.float32)

command, model, pairs, out = sys.argv[1:]
InferenceModel.window = 4096
InferenceModel.logits_of_rows = PairPredictor.logits_of_rows = answer
if command == "predict":
    asked = PredictConfig(model, pairs, out, scores=True, on_bad_row="skip", device="cpu")
    predict_pair.predict_pair(asked)
else:
    asked = predict_pair.PredictConfig(model, pairs, out, scores=True, on_bad_row="skip")
    predict_pair.predict_pair(asked)
peak = re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())  # ru_maxrss begins with pytest's
print(int(peak[1]) / 1e3)
"""


@pytest.mark.parametrize("command, model", [("predict", "model"), ("run", "ship")])
def test_peak_memory_does_not_grow_with_the_rows(world, tmp_path, command, model):
    def peak(copies):
        pairs, out = tmp_path / f"{copies}.tsv", tmp_path / f"{copies}-answers.tsv"
        rows = [f"{'今天天气' * 20}\t{'真很不太好' * 20}\n"] * 20 + ["今\n"]  # one row in 21 is invalid
        pairs.write_text("".join(rows) * copies, encoding="utf-8")
        words = [sys.executable, "-c", PEAK, command, str(world / model), str(pairs), str(out)]
        environment = {**os.environ, "WARM": "1"}
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert len(out.read_text().splitlines()) == 1 + 21 * copies
        return float(done.stdout)

    few, many = peak(1000), peak(2500)
    assert many - few < 8  # for about 30,000 more rows of 0.5 kB each
