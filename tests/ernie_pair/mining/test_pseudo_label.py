"""Pseudo-labels: the output file, resuming, and bad input; its thresholds are in test_mining_twins.py."""

from types import SimpleNamespace

import numpy as np
import pytest
from fake_ranks import on_ranks
from tiny_pair import toy_rows, train_config, write_pairs

from data_tools.files.errors import InputError
from data_tools.options.cli import exit_code_of
from ernie_pair.__main__ import _run
from ernie_pair.mining import pseudo_label as module
from ernie_pair.mining.neighbours import KeptBlocks
from ernie_pair.mining.pseudo_label import PseudoLabelConfig, pseudo_label
from ernie_pair.pair.data.pair_file import Pairs, read_pairs
from ernie_pair.pair.train.train_pair import train_pair
from ernie_pair.score.evaluation.inference_model import InferenceModel


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pseudo")
    config = train_config(folder, max_steps=60, learning_rate=5e-3, dropout=0.0, best_metric="loss")
    train_pair(config)
    rows = [
        (*row[:2], row[2] if place % 4 else 0) for place, row in enumerate(toy_rows(300, seed=7), start=1)
    ]
    lines = ("\t".join(map(str, row)) + "\n" for row in rows)
    (folder / "dev.tsv").write_text("".join(lines), encoding="utf-8")  # half of class 1 is labelled 0
    write_pairs(folder / "new.tsv", 200, seed=8, labels=False)
    return folder


def flags(world, out, **changes):
    asked = {"dev_file": str(world / "dev.tsv"), "at_precision": 0.7, "device": "cpu", **changes}
    return {
        "model_path": str(world / "out"),
        "input_file": str(world / "new.tsv"),
        "output_file": str(out),
        **asked,
    }


def label(world, out, **changes):
    pseudo_label(PseudoLabelConfig(**flags(world, out, **changes)))
    return out


def test_no_process_ends_before_the_others(world, tmp_path, monkeypatch):
    order, wait = [], InferenceModel.wait
    spy = lambda scorer: order.append((tmp_path / "more.tsv").exists()) or wait(scorer)  # noqa: E731
    monkeypatch.setattr(InferenceModel, "wait", spy)
    label(world, tmp_path / "more.tsv")
    assert order[-1] is True


def test_the_command_writes_labels_that_are_mostly_right(world, tmp_path):
    out = tmp_path / "more.tsv"
    words = [word for name, value in flags(world, out).items() for word in (f"--{name}", str(value))]
    assert exit_code_of(lambda: _run(["pseudo-label", *words])) == 0
    made = read_pairs(out, 2)
    true = np.array(["好" in right for right in made.right], dtype=int)
    assert 80 < len(made) < 120 and not made.known_labels.any()  # class 1 is not precise enough
    assert np.mean(made.known_labels == true) > 0.9
    lines = out.read_text(encoding="utf-8").splitlines()
    assert lines[0].endswith("\torigin") and "\tpseudo-label 0." in lines[1]
    numbers = [int(line.rsplit(" ", 1)[1]) for line in lines[1:]]
    assert numbers == sorted(numbers)  # in the order of the file


def test_pairs_of_the_test_file_are_not_labelled(world, tmp_path):
    whole = label(world, tmp_path / "whole.tsv")
    first = whole.read_text(encoding="utf-8").splitlines()[1]
    left, right = first.split("\t")[:2]
    (tmp_path / "test.tsv").write_text(f"{right}\t{left}\n", encoding="utf-8")
    rest = label(world, tmp_path / "rest.tsv", test_file=str(tmp_path / "test.tsv"))
    lines = whole.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line != first] == rest.read_text(encoding="utf-8").splitlines()


class Killed(BaseException):
    """Simulates a kill: none of our code catches it."""


def test_a_killed_run_resumes_to_byte_identical_output(world, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 50)
    whole = label(world, tmp_path / "whole.tsv")
    ask, asked = InferenceModel.logits_in, []

    def until_killed(self, left, right, symmetric):
        asked.append(len(left))
        if len(asked) == 4:  # dev, and two blocks
            raise Killed
        return ask(self, left, right, symmetric)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(InferenceModel, "logits_in", until_killed)
        label(world, tmp_path / "cut.tsv")
    assert not (tmp_path / "cut.tsv").exists()
    again = []
    monkeypatch.setattr(
        InferenceModel, "logits_in", lambda *words: again.append(len(words[1])) or ask(*words)
    )
    assert label(world, tmp_path / "cut.tsv").read_bytes() == whole.read_bytes()
    assert again == [300, 50, 50] and not (tmp_path / "cut.tsv.work").exists()


def test_a_dev_file_that_lacks_a_class_is_refused(world, tmp_path):
    rows = ("\t".join(map(str, row)) + "\n" for row in toy_rows(120, seed=7) if row[2] == 1)
    (tmp_path / "ones.tsv").write_text("".join(rows), encoding="utf-8")
    with pytest.raises(InputError, match="dev_file .*ones.tsv has no pair of class 0, so precision") as told:
        label(world, tmp_path / "out.tsv", dev_file=str(tmp_path / "ones.tsv"))
    assert "\n" not in told.value.message and not (tmp_path / "out.tsv").exists()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"at_precision": 0.9999}, "no class reaches precision 0.9999 on .*dev.tsv: the best lower"),
        ({"at_precision": 1.0}, "at_precision=1.0 is not below 1"),
        ({"input_file": "/nowhere.tsv"}, "/nowhere.tsv: no such file"),
    ],
)
def test_invalid_pseudo_label_inputs_are_rejected(world, tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        label(world, tmp_path / "out.tsv", **changes)
    assert not (tmp_path / "out.tsv").exists()


@pytest.mark.parametrize("is_kept", [False, True])
def test_two_processes_have_what_the_first_has_kept(tmp_path, is_kept):
    """Its folder may be on its own disk; what is kept is not computed again by any."""
    block, computed = Pairs(["a"] * 2, ["b"] * 2, None, ""), []

    def logits(world, all_reduce):
        kept = KeptBlocks(tmp_path / str(world.rank) / "out.tsv", {})
        if is_kept and world.is_first:
            kept.get("0", lambda: np.full((2, 2), 7, np.float32))
        group = SimpleNamespace(all_reduce=all_reduce, all_reduce_now=all_reduce)
        compute = lambda *texts: computed.append(world.rank) or np.full((2, 2), 3, np.float32)  # noqa: E731
        scorer = SimpleNamespace(world=world, process_group=group, num_classes=2, logits_in=compute)
        return module._logits(scorer, block, "none", "0", kept)

    found = on_ranks(2, logits)
    assert [np.asarray(one).tolist() for one in found] == [[[7 if is_kept else 3] * 2] * 2] * 2
    assert sorted(computed) == ([] if is_kept else [0, 1])
    stored = [KeptBlocks(tmp_path / str(rank) / "out.tsv", {}).read("0") for rank in range(2)]
    assert np.array_equal(stored[0], found[0]) and stored[1] is None
