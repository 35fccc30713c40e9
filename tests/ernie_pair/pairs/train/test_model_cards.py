"""Model cards (README.md): what they say about the run, and that the examples in them work."""

import hashlib
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from foreign_weights import write_checkpoints
from run_files import events, publish_folder
from tiny_pair import train_config, write_pairs
from tiny_pretrain import write_model as write_pretrained

from ernie_pair.__main__ import main
from ernie_pair.checkpoint.manifest import installed_versions
from ernie_pair.core.errors import InputError
from ernie_pair.deployment.export_pair import ExportConfig, export_pair
from ernie_pair.models.model_card import DataFile, Measured, ModelCard, write_card
from ernie_pair.pairs.targets.metrics import METRICS
from ernie_pair.pairs.train.train_pair import train_pair
from ernie_pair.pretraining.convert.convert import ConvertConfig, convert


@pytest.fixture(scope="module")
def run(module_path):
    config = train_config(module_path, max_steps=6, learning_rate=5e-3, eval_freq=2, max_seq_len=40)
    train_pair(config)
    return module_path, config


def card_of(folder):
    return (folder / "README.md").read_text(encoding="utf-8")


def cells_of(card, first):
    return re.search(rf"^\| {re.escape(first)} \| (.*) \|$", card, re.MULTILINE)[1].split(" | ")


def test_a_card_describes_the_run_and_its_data(run):
    folder, config = run
    card = card_of(folder / "out" / "best")
    assert f"- base model: {config.model_name_or_path}\n" in card
    assert "- initial weights: random weights (--from_scratch true)\n" in card
    for split, path, rows in (("train", config.train_file, "90"), ("dev", config.dev_file, "41")):
        sha256 = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        assert cells_of(card, split) == [path, rows, sha256]
    flags = card.partition("```yaml\n")[2].partition("```")[0].splitlines()
    assert {"learning_rate: 0.005", "max_steps: 6", 'model_type: "ernie"', "batch_size: 16"} < set(flags)
    assert not [line for line in flags if line.startswith(("output_dir", "warmup_rate", "train_file"))]
    for package, version in installed_versions().items():
        assert f"- {package} {version}\n" in card
    assert re.search(r"^- computed by: (fused kernels, |plain kernels of Paddle: )", card, re.M)


def test_a_card_shows_the_metrics_and_their_intervals(run):
    folder, _ = run
    card = card_of(folder / "out" / "best")
    step = int(re.search(r"- chosen: step (\d+), the best accuracy", card)[1])
    (event,) = (event for event in events(folder / "out", "valid") if event["step"] == step)
    for metric in METRICS:
        value, interval = cells_of(card, metric)
        assert value == f"{event[metric]:.4f}"
        low, high = map(float, interval.split(" to "))
        assert low <= event[metric] + 1e-4 and event[metric] - 1e-4 <= high
    assert cells_of(card, "accuracy")[1] != cells_of(card, "f1")[1]


def try_out(card, folder, monkeypatch, capsys):
    """Run every command and the Python of a card in a copy of its folder; return what Python printed."""
    write_pairs(folder / "pairs.tsv", 12, seed=4)
    shutil.copyfile(folder / "pairs.tsv", folder / "train.tsv")
    shutil.copyfile(folder / "pairs.tsv", folder / "dev.tsv")
    (commands,) = re.findall(r"```sh\n(.*?)```", card, re.DOTALL)
    (python,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(python.splitlines()) <= 6
    monkeypatch.chdir(folder)
    for line in commands.replace("\\\n", "").splitlines():
        if " serve " in line:
            continue  # waits for requests
        monkeypatch.setattr(sys, "argv", shlex.split(line))
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 0, line
    capsys.readouterr()
    exec(compile(python, "README.md", "exec"), {})
    return capsys.readouterr().out


def test_the_examples_in_the_card_of_a_best_model_work(run, tmp_path, monkeypatch, capsys):
    copy = Path(shutil.copytree(run[0] / "out" / "best", tmp_path / "copy"))
    said = try_out(card_of(copy), copy, monkeypatch, capsys)
    assert re.match(r"\['[01]'\] \[\[0\.\d+ +0\.\d+\]\]", said)
    assert json.loads((copy / "metrics.json").read_text())["rows"] == 12
    assert len((copy / "predictions.tsv").read_text().splitlines()) == 13


def test_the_examples_in_the_card_of_an_exported_model_work(run, tmp_path, monkeypatch, capsys):
    export_pair(ExportConfig(str(run[0] / "out"), str(tmp_path / "ship")))
    card = card_of(tmp_path / "ship")
    said = json.loads((tmp_path / "ship" / "export.json").read_text())
    assert f"- exported from: {said['model']}\n" in card and "- tokens per pair: 40\n" in card
    assert f"- largest difference: paddle {said['parity']['paddle']:.3g}\n" in card
    assert re.match(r"\['[01]'\]", try_out(card, tmp_path / "ship", monkeypatch, capsys))


def test_the_examples_in_the_card_of_a_converted_model_work(tmp_path, monkeypatch, capsys):
    write_checkpoints(write_pretrained(tmp_path / "model"), tmp_path)
    weights = tmp_path / "pickled" / "static_vars.pdparams"
    config = ConvertConfig(str(weights), str(tmp_path / "dynamic"))
    convert(config)
    card = card_of(tmp_path / "dynamic")
    assert cells_of(card, "static weights")[2] == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert "- largest difference from it: sequence_output " in card
    shape = try_out(card, tmp_path / "dynamic", monkeypatch, capsys).strip()
    assert shape in ("[1, 32]", "paddle.Size([1, 32])")


def test_a_readme_written_by_a_user_is_never_overwritten(run, tmp_path):
    flags = {"model_path": str(run[0] / "out"), "output_dir": str(tmp_path / "ship")}
    export_pair(ExportConfig(**flags))
    (tmp_path / "ship" / "README.md").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(InputError, match="holds README.md, which would be lost"):
            export_pair(ExportConfig(**flags, overwrite=overwrite))
    assert (tmp_path / "ship" / "README.md").read_text() == "mine"


def test_a_best_model_with_an_edited_card_is_moved_aside(tmp_path):
    def fill(draft):
        write_card(draft, ModelCard("a model", {}, "ls", "1"))

    folder = tmp_path / "best-accuracy-0.5000"
    publish_folder(folder, fill)
    (folder / "README.md").write_text("mine")
    publish_folder(folder, fill)
    (aside,) = tmp_path.glob(".bad-*")
    assert (aside / "README.md").read_text() == "mine" and card_of(folder).startswith("# a model\n")
    with pytest.raises(FileExistsError):
        fill(folder)


def test_special_characters_in_names_do_not_break_a_card():
    data = [DataFile("train", "a|b\nc.tsv", "0", None)]
    card = ModelCard("a\n# b", {"base model": "x\ny"}, "ls", "1", data, metrics={"f1": Measured(0.5)}).text()
    assert card.startswith("# a # b\n\n- base model: x y\n")
    assert r"| train | a\|b c.tsv | not counted | 0 |" in card and "| f1 | 0.5000 |  |" in card
