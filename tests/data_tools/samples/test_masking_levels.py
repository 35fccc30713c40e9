"""Characters, phrases and entities: marked by a lexicon, carried to the samples, drawn by their weights."""

import json
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from masking_cases import compiled, random_case, rule
from tiny_corpus import lines_of, make

from data_tools import dataset_utils
from data_tools.corpus.format import Corpus, marks_path
from data_tools.corpus.mixture import Blend, BlendedDataset
from data_tools.dataset_utils import (
    Draws,
    create_masked_lm_predictions,
    draw_order,
    hide_words,
    word_spans,
    word_weights,
)
from data_tools.ernie_dataset import ErnieDataset, join_segments
from data_tools.samples.mask_report import count_levels
from data_tools.samples.masking import MaskingFlags
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.keyed_cache import keyed_rng

WORDS = {"chinese": True, "cn_whole_word_segment": True, "cn_splited": True}
MARKED = {"mark_levels": np.array([0, 2, 0]), "mark_weights": np.array([1.0, 5.0, 0.0])}
# [CLS] 中 文a 京b [SEP]: a character, a phrase, an entity of mark 1
TEXT, MARKS = np.array([1, 10, 11, 112, 13, 114, 2]), np.array([0, 0, 0, 0, 1, 1, 0], np.uint8)


# The weight of a word.


def test_a_words_level_comes_from_its_mark_or_its_length():
    weighed = rule(level_weights=(2.0, 3.0, 7.0), **MARKED)
    assert word_weights(TEXT, weighed, MARKS).tolist() == [0, 2, 3, 0, 35, 0, 0]
    assert word_weights(TEXT, weighed, None).tolist() == [0, 2, 3, 0, 3, 0, 0]


def test_without_whole_words_an_unmarked_token_is_a_character():
    weighed = rule(level_weights=(2.0, 3.0, 7.0), whole_word_mask=False, **MARKED)
    assert word_weights(TEXT, weighed, MARKS).tolist() == [0, 2, 2, 2, 35, 35, 0]


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (0.3, 0.3, 0.3)])
@pytest.mark.parametrize("marks", [None, MARKS])
def test_equal_level_weights_leave_the_samples_unchanged(weights, marks):
    even = rule(level_weights=weights, mark_levels=np.array([0, 2]), mark_weights=np.ones(2))
    plain = keyed_rng(7, 3)
    draws = Draws(plain.permutation(len(TEXT)), plain.random((3, len(TEXT))))
    masked = create_masked_lm_predictions(TEXT, even, keyed_rng(7, 3), marks)
    assert all(map(np.array_equal, masked, hide_words(TEXT, even, draws, 1)))


def firsts(weighed, tokens, marks, draws=3000):
    """The share of draws in which the word that begins at each token comes first."""
    counts, starts = np.zeros(len(tokens)), set(word_spans(tokens, weighed)[0].tolist())
    for index in range(draws):
        order = draw_order(tokens, weighed, keyed_rng(1, index), marks).tolist()
        assert sorted(order) == list(range(len(tokens)))
        counts[next(token for token in order if token in starts)] += 1
    return counts / draws


def test_the_first_word_is_drawn_in_proportion_to_its_weight():
    shares = firsts(rule(level_weights=(2.0, 3.0, 1.0), **MARKED), TEXT, MARKS)
    assert np.allclose(shares, [0, 0.2, 0.3, 0, 0.5, 0, 0], atol=0.03)


def test_the_second_word_is_drawn_by_weight_among_the_others():
    weighed = rule(level_weights=(2.0, 3.0, 1.0), **MARKED)
    orders = [draw_order(TEXT, weighed, keyed_rng(1, index), MARKS).tolist() for index in range(4000)]
    pairs = [[token for token in order if token in (1, 2, 4)][:2] for order in orders]
    after_the_entity = [second for first, second in pairs if first == 4]
    assert abs(np.mean(np.array(after_the_entity) == 2) - 0.6) < 0.03


