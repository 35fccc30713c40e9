"""fill-mask: predictions for [MASK], from every kind of model folder, by command and from Python."""

import io
import json
import sys
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from foreign_weights import write_checkpoints
from package_command import command
from tiny_pretrain import CHARACTERS, VOCAB, write_model

from data_tools.files.errors import CheckpointError, InputError
from data_tools.options.cli import parse_config
from data_tools.text.wordpiece import WordPiece
from ernie_pair import MaskFiller
from ernie_pair.models.source import open_model, write_model_folder
from ernie_pair.models.spec import read_spec
from ernie_pair.pretrain.convert.convert import run_static
from ernie_pair.pretrain.filling.fill_mask import (
    FilledSlot,
    Filling,
    FillMaskConfig,
    _table,
    fill_mask,
    join_tokens,
    parse_masked_text,
)

TEXT = "天地[MASK]黄宇[MASK][MASK]荒"


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """The recipe's two layouts, and the same weights in a folder that from_pretrained can load."""
    folder = tmp_path_factory.mktemp("filling")
    model = write_model(folder / "model")
    weights = write_checkpoints(model, folder)
    (folder / "dynamic").mkdir()
    source = open_model(str(folder / "pickled"), model_type="", from_scratch=False)
    write_model_folder(folder / "dynamic", source, weights)
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


@pytest.mark.parametrize(
    "text, slots",
    [
        ("[MASK]天", [[1]]),
        ("天[MASK][MASK]地", [[2, 3]]),
        ("天[MASK] [MASK]地[MASK]", [[2, 3], [5]]),
        ("[MASK]天[MASK]", [[1], [3]]),
    ],
)
def test_adjacent_masks_form_one_slot(text, slots, theirs):
    tokenizer = WordPiece.from_file(theirs / "model" / "vocab.txt")
    masked = parse_masked_text(text, tokenizer, 40)
    assert [slot.positions for slot in masked.slots] == slots
    assert all(masked.ids[place] == tokenizer.mask_id for slot in slots for place in slot)


def test_tokens_and_small_probabilities_are_shown():
    assert join_tokens(["北", "京"]) == "北京" and join_tokens(["new", "##s"]) == "news"
    assert join_tokens(["new", "york", "的"]) == "new york的" and join_tokens(["天", "##地"]) == "天地"
    likely = [("天", ["天"], [5], 0.98765, "天"), ("地", ["地"], [6], 0.0000456, "地")]
    slot = FilledSlot(0, 6, 1, [Filling(*each) for each in likely])
    lines = _table("[MASK]", [slot]).splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["98.77", "0.0046"]
    assert lines[2].index(" %") == lines[3].index(" %")


def test_stdin_is_read_if_open_and_a_table_is_printed(theirs, monkeypatch, capsys):
    text = io.BytesIO("\ufeff天[MASK]玄\n\n黄[MASK][MASK]\r\n".encode())
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=text, closed=False))
    given = ["--model_name_or_path", str(theirs / "dynamic"), "--text_file", "-", "--top_k", "2"]
    fill_mask(parse_config(FillMaskConfig, [*given, "--device", "cpu"]))
    shown = capsys.readouterr().out
    assert shown.count(" %  ") == 4 and "word 1 (2 masks)" in shown
    assert shown.startswith("天[MASK]玄\n")  # without the byte-order mark
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="text_file -: standard input is closed; give a file"):
        fill_mask(FillMaskConfig("no such model", text_file="-", device="cpu"))


def test_the_command_writes_json_and_a_rerun_does_nothing(theirs, tmp_path):
    (tmp_path / "texts.txt").write_text(f"{TEXT}\n{CHARACTERS[:5]}[MASK]\n", encoding="utf-8")
    words = ["--model_name_or_path", theirs / "dynamic", "--text_file", tmp_path / "texts.txt"]
    words += ["--output", tmp_path / "out.jsonl", "--format", "json", "--device", "cpu"]
    first, again = (command("fill-mask", *words) for _ in range(2))
    assert first.code == 0, first.told
    assert again.code == 0 and "nothing to do" in again.told
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    one, two = map(json.loads, lines)
    assert one["text"] == TEXT and [slot["masks"] for slot in one["slots"]] == [1, 2]
    assert len(two["slots"][0]["fillings"]) == 5
    other = command("fill-mask", *words, "--top_k", 2)
    assert other.code == 2 and "--top_k 5 and not 2" in other.told.strip().splitlines()[-1]


@pytest.mark.parametrize(
    "line, message",
    [
        ("天地", r"texts\.txt:2: no \[MASK\]"),
        ("天" * 50 + "[MASK]", r"texts\.txt:2: 53 tokens.*40 positions"),
    ],
)
def test_a_bad_line_is_reported_and_no_output_is_left(theirs, tmp_path, line, message):
    (tmp_path / "texts.txt").write_text(f"{TEXT}\n{line}\n", encoding="utf-8")
    output = tmp_path / "out.txt"
    given = (str(theirs / "dynamic"), "", str(tmp_path / "texts.txt"), str(output))
    with pytest.raises(InputError, match=message):
        fill_mask(FillMaskConfig(*given, device="cpu"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt"]


@pytest.mark.parametrize(
    "asked, message",
    [
        ({}, "no text is given; pass text"),
        ({"text": "天[MASK]", "text_file": "a"}, "both given"),
        ({"text": "天[MASK]", "top_k": 0}, "top_k=0 is below 1"),
    ],
)
def test_missing_or_invalid_flags_are_refused(filler, asked, message):
    with pytest.raises(InputError, match=message):
        fill_mask(FillMaskConfig("model", **asked))
    for name, value in product(("top_k", "beam_size"), (0, -1)):
        with pytest.raises(InputError, match=f"{name} {value} is below 1"):
            filler.fill(TEXT, **{name: value})


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
    source = open_model(str(tmp_path / "pickled"), model_type="", from_scratch=False)
    filler = MaskFiller(str(tmp_path / "pickled"))
    state = {name: array.numpy() for name, array in filler.model.state_dict().items()}
    (tmp_path / "less").mkdir()
    write_model_folder(
        tmp_path / "less", source, {name: a for name, a in state.items() if "seq_relationship" not in name}
    )
    assert words(MaskFiller(str(tmp_path / "less")), TEXT) == words(filler, TEXT)
