"""evaluate-mlm: the masked-LM loss of a pretrained model on held-out text, by command and from Python."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from foreign_weights import write_checkpoints
from package_command import command
from tiny_pretrain import write_corpus, write_model

from data_tools.corpus.megatron import find_corpus, open_corpus
from data_tools.files.errors import CheckpointError, InputError
from ernie_pair import EvaluateMlmConfig, evaluate_mlm
from ernie_pair.models.source import open_model, write_model_folder
from ernie_pair.pretrain.filling import evaluate_mlm as masked_loss
from ernie_pair.pretrain.filling.evaluate_mlm import measure_masked_loss
from ernie_pair.series.compare_starts import domain_loss

SAMPLES, LENGTH = 40, 32


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the corpus and a model: complete, without the sentence-order head, and without heads."""
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


def test_results_agree_with_compare_starts_domain_loss(place, tmp_path):
    """The same numbers computed independently: another model class and other summation code."""
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


def test_batch_size_does_not_change_the_metrics(place, tmp_path):
    one, many = (
        evaluate_mlm(
            config_of(place, tmp_path / f"{size}.json", batch_size=size, part="valid", split="80,10,10")
        )
        for size in (1, 64)
    )
    for name in one:
        assert one[name] == pytest.approx(many[name], rel=1e-4), name


def test_each_part_of_the_split_uses_different_samples(place, tmp_path):
    losses = {
        part: evaluate_mlm(config_of(place, tmp_path / part, part=part, split="80,10,10"))["lm_loss"]
        for part in ("train", "valid", "test", "all")
    }
    assert len(set(losses.values())) == 4


def test_sop_metrics_are_omitted_when_unavailable(place, tmp_path):
    without_head = evaluate_mlm(config_of(place, tmp_path / "a", model="no_order"))
    of_one_segment = evaluate_mlm(config_of(place, tmp_path / "b", binary_head=False))
    for found in (without_head, of_one_segment):
        assert not [name for name in found if name.startswith("sop_")]
    assert without_head["masked_tokens"] != of_one_segment["masked_tokens"]


def test_rerunning_does_nothing_unless_something_is_another(place, tmp_path, capsys):
    corpus = find_corpus(str(place / "corpus"), "--input_dir")
    config = config_of(place, tmp_path / "out.json", input_dir=str(corpus))
    first = evaluate_mlm(config)
    assert evaluate_mlm(config) == first and "nothing to do" in capsys.readouterr().err
    other = write_corpus(tmp_path / "other", place / "model", seed=2)
    changes = {"num_samples": SAMPLES + 1, "input_dir": str(find_corpus(str(other), "--input_dir"))}
    for name, value in changes.items():
        with pytest.raises(InputError, match=name):
            evaluate_mlm(replace(config, **{name: value}))


def test_impossible_evaluations_are_refused(place, tmp_path):
    out = tmp_path / "out.json"
    with pytest.raises(CheckpointError, match="holds no cls.predictions"):
        evaluate_mlm(config_of(place, out, model="no_head"))
    with pytest.raises(InputError, match="max_seq_len=48 is above the model's 40 positions"):
        evaluate_mlm(config_of(place, out, max_seq_len=48))
    with pytest.raises(InputError, match="leaves no document for test"):
        evaluate_mlm(config_of(place, out, part="test", split="90,10,0"))
    assert not out.exists()

    def with_config(**changes):
        folder = tmp_path / "_".join(changes)
        shutil.copytree(place / "whole", folder)
        settings = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**settings, **changes}))
        return config_of(place, tmp_path / "out.json", model_path=folder)

    with pytest.raises(InputError, match="type_vocab_size 1 cannot tell two .*; use binary_head=False"):
        evaluate_mlm(with_config(type_vocab_size=1))
    with pytest.raises(InputError, match=r"\[PAD\] is token 0 of .* masks its pad_token_id 5"):
        evaluate_mlm(with_config(pad_token_id=5))
    assert not (tmp_path / "out.json").exists()


class MadeUpSample:
    """A sample of eight tokens, the first ``count`` of them masked."""

    def __init__(self, count):
        self.input_ids = np.arange(8)
        self.token_type_ids = np.zeros(8, int)
        self.masked_positions = np.arange(count)
        self.masked_labels = np.zeros(count, int)
        self.sop_label, self.ngram_labels = 0, None


def with_first_logit(value):
    """A model that predicts uniformly, but for one logit of the first masked token."""
    import paddle

    def model(input_ids, token_type_ids, masked_positions):
        logits = np.zeros((len(masked_positions), 4), np.float32)
        logits[:1, 0] = value
        return paddle.to_tensor(logits), paddle.zeros([len(input_ids), 2])

    return model


def test_the_loss_is_over_tokens_finite_and_of_some(monkeypatch):
    """A model that is certain of one token and predicts the others uniformly."""
    samples = [MadeUpSample(1), MadeUpSample(3)]
    found = measure_masked_loss(with_first_logit(100.0), samples, 0, 8, 2, 5)
    assert found["lm_loss"] == pytest.approx(3 * np.log(4) / 4)
    assert (found["masked_tokens"], found["samples"]) == (4, 2)
    with pytest.raises(InputError, match="no token of the 2 samples is masked, so there is no loss"):
        measure_masked_loss(with_first_logit(0.0), [MadeUpSample(0)] * 2, 0, 8, 2, 5)
    # Paddle caps the loss of a token on a CPU, but not on a GPU
    monkeypatch.setattr(masked_loss, "_sums_of", lambda model, batch: np.array([[1000.0, 0, 1, 0, 0, 0]]))
    found = measure_masked_loss(None, [MadeUpSample(1)], 0, 8, 2, 5)
    assert found["lm_loss"] == 1000 and np.isfinite(found["perplexity"])


def interval_of(losses, documents):
    """The interval of samples of one masked token each, whose losses are given."""
    sums = np.array([[loss, 0, 1, 0, 0, 0] for loss in losses], float)
    return masked_loss._interval(sums, np.array(documents), 400)


def test_the_interval_is_over_documents_not_samples():
    """Ten copies of two documents say no more than the two do."""
    two = interval_of([1.0, 3.0], [0, 1])
    assert interval_of([1.0, 3.0] * 10, [4, 9] * 10) == pytest.approx(two)
    low, high = interval_of([1.0, 3.0] * 10, range(20))
    assert two[0] < low < high < two[1]


def test_text_that_is_used_several_times_is_counted(place, tmp_path, capsys):
    config = config_of(place, tmp_path / "out.json", num_samples=400)
    corpus = open_corpus(find_corpus(config.input_dir, "--input_dir"))
    assert evaluate_mlm(config)["documents"] == corpus.num_documents
    told = f"the {corpus.num_documents} documents of --part all give fewer than --num_samples 400"
    assert told in capsys.readouterr().err
    found = evaluate_mlm(config_of(place, tmp_path / "few.json", num_samples=3))
    assert 0 < found["documents"] <= 3
    assert "--num_samples" not in capsys.readouterr().err


def test_the_command_writes_a_file_and_prints_the_loss(place, tmp_path):
    words = [
        "--model_path",
        place / "whole",
        "--input_dir",
        place / "corpus",
        "--output_file",
        tmp_path / "o",
    ]
    words += ["--part", "all", "--num_samples", 8, "--max_seq_len", LENGTH, "--device", "cpu"]
    done = command("evaluate-mlm", *words)
    assert done.code == 0, done.told
    assert done.said.startswith(f"lm_loss {json.loads((tmp_path / 'o').read_text())['lm_loss']:.4f}")
