"""fill-mask and evaluate-mlm: predictions for [MASK] of any model folder, and their loss on held-out text."""

import io
import json
import sys
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from children import command
from foreign_weights import write_checkpoints
from scipy import stats
from scipy.special import log_softmax
from tiny_pretrain import CHARACTERS, VOCAB, write_corpus, write_model

from data_tools.corpus.format import find_corpus, open_corpus
from data_tools.text.wordpiece import WordPiece
from ernie_pair import EvaluateMlmConfig, MaskFiller, evaluate_mlm
from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.experiments.compare_starts import domain_loss
from ernie_pair.models.source import open_model, write_model_folder
from ernie_pair.models.spec import read_spec
from ernie_pair.pretraining.convert.convert import run_static
from ernie_pair.pretraining.mlm import evaluate_mlm as masked_loss
from ernie_pair.pretraining.mlm.evaluate_mlm import measure_masked_loss
from ernie_pair.pretraining.mlm.fill_mask import (
    FilledSlot,
    Filling,
    FillMaskConfig,
    _format_table,
    fill_mask,
    join_tokens,
    parse_masked_text,
)

TEXT = "天地[MASK]黄宇[MASK][MASK]荒"


def write_models(folder, **models):
    """Write {name: weights} below ``folder`` for the model of its "pickled"."""
    source = open_model(str(folder / "pickled"), model_type="", from_scratch=False)
    for name, weights in models.items():
        (folder / name).mkdir()
        write_model_folder(folder / name, source, weights)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """The recipe's two layouts, and the same weights in a folder that from_pretrained can load."""
    folder = tmp_path_factory.mktemp("filling")
    write_models(folder, dynamic=write_checkpoints(write_model(folder / "model"), folder))
    return folder


@pytest.fixture(scope="module")
def filler(theirs):
    return MaskFiller(str(theirs / "dynamic"), "cpu")


def words(filler, text, **asked):
    return [[(one.word, one.probability) for one in slot.fillings] for slot in filler.fill(text, **asked)]


@pytest.mark.parametrize("kind", ["pickled", "single"])
def test_recipe_checkpoints_predict_the_same_as_the_folder(theirs, filler, kind):
    assert words(MaskFiller(str(theirs / kind), "cpu"), TEXT) == words(filler, TEXT)


def test_probabilities_match_the_static_model(theirs, filler):
    text = "天地[MASK]黄宇"
    masked = parse_masked_text(text, filler.tokenizer, 40)
    ids = np.array([masked.ids], np.int64)
    spec = read_spec(theirs / "model" / "config.json", theirs / "model" / "vocab.txt")
    found = open_model(str(theirs / "pickled"), model_type="", from_scratch=False).read_weights()
    batches = {"one": {"input_ids": ids, "token_type_ids": np.zeros_like(ids)}}
    _, outputs = run_static(spec, found, "there", batches)
    logits = outputs["one"]["lm_logits"][0, masked.slots[0].positions[0]].astype(np.float64)
    expected = np.exp(logits) / np.exp(logits).sum()
    (slot,) = filler.fill(text, top_k=len(VOCAB))
    assert len(slot.fillings) == len(VOCAB) - 4  # [PAD], [CLS], [SEP] and [MASK] are never predicted
    for each in slot.fillings:
        assert each.probability == pytest.approx(expected[each.ids[0]], rel=1e-4)
    order = [each.probability for each in slot.fillings]
    assert order == sorted(order, reverse=True)


def test_probabilities_of_large_logits_are_those_of_scipy(filler, monkeypatch):
    logits = np.random.default_rng(0).normal(size=(1, len(VOCAB))).astype(np.float32) * 3000
    monkeypatch.setattr(filler, "model", lambda **fed: (paddle.to_tensor(logits),))
    wanted = log_softmax(logits.astype(np.float64), axis=1)[0]
    (slot,) = filler.fill("天[MASK]", top_k=2)
    assert [one.ids[0] for one in slot.fillings] == np.argsort(-wanted)[:2].tolist()
    assert [one.probability for one in slot.fillings] == pytest.approx(np.sort(np.exp(wanted))[:-3:-1])


def test_a_full_width_beam_finds_the_best_word(filler):
    """A two-mask word, checked against the probabilities of all pairs of tokens in the vocabulary."""
    text = "天地[MASK][MASK]宇"
    (first,) = filler.fill("天地[MASK][MASK]宇", top_k=len(VOCAB), beam_size=len(VOCAB))[:1]
    everything = filler.fill(text, top_k=len(VOCAB) ** 2, beam_size=len(VOCAB))[0].fillings
    assert len(everything) == (len(VOCAB) - 4) ** 2
    assert sum(each.probability for each in everything) <= 1 + 1e-6
    by_ids = {tuple(each.ids): each.probability for each in everything}
    assert len(by_ids) == len(everything)
    best = max(by_ids, key=by_ids.__getitem__)
    assert tuple(first.fillings[0].ids) == best
    greedy = filler.fill(text, top_k=1, beam_size=1)[0].fillings[0]
    left = {}
    for (one, _), probability in by_ids.items():
        left[one] = left.get(one, 0.0) + probability
    assert greedy.ids[0] == max(left, key=left.__getitem__)
    assert greedy.probability == pytest.approx(by_ids[tuple(greedy.ids)], rel=1e-5)