def test_words_of_weight_0_come_last_in_random_order():
    tokens = join_segments(np.arange(10, 40), None, 1, 2)[0]
    marks = np.where(np.arange(len(tokens)) % 3 == 1, 1, 2).astype(np.uint8)
    weighed = rule(masked_lm_prob=0.3, max_ngrams=1, **MARKED)
    heavy, lasts = set(np.flatnonzero(marks == 1).tolist()), set()
    for index in range(50):
        positions = create_masked_lm_predictions(tokens, weighed, keyed_rng(2, index), marks).positions
        assert len(positions) == 10 and set(positions.tolist()) <= heavy
        more = create_masked_lm_predictions(
            tokens, rule(masked_lm_prob=0.4, max_ngrams=1, **MARKED), keyed_rng(2, index), marks
        ).positions
        assert len(more) == 13 and heavy - {0, 31} <= set(more.tolist())
        lasts.add(tuple(set(more.tolist()) - heavy))
    assert len(lasts) > 20


def test_all_zero_weights_still_mask_the_full_budget():
    nothing = rule(level_weights=(0.0, 0.0, 1.0))
    tokens = join_segments(np.arange(10, 50), None, 1, 2)[0]
    assert len(create_masked_lm_predictions(tokens, nothing, keyed_rng(3, 0)).positions) == 6


@pytest.mark.parametrize("weights", [(1e300, 1e-300, 1.0), (5e-324, 1.0, 1e308)])
def test_extreme_weights_still_give_a_complete_order(weights):
    extreme = rule(level_weights=weights, mark_levels=np.array([0, 2]), mark_weights=np.array([1.0, 1e308]))
    order = draw_order(TEXT, extreme, keyed_rng(1, 1), MARKS)
    assert sorted(order.tolist()) == list(range(len(TEXT)))


@compiled
@pytest.mark.parametrize("first", range(0, 600, 100))
def test_compiled_masks_equal_python_masks_for_all_levels(first, monkeypatch):
    built = dataset_utils.compiled_hide_words
    for seed in range(first, first + 100):
        tokens, options, _, _ = random_case(seed)
        rng = np.random.default_rng(seed)
        changes = {
            **{name: getattr(options, name) for name in ("masked_lm_prob", "max_ngrams", "random_ids")},
            **{name: getattr(options, name) for name in ("geometric", "favor_longer_ngram")},
            "whole_word_mask": options.whole_word_mask,
            "level_weights": tuple(rng.choice([0.0, 0.5, 1.0, 3.0], 3).tolist()),
            "mark_levels": np.concatenate([[0], rng.integers(0, 3, 4)]),
            "mark_weights": np.concatenate([[1], rng.choice([0.0, 1.0, 2.5], 4)]),
        }
        marks = rng.integers(0, 5, len(tokens)).astype(np.uint8) if seed % 4 else None
        answers = []
        for hide in (built, None):
            monkeypatch.setattr(dataset_utils, "compiled_hide_words", hide)
            answers.append(create_masked_lm_predictions(tokens, rule(**changes), keyed_rng(seed, 1), marks))
        for one, other in zip(*answers):
            assert one.dtype == other.dtype == np.int64 and np.array_equal(one, other), seed


# From the lexicon to the corpus.


def lexicon(folder, content="北京\tentity\t5\n天安门\nb\tcharacter\t0\n学习\tcharacter\t0\n"):
    (folder / "words.txt").write_text(content, encoding="utf-8")
    return {"user_lexicon": str(folder / "words.txt"), **WORDS}


def test_every_token_of_a_lexicon_word_is_marked(tmp_path, vocab_file):
    made = make(tmp_path, lines_of("我爱 北京。天安 门ok", "b 学习", "我"), **lexicon(tmp_path))
    assert made == [["我 ##爱 北 ##京 。", "天 ##安 ##门 ok"], ["b 学 习"], ["我"]]
    corpus = Corpus(tmp_path / "out", verify="full")
    assert corpus.marks.tolist() == [0, 0, 1, 1, 0, 2, 2, 2, 0, 3, 3, 3, 0] and corpus.marks.dtype == np.uint8
    assert corpus.lexicon_marks == [
        {"kind": "entity", "weight": 5.0},
        {"kind": "phrase", "weight": 1.0},
        {"kind": "character", "weight": 0.0},
    ]
    assert set(corpus.manifest["sha256"]) == set(corpus.manifest["bytes"]) == {"ids", "index", "marks"}
    with pytest.raises(ValueError, match="read-only"):
        corpus.marks[0] = 1


