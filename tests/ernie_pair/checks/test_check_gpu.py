"""The table of the check of a GPU, with commands that only leave what they would, and its report."""

import getpass
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT
from waiting import until

from ernie_pair.checks import check_gpu as checking
from ernie_pair.checks.check_gpu import Bench, Check, CheckGpuConfig, check_gpu, checks, compare, hide_private
from ernie_pair.commands import COMMANDS, config_class_of, form_of, forms_of
from ernie_pair.core.cli.cli import exit_code_of, parse_config
from ernie_pair.core.errors import CheckpointError, InputError, MachineError, NumbersError
from ernie_pair.launch.launch import read_launch
from ernie_pair.runtime.gpu import Finding
from ernie_pair.runtime.processes.child_command import words_of

AMPERE, VOLTA, PASCAL = ({"name": "A card", "capability": [n, 0], "memory_gb": 80.0} for n in (8, 7, 6))


def read(words):
    """The options that the words of a command stand for. Raises InputError as the command would."""
    if words[0] == "launch":
        launch, flags = read_launch(words[1:])
        return parse_config(config_class_of(COMMANDS[launch.command]), flags, launch.command)
    form, flags = form_of(words, forms_of(words[0], COMMANDS))
    return parse_config(config_class_of(COMMANDS[form]), flags, form)