def test_slots_are_filled_independently_and_shown_in_the_text(filler):
    one, two = filler.fill(TEXT, top_k=3)
    assert (one.masks, two.masks) == (1, 2) and TEXT[two.start : two.end] == "[MASK][MASK]"
    for each in two.fillings:
        assert each.filled == f"天地[MASK]黄宇{each.word}荒" and len(each.tokens) == len(each.ids) == 2


@pytest.mark.parametrize("text, slots", [
    ("[MASK]天", [[1]]),
    ("天[MASK][MASK]地", [[2, 3]]),
    ("天[MASK] [MASK]地[MASK]", [[2, 3], [5]]),
    ("[MASK]天[MASK]", [[1], [3]]),
])  # fmt: skip
def test_adjacent_masks_form_one_slot(text, slots, theirs):
    tokenizer = WordPiece.from_file(theirs / "model" / "vocab.txt")
    masked = parse_masked_text(text, tokenizer, 40)
    assert [slot.positions for slot in masked.slots] == slots
    assert all(masked.ids[place] == tokenizer.mask_id for slot in slots for place in slot)


def test_tokens_and_small_probabilities_are_shown():
    assert join_tokens(["北", "京"]) == "北京" and join_tokens(["new", "##s"]) == "news"
    assert (
        join_tokens(["new", "york", "的"]) == "new york的"
        and join_tokens(["new", "a的"]) == "new a的"
        and join_tokens(["天", "##地"]) == "天地"
    )
    likely = [("天", ["天"], [5], 0.98765, "天"), ("地", ["地"], [6], 0.0000456, "地")]
    slot = FilledSlot(0, 6, 1, [Filling(*each) for each in likely])
    lines = _format_table("[MASK]", [slot]).splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["98.77", "0.0046"]
    assert lines[2].index(" %") == lines[3].index(" %")


def test_stdin_is_read_if_open_and_a_table_is_printed(theirs, monkeypatch, capsys):
    text = io.BytesIO("\ufeff天[MASK]玄\n\n黄[MASK][MASK]\r\n".encode())
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=text, closed=False))
    given = ["--model_path", str(theirs / "dynamic"), "--input_file", "-", "--top_k", "2"]
    fill_mask(parse_config(FillMaskConfig, [*given, "--device", "cpu"]))
    shown = capsys.readouterr().out
    assert shown.count(" %  ") == 4 and "word 1 (2 masks)" in shown
    assert shown.startswith("天[MASK]玄\n")  # without the byte-order mark
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="input_file -: standard input is closed; give a file"):
        fill_mask(FillMaskConfig("no such model", input_file="-", device="cpu"))


def test_the_command_writes_json_and_a_rerun_does_nothing(theirs, tmp_path):
    (tmp_path / "texts.txt").write_text(f"{TEXT}\n{CHARACTERS[:5]}[MASK]\n", encoding="utf-8")
    words = ["--model_path", theirs / "dynamic", "--input_file", tmp_path / "texts.txt"]
    words += ["--output_file", tmp_path / "out.jsonl", "--format", "json", "--device", "cpu"]
    first, again = (command("predict", "mlm", *words) for _ in range(2))
    assert first.code == 0, first.told
    assert again.code == 0 and "nothing to do" in again.told
    assert first.said == f"wrote {tmp_path / 'out.jsonl'}\n"
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    one, two = map(json.loads, lines)
    assert one["text"] == TEXT and [slot["masks"] for slot in one["slots"]] == [1, 2]
    assert len(two["slots"][0]["fillings"]) == 5
    other = command("predict", "mlm", *words, "--top_k", 2)
    assert other.code == 2 and "--top_k 5 and not 2" in other.told.strip().splitlines()[-1]