def test_a_long_sentence_keeps_its_marks_when_it_is_cut(tmp_path, vocab_file):
    make(tmp_path, lines_of("我 爱 北京 天安门 学"), max_sentence_length=3, **lexicon(tmp_path))
    corpus = Corpus(tmp_path / "out")
    assert corpus.lens.tolist() == [2, 2, 3, 1]
    assert corpus.marks.tolist() == [0, 0, 1, 1, 2, 2, 2, 0]


def test_without_a_lexicon_overwriting_removes_the_old_marks(tmp_path, vocab_file):
    make(tmp_path, lines_of("我爱 北京"), **lexicon(tmp_path))
    assert marks_path(tmp_path / "out").exists()
    with pytest.raises(InputError, match="exists; pass overwrite"):
        make(tmp_path, lines_of("我爱 北京"), **WORDS)
    make(tmp_path, lines_of("我爱 北京"), overwrite=True, **WORDS)
    corpus = Corpus(tmp_path / "out", verify="full")
    assert corpus.marks is None and corpus.lexicon_marks == [] and not marks_path(tmp_path / "out").exists()


def test_kinds_and_weights_change_the_fingerprint_not_the_ids(tmp_path, vocab_file):
    prints, ids = [], []
    for number, content in enumerate(("北京\tentity\t5", "北京\tentity\t2", "北京\tphrase\t5")):
        flags = lexicon(tmp_path, content)
        make(tmp_path, lines_of("我爱 北京"), output_prefix=str(tmp_path / f"out{number}"), **flags)
        prints.append(Corpus(tmp_path / f"out{number}").fingerprint)
        ids.append((tmp_path / f"out{number}_ids.npy").read_bytes())
    assert len(set(prints)) == 3 and len(set(ids)) == 1


def damaged(tmp_path, change):
    make(tmp_path, lines_of("我爱 北京。天安门"), **lexicon(tmp_path))
    change(marks_path(tmp_path / "out"))
    return tmp_path / "out"


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-1])


def replace_by(values):
    def change(path):
        np.save(path, values)
        manifest = path.with_name("out.manifest.json")
        about = json.loads(manifest.read_text(encoding="utf-8"))
        about["bytes"]["marks"] = path.stat().st_size
        manifest.write_text(json.dumps(about), encoding="utf-8")

    return change


@pytest.mark.parametrize(("change", "message"), [
    (cut_short, r"out_marks\.npy is not the file that .*manifest.json describes"),
    (lambda path: path.unlink(), r"out_marks\.npy: no such file"),
    (lambda path: path.with_name("out.manifest.json").unlink(), r"out_marks\.npy has no manifest"),
    (replace_by(np.zeros(3, np.uint8)), r"out_marks\.npy: 3 marks for 8 tokens"),
    (replace_by(np.zeros(8, np.int64)), r"out_marks\.npy: holds no 1-D uint8 marks"),
])  # fmt: skip
def test_marks_that_do_not_match_the_corpus_are_refused(tmp_path, vocab_file, change, message):
    with pytest.raises(InputError, match=message):
        Corpus(damaged(tmp_path, change))


def test_a_flipped_bit_of_the_marks_is_found_by_the_full_check(tmp_path, vocab_file):
    def flip(path):
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)

    prefix = damaged(tmp_path, flip)
    with pytest.raises(InputError, match=r"out_marks\.npy is not the file"):
        Corpus(prefix, verify="full")


@pytest.mark.parametrize(
    "marks", [[], 7, "ab", [{"kind": "place", "weight": 1}], [{"kind": "entity", "weight": -1}], [{}]]
)
def test_a_manifest_with_invalid_marks_is_refused(tmp_path, vocab_file, marks):
    def change(path):
        manifest = path.with_name("out.manifest.json")
        about = {**json.loads(manifest.read_text(encoding="utf-8")), "lexicon_marks": marks}
        manifest.write_text(json.dumps(about), encoding="utf-8")

    with pytest.raises(InputError, match=r"out\.manifest\.json: not a manifest"):
        Corpus(damaged(tmp_path, change))


# From the corpus to the sample.


def marked_corpus(marks=True, table=((2, 5.0), (0, 0.0))):
    """Sentences in which a token's id decides its mark: 10..109 have none, 110..139 mark 1, others mark 2."""
    rng = np.random.default_rng(0)
    lens = rng.integers(1, 9, 40)
    ids = rng.integers(10, 210, lens.sum()).astype(np.uint16)
    listed = [{"kind": dataset_utils.LEVELS[level], "weight": weight} for level, weight in table]
    return SimpleNamespace(
        ids=ids,
        starts=np.concatenate([[0], np.cumsum(lens)]),
        marks=marks_by_id(ids).astype(np.uint8) if marks else None,
        lexicon_marks=listed if marks else [],
    )


