"""evaluate-mlm: the masked loss of a pretrained model on held-out text, by command and from Python."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from foreign_weights import write_checkpoints
from places import ROOT
from tiny_pretrain import write_corpus, write_model

from data_tools.base.errors import CheckpointError, InputError
from data_tools.corpus.megatron import find_corpus, open_corpus
from ernie_pair import EvaluateMlmConfig, evaluate_mlm
from ernie_pair.model_files.model_folder import write_model_folder
from ernie_pair.model_files.source import open_model
from ernie_pair.pair.compare.domain_loss import domain_loss
from ernie_pair.pretrain.filling.masked_loss import Asking, measure_masked_loss

SAMPLES, LENGTH = 40, 32


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the corpus and two models: whole, and without the head of the sentence order."""
    folder = tmp_path_factory.mktemp("evaluate_mlm")
    model = write_model(folder / "model")
    weights = write_checkpoints(model, folder)
    source = open_model(str(folder / "pickled"), model_type="", from_scratch=False)
    kinds = {
        "whole": weights,
        "no_order": {name: w for name, w in weights.items() if not name.startswith("cls.seq_relationship")},
        "no_head": {name: w for name, w in weights.items() if not name.startswith("cls.")},
    }
    for name, arrays in kinds.items():
        (folder / name).mkdir()
        write_model_folder(folder / name, source, arrays)
    write_corpus(folder / "corpus", model)
    return folder


def config_of(place, output, model="whole", **changes):
    flags = {"part": "all", "num_samples": SAMPLES, "max_seq_len": LENGTH, "bootstrap": 20, "device": "cpu"}
    places = {"model_path": place / model, "input_dir": place / "corpus", "output_file": output}
    return EvaluateMlmConfig(**{**places, **flags, **changes})


def test_it_measures_what_compare_starts_says_of_a_domain(place, tmp_path):
    """Two ways to the same numbers: another class of model, other sums."""
    found = evaluate_mlm(config_of(place, tmp_path / "out.json", batch_size=7))
    source = open_model(str(place / "whole"), model_type="", from_scratch=False)
    corpus = open_corpus(find_corpus(str(place / "corpus"), "--domain_data"))
    other = domain_loss(source, corpus, SAMPLES, LENGTH)
    assert found["masked_tokens"] == other["masked_tokens"]
    for name in ("lm_loss", "perplexity", "lm_accuracy"):
        assert found[name] == pytest.approx(other[name], rel=1e-4)
    assert found == json.loads((tmp_path / "out.json").read_text())
    low, high = found["lm_loss_interval"]
    assert low < found["lm_loss"] < high
    assert found["sop_loss"] > 0 and 0 <= found["sop_accuracy"] <= 1


def test_the_size_of_a_batch_changes_no_figure(place, tmp_path):
    one, many = (
        evaluate_mlm(
            config_of(place, tmp_path / f"{size}.json", batch_size=size, part="valid", split="80,10,10")
        )
        for size in (1, 64)
    )
    for name in one:
        assert one[name] == pytest.approx(many[name], rel=1e-4), name


def test_parts_of_the_split_are_other_samples(place, tmp_path):
    losses = {
        part: evaluate_mlm(config_of(place, tmp_path / part, part=part, split="80,10,10"))["lm_loss"]
        for part in ("train", "valid", "test", "all")
    }
    assert len(set(losses.values())) == 4


def test_order_is_left_out_where_nobody_knows_it(place, tmp_path):
    without_head = evaluate_mlm(config_of(place, tmp_path / "a", model="no_order"))
    of_one_segment = evaluate_mlm(config_of(place, tmp_path / "b", binary_head=False))
    for found in (without_head, of_one_segment):
        assert not [name for name in found if name.startswith("sop_")]
    assert without_head["masked_tokens"] != of_one_segment["masked_tokens"]


def test_the_same_again_has_nothing_to_do(place, tmp_path, capsys):
    config = config_of(place, tmp_path / "out.json")
    first = evaluate_mlm(config)
    assert evaluate_mlm(config) == first
    assert "nothing to do" in capsys.readouterr().err
    with pytest.raises(InputError, match="num_samples"):
        evaluate_mlm(replace(config, num_samples=SAMPLES + 1))


def test_what_cannot_be_asked_is_refused(place, tmp_path):
    out = tmp_path / "out.json"
    with pytest.raises(CheckpointError, match="holds no cls.predictions"):
        evaluate_mlm(config_of(place, out, model="no_head"))
    with pytest.raises(InputError, match="max_seq_len=48 is above the 40 positions"):
        evaluate_mlm(config_of(place, out, max_seq_len=48))
    with pytest.raises(InputError, match="leaves no document for test"):
        evaluate_mlm(config_of(place, out, part="test", split="90,10,0"))
    assert not out.exists()


def test_a_loss_is_a_mean_over_tokens_not_samples():
    """A model that is sure of one token and knows nothing of the others."""
    import paddle

    class Sample:
        def __init__(self, count):
            self.input_ids = np.arange(8)
            self.token_type_ids = np.zeros(8, int)
            self.masked_positions = np.arange(count)
            self.masked_labels = np.zeros(count, int)
            self.sop_label, self.ngram_labels = 0, None

    def model(input_ids, token_type_ids, masked_positions):
        logits = np.zeros((len(masked_positions), 4), np.float32)
        logits[0, 0] = 100.0
        return paddle.to_tensor(logits), paddle.zeros([len(input_ids), 2])

    found = measure_masked_loss(model, [Sample(1), Sample(3)], 0, Asking(8, 2, 5))
    assert found["lm_loss"] == pytest.approx(3 * np.log(4) / 4)
    assert (found["masked_tokens"], found["samples"]) == (4, 2)


def test_the_command_writes_and_prints(place, tmp_path):
    words = [
        "--model_path",
        place / "whole",
        "--input_dir",
        place / "corpus",
        "--output_file",
        tmp_path / "o",
    ]
    words += ["--part", "all", "--num_samples", 8, "--max_seq_len", LENGTH, "--device", "cpu"]
    command = [sys.executable, "-m", "ernie_pair", "evaluate-mlm", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    said = json.loads((tmp_path / "o").read_text())
    assert done.stdout.startswith(f"lm_loss {said['lm_loss']:.4f}")
