"""Rows of tokens and batches beside plain loops and PaddleNLP's own."""

from dataclasses import replace
from itertools import zip_longest

import numpy as np
import pytest
from paddlenlp.transformers import ErnieTokenizer
from tiny_pair import CHARACTERS, VOCAB, write_model
from tiny_ship import random_texts
from tokenizers import Tokenizer, models, processors

from data_tools.text.wordpiece import WordPiece
from ernie_pair.core.errors import InputError
from ernie_pair.inference import token_rows
from ernie_pair.inference.pair_tokenizer import PairTokenizer
from ernie_pair.inference.scores import ScoreUnit, clip_scores, find_unit
from ernie_pair.inference.token_rows import (
    BatchRules,
    encode_single_texts,
    encode_texts,
    evaluation_batches,
    open_tokenizer,
)
from ernie_pair.models.spec import read_spec

PAIRS = [*random_texts(60, longest=12), ("", "天"), ("天", "")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("rows") / "model")


@pytest.mark.parametrize("length", [0, 40])
def test_a_batch_holds_its_rows_and_padding(model, length):
    tokenizer = WordPiece.from_file(model / "vocab.txt")
    labels = np.arange(len(PAIRS))
    encoded = (
        encode_texts(*zip(*PAIRS), labels, tokenizer, 14),
        encode_single_texts([left for left, _ in PAIRS], tokenizer, 9),
    )
    for rows in encoded:
        picked = np.random.default_rng(0).permutation(len(PAIRS))[:23]
        features, batch = rows.features(picked), rows.batch(picked, length)
        longest = max(length, *(len(row["input_ids"]) for row in features))
        assert batch.input_ids.shape == (23, longest) and batch.input_ids.dtype == np.int64
        for name, pad in (("input_ids", tokenizer.pad_id), ("token_type_ids", 0)):
            padded = list(zip(*zip_longest(*(row[name] for row in features), [0] * longest, fillvalue=pad)))
            assert getattr(batch, name).tolist() == [list(row) for row in padded[:-1]]
        assert rows.labels is None or batch.labels.tolist() == [row["labels"] for row in features]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "rules", [BatchRules(), BatchRules(60), BatchRules(100, 8, True), BatchRules(7)], ids=str
)
def test_evaluation_batches_hold_each_row_within_the_limits(monkeypatch, rules, seed):
    monkeypatch.setattr(token_rows, "WINDOW", 50)
    lengths = np.random.default_rng(seed).integers(3, 30, 117)
    batches = evaluation_batches(lengths, 12, rules)
    assert sorted(np.concatenate(batches)) == list(range(117)) and max(map(len, batches)) <= 12
    ends = np.cumsum(list(map(len, batches)))
    for begin, end in ((0, 50), (50, 100), (100, 117)):  # as if it were the file
        alone = evaluation_batches(lengths[begin:end], 12, rules)
        here = [batch - begin for batch, last in zip(batches, ends) if begin < last <= end]
        assert list(map(list, here)) == list(map(list, alone))
        assert np.all(np.diff(lengths[begin:end][np.concatenate(alone)]) >= 0)
    for batch, after in zip(batches, [*batches[1:], batches[0][:0]]):
        longest = -(-lengths[batch].max() // rules.length_step) * rules.length_step
        limit = rules.most_tokens or 1 << 60
        assert len(batch) == 1 or len(batch) * longest <= limit
        if len(batch) < 12 and batch.max() // 50 == (after.max() // 50 if len(after) else -1):
            assert len(batch) & (len(batch) - 1) == 0  # a power of two, and no greater one fits
            more = np.concatenate([batch, after])[: 2 * len(batch)]
            rounded = -(-lengths[more].max() // rules.length_step) * rules.length_step
            assert len(more) < 2 * len(batch) or len(more) > 12 or len(more) * rounded > limit


def test_the_tokenizer_of_a_folder_is_that_of_paddlenlp(model):
    theirs, ours = ErnieTokenizer.from_pretrained(str(model)), PairTokenizer(model, 12)
    left, right = zip(*PAIRS[:60])
    pairs = [theirs(a, text_pair=b, max_seq_len=12) for a, b in PAIRS[:60]]
    names = ("input_ids", "token_type_ids")
    assert ours(left, right) == {name: [row[name] for row in pairs] for name in names}
    assert [ours(text, max_seq_len=7) for text in left] == [dict(theirs(t, max_seq_len=7)) for t in left]
    ids = list(range(len(VOCAB)))
    assert ours.convert_ids_to_tokens(ids) == theirs.convert_ids_to_tokens(ids) == VOCAB
    assert ours.convert_ids_to_tokens(0) == VOCAB[0] and len(ours) == len(VOCAB)
    assert ours.convert_tokens_to_ids(VOCAB) == [ours.convert_tokens_to_ids(token) for token in VOCAB] == ids
    for wrong in (-1, len(VOCAB)):
        with pytest.raises(InputError, match=f"the id {wrong} is outside .* end at {len(VOCAB) - 1}"):
            ours.convert_ids_to_tokens(wrong)
    with pytest.raises(InputError, match="2 rows above 12 tokens; pass truncation=True"):
        ours(["今" * 9, "今", "今" * 10], ["今", "今", "今"], truncation=False)
    assert len(ours("今" * 8, "今", truncation=False)["input_ids"]) == 12


@pytest.mark.parametrize("pair", PAIRS[:30], ids=len)
def test_what_is_shown_and_cut_is_the_whole_pair(model, pair):
    assert PairTokenizer(model, 9).show(*pair) == PairTokenizer(model).show(*pair, max_seq_len=9)
    found = PairTokenizer(model).show(*pair, max_seq_len=9)
    end = found.tokens.index("[SEP]")
    left, right = found.tokens[1:end], found.tokens[end + 1 : -1]
    assert ["".join([*kept, *cut]) for kept, cut in zip((left, right), found.cut)] == list(pair)
    assert found.token_type_ids == [0] * (end + 1) + [1] * (len(right) + 1)
    head, tokens, ids, segments = repr(found).splitlines()
    count = sum(map(len, found.cut))
    assert head.startswith(f"{len(found.tokens)} tokens, ") and head.count(" token") >= 1 + (count > 0)
    assert (tokens.split()[1:], ids.split()[1:]) == (found.tokens, list(map(str, found.input_ids)))
    assert segments.split()[1:] == list(map(str, found.token_type_ids))


def test_a_tokenizer_without_segments_is_for_single_texts(tmp_path):
    folder = write_model(tmp_path / "model", model_type="bert", vocab_size=6, pad_token_id=1)
    (folder / "vocab.txt").unlink()
    words = ["<unk>", "<pad>", "<s>", "</s>", *CHARACTERS[:2]]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, "<unk>"))
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    made.save(str(folder / "tokenizer.json"))
    spec = read_spec(folder / "config.json", folder / "tokenizer.json")
    assert open_tokenizer(folder / "tokenizer.json", spec, 128, of_pairs=False).vocab_size == 6
    with pytest.raises(InputError, match="has 6 tokens, its model takes 5; give the vocabulary of this"):
        open_tokenizer(folder / "tokenizer.json", replace(spec, vocab_size=5), 40, of_pairs=False)
    with pytest.raises(InputError, match="it gives both texts of a pair one token type"):
        open_tokenizer(folder / "tokenizer.json", spec, 40)
    assert open_tokenizer(folder / "tokenizer.json", replace(spec, token_types=1), 40).vocab_size == 6
    with pytest.raises(InputError, match="max_seq_len=129 is more than the model's 128 positions; use 128"):
        open_tokenizer(folder / "tokenizer.json", spec, 129, of_pairs=False)


def test_scores_stay_in_the_range_of_their_unit():
    outputs = np.arange(-3, 9, dtype=np.float32)[:, None]
    assert clip_scores(outputs, None).tolist() == outputs[:, 0].tolist()
    assert clip_scores(outputs, (0.0, 5.0)).tolist() == outputs[:, 0].clip(0, 5).tolist()
    assert find_unit(True, None) == ScoreUnit("a probability", 0, 1)
    assert find_unit(False, (0.0, 5.0))[1:] == (0, 5) and find_unit(False, None)[1:] == (None, None)
    for threshold in (None, 0.0, 5.0):
        find_unit(False, (0.0, 5.0)).check_inside(threshold)
    for threshold in (-0.1, 5.1):
        with pytest.raises(InputError, match=f"threshold={threshold} is .*: it is a score of the model"):
            find_unit(False, (0.0, 5.0)).check_inside(threshold)