def marks_by_id(ids):
    return np.where(ids < 110, 0, np.where(ids < 140, 1, 2))


ROWS = np.array([[first, first + 8, 20] for first in range(32)])


@pytest.mark.parametrize("binary_head", [True, False])
def test_marks_follow_their_tokens_through_cuts_and_swaps(binary_head):
    dataset = ErnieDataset(marked_corpus(), ROWS, rule(), seed=3, binary_head=binary_head)
    texts = [dataset.text(number) for number in range(len(ROWS))]
    for text in texts:
        assert np.array_equal(text.marks, marks_by_id(text.tokens)) and text.marks.dtype == np.uint8
    assert {text.sop_label for text in texts} == ({0, 1} if binary_head else {-1})
    assert min(len(text.tokens) for text in texts) <= 23


def test_the_segments_of_a_sample_do_not_depend_on_marks():
    marked, plain = (ErnieDataset(marked_corpus(marks), ROWS, rule(), seed=3) for marks in (True, False))
    for number in range(len(ROWS)):
        assert np.array_equal(marked.text(number).tokens, plain.text(number).tokens)
    assert plain.text(0).marks is None


def test_heavy_entities_are_masked_more_at_the_same_mask_rate():
    even = ErnieDataset(marked_corpus(table=((2, 1.0), (2, 1.0))), ROWS, rule(max_ngrams=1), seed=3)
    heavy = ErnieDataset(marked_corpus(table=((2, 20.0), (2, 20.0))), ROWS, rule(max_ngrams=1), seed=3)
    counts = [
        sum(count_levels(d.text(n), d[n].masked_positions, d.rule)[0] for n in range(len(ROWS)))
        for d in (even, heavy)
    ]
    assert counts[1][2] > 1.3 * counts[0][2] and abs(counts[1].sum() / counts[0].sum() - 1) < 0.15


def test_a_blend_reads_each_corpus_by_its_own_mark_table():
    parts = [
        ErnieDataset(corpus, ROWS, rule(), seed=3)
        for corpus in (marked_corpus(), marked_corpus(False), marked_corpus(table=((1, 2.0), (2, 3.0))))
    ]
    blended = BlendedDataset(parts, Blend([1, 1, 1]))
    assert [part.rule.mark_weights.tolist() for part in parts] == [[1, 5, 0], [1], [1, 2, 3]]
    assert [part.rule.mark_levels.tolist() for part in parts] == [[0, 2, 0], [0], [0, 1, 2]]
    for number in range(30):
        corpus, own = blended.blend.locate(number)
        assert np.array_equal(blended[number].masked_positions, parts[int(corpus)][int(own)].masked_positions)


def test_marks_survive_pickling_to_a_loader_process(tmp_path, vocab_file):
    make(tmp_path, lines_of("我爱 北京。天安门"), **lexicon(tmp_path))
    corpus = Corpus(tmp_path / "out")
    assert np.array_equal(pickle.loads(pickle.dumps(corpus)).marks, corpus.marks)


def test_a_masking_function_gets_the_marks():
    seen = []

    def masking_fn(tokens, rule, rng, marks):
        seen.append(marks)
        return create_masked_lm_predictions(tokens, rule, rng, marks)

    dataset = ErnieDataset(marked_corpus(), ROWS, rule(), seed=3, masking_fn=masking_fn)
    assert len(dataset[4].masked_positions) and np.array_equal(seen[0], dataset.text(4).marks)


def test_levels_are_counted_by_token():
    text = SimpleNamespace(tokens=TEXT, marks=MARKS)
    counts = count_levels(text, np.array([2, 3, 5]), rule(**MARKED))
    assert counts.tolist() == [[0, 2, 1], [1, 2, 2]]


# The flag.


def test_level_weights_are_three_numbers():
    assert MaskingFlags(level_weights=" 0 0.5  4").rule_settings()["level_weights"] == (0.0, 0.5, 4.0)
    assert MaskingFlags().rule_settings()["level_weights"] == (1.0, 1.0, 1.0)