@pytest.mark.parametrize("line, message", [
    ("天地", r"texts\.txt:2: no \[MASK\]"),
    ("天" * 50 + "[MASK]", r"texts\.txt:2: 53 tokens.*40 positions"),
])  # fmt: skip
def test_a_bad_line_is_reported_and_no_output_is_left(theirs, tmp_path, line, message):
    (tmp_path / "texts.txt").write_text(f"{TEXT}\n{line}\n", encoding="utf-8")
    output = tmp_path / "out.txt"
    given = (str(theirs / "dynamic"), "", str(tmp_path / "texts.txt"), str(output))
    with pytest.raises(InputError, match=message):
        fill_mask(FillMaskConfig(*given, device="cpu"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt"]


def test_models_without_head_or_weights_are_refused(theirs, tmp_path):
    source = open_model(str(theirs / "pickled"), model_type="", from_scratch=False)
    weights = {
        n: a for n, a in MaskFiller(str(theirs / "single")).model.state_dict().items() if "cls" not in n
    }
    write_model_folder(tmp_path, source, {name: array.numpy() for name, array in weights.items()})
    with pytest.raises(CheckpointError, match=r"holds no cls\.predictions\.\*"):
        MaskFiller(str(tmp_path))
    folder = write_model(tmp_path / "bare")
    with pytest.raises(InputError, match="holds no weights .*; add them, or give another model$") as caught:
        MaskFiller(str(folder), "cpu")
    assert "scratch" not in caught.value.message


def test_ernie_gram_fills_masks_with_or_without_the_sop_head(theirs, tmp_path):
    model = write_model(tmp_path / "model", model_type="ernie_gram", rel_pos_size=8, embedding_size=32)
    write_checkpoints(model, tmp_path)
    filler = MaskFiller(str(tmp_path / "pickled"))
    state = {name: array.numpy() for name, array in filler.model.state_dict().items()}
    write_models(tmp_path, less={name: a for name, a in state.items() if "seq_relationship" not in name})
    assert words(MaskFiller(str(tmp_path / "less")), TEXT) == words(filler, TEXT)


# --- the masked-LM loss of a pretrained model on held-out text


SAMPLES, LENGTH = 40, 32


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the corpus and a model: complete, without the sentence-order head, and without heads."""
    folder = tmp_path_factory.mktemp("evaluate_mlm")
    model = write_model(folder / "model")
    weights = write_checkpoints(model, folder)
    no_order = {name: w for name, w in weights.items() if not name.startswith("cls.seq_relationship")}
    no_head = {name: w for name, w in weights.items() if not name.startswith("cls.")}
    write_models(folder, whole=weights, no_order=no_order, no_head=no_head)
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


def test_sop_metrics_are_omitted_when_unavailable(place, tmp_path):
    without_head = evaluate_mlm(config_of(place, tmp_path / "a", model="no_order"))
    of_one_segment = evaluate_mlm(config_of(place, tmp_path / "b", binary_head=False))
    for found in (without_head, of_one_segment):
        assert not [name for name in found if name.startswith("sop_")]
    assert without_head["masked_tokens"] != of_one_segment["masked_tokens"]


class MadeUpSample:
    """A sample of eight tokens, the first ``count`` of them masked; ``order``: the label of its order."""

    def __init__(self, count, order=0):
        self.input_ids = np.arange(8)
        self.token_type_ids = np.zeros(8, int)
        self.masked_positions = np.arange(count)
        self.masked_labels = np.zeros(count, int)
        self.sop_label, self.ngram_labels, self.decoder_mask = order, None, None


def with_first_logit(value):
    """A model that predicts uniformly, but for one logit of the first masked token."""

    def model(input_ids, token_type_ids, masked_positions):
        logits = np.zeros((len(masked_positions), 4), np.float32)
        logits[:1, 0] = value
        return paddle.to_tensor(logits), paddle.zeros([len(input_ids), 2])

    return model


def test_the_loss_is_over_tokens_finite_and_of_some(monkeypatch):
    """A model that is certain of one token and predicts the others uniformly."""
    samples = [MadeUpSample(1, 1), MadeUpSample(3), MadeUpSample(1, -1), MadeUpSample(1), MadeUpSample(0)]
    found = measure_masked_loss(with_first_logit(100.0), samples, 0, 8, 5, 5)
    assert found["lm_loss"] == pytest.approx(5 * np.log(4) / 6)
    assert (found["masked_tokens"], found["samples"], found["lm_accuracy"]) == (6, 5, 1)
    # One sample has no order, and 0 of two equal logits is predicted.
    assert found["sop_accuracy"] == 3 / 4 and found["sop_loss"] == pytest.approx(np.log(2))
    with pytest.raises(InputError, match="no token of the 2 samples is masked, so there is no loss"):
        measure_masked_loss(with_first_logit(0.0), [MadeUpSample(0)] * 2, 0, 8, 2, 5)
    # Paddle caps the loss of a token on a CPU, but not on a GPU
    monkeypatch.setattr(masked_loss, "_sum_samples", lambda model, batch: np.array([[1000.0, 0, 1, 0, 0, 0]]))
    found = measure_masked_loss(None, [MadeUpSample(1)], 0, 8, 2, 5)
    assert found["lm_loss"] == 1000 and np.isfinite(found["perplexity"])


def interval_of(losses, documents):
    """The interval of samples of one masked token each, whose losses are given."""
    sums = np.array([[loss, 0, 1, 0, 0, 0] for loss in losses], float)
    return masked_loss._bootstrap_interval(sums, np.array(documents), 4000)


def test_the_interval_matches_the_bootstrap_of_scipy():
    losses = np.random.default_rng(0).exponential(size=60)
    wanted = stats.bootstrap((losses,), np.mean, n_resamples=9999, method="percentile").confidence_interval
    assert interval_of(losses, range(60)) == pytest.approx(list(wanted), abs=(wanted.high - wanted.low) / 20)


def test_the_interval_is_over_documents_not_samples():
    """Ten copies of two documents say no more than the two do."""
    two = interval_of([1.0, 3.0], [0, 1])
    assert interval_of([1.0, 3.0] * 10, [4, 9] * 10) == pytest.approx(two)
    low, high = interval_of([1.0, 3.0] * 10, range(20))
    assert two[0] < low < high < two[1]