class FakeBench(Bench):
    """Leaves what commands would; ``calls`` holds (words, options) of each."""

    calls: list = []

    def run(self, *words, **flags):
        words = words_of(*map(str, words), **flags)
        config = read(words)
        if any(config == other for _, other in self.calls):
            return
        self.calls.append((words, config))
        command = words[words[0] == "launch"]
        if command in ("pretrain", "train"):
            self.leave_run(Path(config.output_dir), config)
        elif command == "predict":
            text = "prediction\tprobability_0\tprobability_1\n0\t0.75\t0.25\n"
            Path(config.output_file).write_text(text)
        elif command == "build":
            self.recipe.vocabulary.parent.mkdir(parents=True, exist_ok=True)
            self.recipe.vocabulary.write_text("[PAD]\n今\n")

    def leave_run(self, output, config):
        for step in (10, 20):
            (output / "checkpoints" / f"step_{step:08d}").mkdir(parents=True, exist_ok=True)
        events = [self.event(step, config) for step in range(1, config.max_steps + 1)]
        (output / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        (output / "model_last").mkdir(exist_ok=True)
        manifest = {"files": [{"name": "weights.safetensors", "sha256": "ab" * 32}]}
        (output / "model_last" / "MANIFEST.json").write_text(json.dumps(manifest))

    def event(self, step, config):
        fast = 1.0 + config.use_amp
        return {"split": "train", "step": step, "loss": 7 - 0.01 * step, "samples_per_second": fast}


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Put commands that only leave files in place of those of the check; returns their class."""
    monkeypatch.setattr(FakeBench, "calls", [])
    monkeypatch.setattr(checking, "Bench", FakeBench)
    monkeypatch.setattr(checking, "run_check", lambda *given: Finding([], {"cards": [AMPERE, AMPERE]}))
    return FakeBench


def made_on(folder, *cards, device="gpu", kind=FakeBench):
    rows, bench = checks(), kind(folder, device, gpus=len(cards))
    for row in rows:
        row.make(bench, cards)
    return {f"{row.group}, {row.name}": row for row in rows}


def test_every_check_passes_on_two_good_gpus(bench, tmp_path):
    rows = made_on(tmp_path, AMPERE, AMPERE)
    assert {row.said for row in rows.values()} == {""}
    assert all("--gpus=0,1" in words for words, _ in bench.calls if words[0] == "launch")
    runs = [config for words, config in bench.calls if words[0] == "pretrain" and config.device == "gpu"]
    flags = {(c.use_amp, c.amp_dtype, c.graph == "dynamic") for c in runs}
    assert flags >= {(False, "auto", False), (True, "bfloat16", False), (True, "float16", True)}
    assert {c.max_seq_len for c in runs if "-base-" in c.output_dir} == {128, 512}
    halves = [c.precision for words, c in bench.calls if words[0] == "predict" and c.device == "gpu"]
    assert sorted(halves) == ["bf16", "bf16", "fp16", "fp16", *["fp32"] * 5]
    exports = {(c.format, c.precision) for words, c in bench.calls if words[0] == "export"}
    assert exports == {("both", "auto"), *(("onnx-gpu", name) for name in ("fp16", "bf16", "fp32"))}


def test_without_paddle_for_gpus_exported_models_are_checked(bench, tmp_path):
    rows, asked = checks(), bench(tmp_path, "gpu", gpus=1, lacks=["Paddle"])
    for row in rows:
        row.make(asked, [AMPERE])
    made = {row.name for row in rows if row.gpus and row.verdict == "passed"}
    assert made == {f"exported for GPUs, {name}" for name in ("fp16", "bf16", "fp32")}
    assert {row.said for row in rows if row.gpus == 1} == {"", "needs Paddle for GPUs"}
    on_gpu = [words[0] for words, config in bench.calls if getattr(config, "device", "cpu") == "gpu"]
    assert on_gpu == ["predict"] * 3


@pytest.mark.parametrize("card, without", [(VOLTA, {"bf16"}), (PASCAL, {"bf16", "fp16"})])
def test_an_older_gpu_is_tested_for_what_it_supports(bench, tmp_path, card, without):
    for name, row in made_on(tmp_path, card).items():
        is_newer = any(word in name for word in without)
        assert row.verdict == ("needs" if is_newer or row.gpus > 1 else "passed"), (name, row.said)
    launched = [(words, config) for words, config in bench.calls if words[0] == "launch"]
    assert launched and all("--processes=2" in words and c.device == "cpu" for words, c in launched)


def test_on_a_cpu_the_check_reports_what_needs_a_gpu(bench, tmp_path):
    rows = made_on(tmp_path, device="cpu")
    assert {row.said for row in rows.values() if row.gpus} == {"needs a GPU", "needs two GPUs"}
    assert {row.verdict for row in rows.values() if not row.gpus} == {"passed"}
    assert {config.device for _, config in bench.calls if hasattr(config, "device")} == {"cpu"}


def test_what_differs_fails_and_the_rest_still_runs(bench, tmp_path):
    class OtherLosses(FakeBench):
        def event(self, step, config):
            event = super().event(step, config)
            event["loss"] *= 1.03 if config.use_amp else 1.001 if config.device == "gpu" else 1
            event["samples_per_second"] = 1.0
            return event

    rows = made_on(tmp_path, AMPERE, kind=OtherLosses)
    failed = {name for name, row in rows.items() if row.verdict == "failed"}
    assert {"losses, fp32", "losses, bf16 O1", "speed, ERNIE base, pairs, fp16 O1"} <= failed
    assert not failed & {"losses, pairs, fp32", "resume, pretrain, fp32"}
    assert rows["losses, fp32"].said == "the largest difference is 0.001, above 0.0001"
    assert rows["models, trained, fp32"].verdict == "passed"


@pytest.mark.parametrize("found, wanted, most, holds", [
    ([1.0, 7.0], [1.0, 7.0], 0.0, True),
    ([1.0, 7.0], [1.0, 7.0 + 1e-9], 0.0, False),
    ([0.3], [0.30009], 1e-4, True),
    ([100.0], [100.009], 1e-4, True),
    ([float("nan")], [1.0], 1e-4, False),
    ([1.0, 2.0], [1.0], 1e-4, False),
    ([1.0, 1.1] * 5, [1.1, 1.0] * 5, 0.02, True),
    ([], [], 0.0, False),
])  # fmt: skip
def test_numbers_are_compared_relatively_above_one(found, wanted, most, holds):
    found, wanted = map(checking.np.array, (found, wanted))
    if holds:
        assert compare(found, wanted, most)["largest difference"] <= most
    else:
        with pytest.raises(NumbersError):
            compare(found, wanted, most)


def put(monkeypatch, *measures):
    rows = [Check("losses", f"row {number}", measure) for number, measure in enumerate(measures)]
    monkeypatch.setattr(checking, "checks", lambda: rows)


def raises(error):
    def measure(bench):
        raise error

    return measure


@pytest.fixture
def config(tmp_path):
    return CheckGpuConfig(output_file=str(tmp_path / "check.json"), device="cpu")


def build_report(config):
    return json.loads(Path(config.output_file).read_text(encoding="utf-8"))


def test_a_failed_check_is_reported_and_the_next_is_made(bench, config, monkeypatch, capsys):
    monkeypatch.setattr(socket, "gethostname", lambda: "node17.lab.example")
    monkeypatch.setattr(getpass, "getuser", lambda: "anna")
    private = "/home/anna/models/best of anna on node17.lab.example, node17: damaged <b>"
    figures = {"tokens/s": 123456.7, "card": "A card"}
    put(monkeypatch, raises(CheckpointError(private)), raises(KeyError("loss")), lambda bench: figures)
    assert exit_code_of(lambda: check_gpu(config)) == CheckpointError.exit_code
    report = build_report(config)
    assert [row["verdict"] for row in report["checks"]] == ["failed", "failed", "passed"]
    assert report["checks"][1]["said"] == "KeyError: 'loss'" and report["checks"][2]["figures"] == figures
    assert report["first_failure"].startswith("losses, row 0: ") and not report["passed"]
    page = Path(config.output_file).with_suffix(".html").read_text(encoding="utf-8")
    assert "damaged &lt;b&gt;" in page and "tokens/s 123456.7000" in page and "2 failed" in page
    for text in (page, json.dumps(report)):
        assert not any(name in text for name in ("anna", "node17", "models"))
    said = capsys.readouterr()
    assert said.err.startswith("error: losses, row 0: ") and "PASSED  losses, row 2" in said.out


def test_an_existing_report_is_kept_unless_overwrite_is_set(bench, config, monkeypatch):
    put(monkeypatch, lambda bench: {})
    page = Path(config.output_file).with_suffix(".html")
    page.write_text("mine")
    with pytest.raises(InputError, match="check.html exists; pass overwrite=True to replace it"):
        check_gpu(config)
    assert page.read_text() == "mine" and not Path(config.output_file).exists()
    check_gpu(CheckGpuConfig(output_file=config.output_file, device="cpu", overwrite=True))
    assert "GPU check" in page.read_text() and build_report(config)["passed"]


def test_without_a_gpu_there_is_nothing_to_check(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(checking, "run_check", lambda *given: Finding(["no driver"], {"cards": []}))
    monkeypatch.setattr(checking, "version_of", lambda package: "1.31.1")  # of onnxruntime-gpu
    monkeypatch.setattr(checking, "has_driver", lambda: False)
    with pytest.raises(MachineError, match="no driver"):
        check_gpu(CheckGpuConfig(output_file=str(tmp_path / "check.json"), device="gpu"))
    assert not bench.calls and not any(tmp_path.iterdir())


@pytest.mark.parametrize("text, wanted", [
    ("no weights in /a/b/model.npz; use /x/y", "no weights in .../model.npz; use .../y"),
    ("a share of 1/2 and tokens/s", "a share of 1/2 and tokens/s"),
    ("of 10.1.2.3:80 and me@here.org", "of <address> and <address>"),
    ("pip install x==11.11.3.6 from https://a.org/b/", "pip install x==11.11.3.6 from https://a.org/b/"),
    ('File "/opt/py/x.py", line 3', 'File ".../x.py", line 3'),
])  # fmt: skip
def test_folders_and_addresses_are_removed_from_texts(text, wanted):
    assert hide_private(text) == wanted


def test_a_signal_leaves_no_processes_or_files_behind(tmp_path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    words = f"check --gpu --device cpu --only losses --quick --output_file {tmp_path}/out.json".split()
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    check = subprocess.Popen([sys.executable, "-m", "ernie_pair", *words], env=environment, **pipes)
    until(lambda: list(temporary.glob("ernie-pair-check-gpu-*/corpus")))
    check.send_signal(signal.SIGTERM)
    said = check.communicate(timeout=180)[1]
    assert check.returncode == 143 and said.startswith("stopped; nothing is left")
    assert list(temporary.iterdir()) == [] and not list(tmp_path.glob("out*"))
    running = subprocess.run(["ps", "ax"], capture_output=True, text=True).stdout
    assert str(temporary) not in running
