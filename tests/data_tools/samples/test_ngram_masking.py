"""Explicitly masked n-grams: the longest are found, each is one symbol, and unmasking restores the text."""

from types import SimpleNamespace

import numpy as np
import pytest
from masking_cases import GOES_ON, PLAIN_OF, rule

from data_tools.ernie_dataset import ErnieDataset
from data_tools.samples.mask_report import marked_text
from data_tools.samples.masking import hide_ngrams
from data_tools.samples.split_datasets import collate
from data_tools.text.ngrams import HEAD, NgramLexicon, NgramTokens, read_ngrams
from data_tools.text.wordpiece import WordPiece
from ernie_pair.core.errors import InputError

CLS, SEP, MASK = 1, 2, 3
# Only tokens 10 to 19, so that their n-grams are frequent; 110 to 119 are twins; 19 continues a word.
USED = np.array([*range(10, 20), *range(110, 119)])
CONTINUES = np.arange(210) == 19
TOKENS = NgramTokens(PLAIN_OF, CONTINUES, np.arange(210) > 9)


def lexicon(seed=0, size=60):
    rng = np.random.default_rng(seed)
    drawn = {tuple(rng.integers(10, 20, rng.integers(2, 5)).tolist()) for _ in range(size)}
    return NgramLexicon(sorted(drawn, key=lambda ngram: (len(ngram), ngram)), TOKENS)


def text(seed):
    rng = np.random.default_rng(seed)
    first, second = (USED[rng.integers(0, len(USED), rng.integers(1, 40))] for _ in range(2))
    return np.array([CLS, *first, SEP, *second, SEP])


def longest_by_hand(tokens, ngrams):
    """[(start, end, number)], by a simple scan from left to right."""
    plain, found, at = PLAIN_OF[tokens].tolist(), [], 0
    known = {ngram: number for number, ngram in enumerate(ngrams)}
    while at < len(plain):
        ends = [at + n for n in (4, 3, 2) if tuple(plain[at : at + n]) in known]
        ends = [end for end in ends if plain[at] != 19 and (end == len(plain) or plain[end] != 19)]
        if ends:
            found.append((at, ends[0], known[tuple(plain[at : ends[0]])]))
        at = ends[0] if ends else at + 1
    return found


@pytest.mark.parametrize("seed", range(30))
def test_the_longest_ngram_at_each_place_is_found(seed):
    ours, tokens = lexicon(seed), text(seed)
    found = ours.find(tokens)
    assert list(zip(*(part.tolist() for part in found))) == longest_by_hand(tokens, ours.ngrams)


def unmasked(hidden, ngrams):
    """The tokens with the labels in place of what is masked."""
    labels = dict(zip(hidden.positions.tolist(), zip(hidden.labels.tolist(), hidden.ngram_labels.tolist())))
    tokens = []
    for place, shown in enumerate(hidden.ids.tolist()):
        token, ngram = labels.get(place, (shown, -1))
        tokens += [token] if ngram < 0 else ngrams[ngram]
    return tokens


@pytest.mark.parametrize("seed", range(60))
def test_labels_restore_the_text(seed):
    ours, tokens, options = lexicon(seed), text(seed), rule(masked_lm_prob=0.3, whole_word_mask=seed % 3 > 0)
    hidden = hide_ngrams(tokens, options, ours, np.random.default_rng(seed))
    assert unmasked(hidden, ours.ngrams) == PLAIN_OF[tokens].tolist()
    is_ngram = hidden.ngram_labels >= 0
    assert (is_ngram != (hidden.labels >= 0)).all() and (np.diff(hidden.positions) > 0).all()
    assert (hidden.ids[hidden.positions][is_ngram] == MASK).all()
    lengths = [len(ours.ngrams[number]) for number in hidden.ngram_labels[is_ngram]]
    assert len(hidden.ids) == len(hidden.kept) == len(tokens) - sum(lengths) + len(lengths)
    covered = sum(lengths) + (~is_ngram).sum()
    assert 0 < covered <= max(max([*lengths, 1]), round(0.3 * len(tokens)), 1)
    whole = {(start, number) for start, _, number in longest_by_hand(tokens, ours.ngrams)}
    starts = hidden.kept[hidden.positions][is_ngram].tolist()
    assert whole.issuperset(zip(starts, hidden.ngram_labels[is_ngram].tolist()))


@pytest.mark.parametrize("share", [0.15, 0.3, 0.5])
def test_the_rounded_share_of_single_tokens_is_masked(share):
    ours, options = NgramLexicon([(10, 11)], TOKENS), rule(masked_lm_prob=share)
    for length in range(1, 40):
        tokens = np.array([CLS, *[12] * length, SEP])
        hidden = hide_ngrams(tokens, options, ours, np.random.default_rng(length))
        assert len(hidden.positions) == min(length, max(1, round(share * (length + 2))))


def test_tokens_outside_ngrams_are_masked_80_10_10():
    ours, kinds, places, others = lexicon(), [], [], set()
    for seed in range(300):
        hidden = hide_ngrams(text(seed), rule(masked_lm_prob=0.4), ours, np.random.default_rng(seed))
        tokens = hidden.labels >= 0
        shown = hidden.ids[hidden.positions[tokens]]
        kinds += np.where(shown == MASK, 0, 1 + (shown != hidden.labels[tokens])).tolist()
        places += (hidden.positions / len(hidden.ids)).tolist()
        others |= set(shown[(shown != MASK) & (shown != hidden.labels[tokens])].tolist())
    shares = np.bincount(kinds, minlength=3) / len(kinds)
    assert len(kinds) > 1000 and shares == pytest.approx([0.8, 0.1, 0.1], abs=0.03)
    assert np.mean(places) == pytest.approx(0.5, abs=0.03) and len(others) > 60  # of 100 ids


def test_a_text_may_consist_of_ngrams_only():
    ours = NgramLexicon([(10, 11)], TOKENS)
    tokens = np.array([CLS, *[10, 11] * 5, SEP])
    hidden = hide_ngrams(tokens, rule(masked_lm_prob=0.01), ours, np.random.default_rng(0))
    assert len(hidden.positions) == 1 and hidden.ngram_labels.tolist() == [0]
    assert unmasked(hidden, ours.ngrams) == tokens.tolist()


def samples(seed=1):
    rng = np.random.default_rng(3)
    ids = USED[rng.integers(0, len(USED), 36)]
    corpus = SimpleNamespace(ids=ids, starts=np.array([0, 5, 13, 16, 36]), marks=None)
    rows = np.array([[0, 2, 61], [2, 4, 10], [3, 4, 61], [0, 4, 20]])
    return ErnieDataset(corpus, rows, rule(masked_lm_prob=0.4), seed=seed, ngrams=lexicon())


def test_a_sample_with_ngrams_depends_only_on_seed_and_index():
    forward = [samples()[index] for index in range(4)]
    backward = [samples()[index] for index in reversed(range(4))][::-1]
    for one, other in zip(forward, backward):
        assert all(np.array_equal(a, b) for a, b in zip(one, other))
    other_seed = [samples(2)[index] for index in range(4)]
    assert not all(np.array_equal(a.input_ids, b.input_ids) for a, b in zip(forward, other_seed))


def test_ngram_masking_keeps_segments_and_their_order():
    """Masking changes neither: the two [SEP] stand where the token types change."""
    dataset = samples()
    plain = ErnieDataset(dataset.corpus, dataset.sample_map, dataset.rule, seed=1)
    for index in range(4):
        sample = dataset[index]
        assert sample.sop_label == plain[index].sop_label
        borders = np.flatnonzero(sample.input_ids == SEP)
        types = np.zeros(len(sample.input_ids), int)
        types[borders[0] + 1 :] = 1
        assert sample.token_type_ids.tolist() == types.tolist() and borders[-1] == len(types) - 1
        text = dataset.text(index)
        assert unmasked_sample(sample, dataset.ngrams.ngrams) == PLAIN_OF[text.tokens].tolist()


def unmasked_sample(sample, ngrams):
    named = SimpleNamespace(
        ids=sample.input_ids,
        positions=sample.masked_positions,
        labels=sample.masked_labels,
        ngram_labels=sample.ngram_labels,
    )
    return unmasked(named, ngrams)


def test_a_batch_labels_each_slot_as_token_or_ngram():
    batch = collate([samples()[0], samples()[3]], pad_id=0, max_seq_len=40)
    labels, ngrams = batch["masked_lm_labels"], batch["ngram_labels"]
    assert labels.shape == ngrams.shape == batch["masked_positions"].shape and ngrams.dtype == np.int64
    assert not ((labels >= 0) & (ngrams >= 0)).any() and (ngrams >= 0).any() and (labels >= 0).any()
    expected = sum(len(samples()[index].masked_positions) for index in (0, 3))
    assert ((labels >= 0) | (ngrams >= 0)).sum() == expected


def test_a_masked_ngram_is_shown_with_its_text():
    vocab = WordPiece(["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", *"天地玄黄"])
    tokens = NgramTokens(np.arange(9), np.zeros(9, bool), np.ones(9, bool))
    ours = NgramLexicon([(6, 7)], tokens)
    options = rule(masked_lm_prob=0.4)
    plain = SimpleNamespace(**{**vars(options), "base_ids": np.arange(9), "goes_on": np.zeros(9, bool)})
    text = np.array([1, 6, 7, 2])
    hidden = hide_ngrams(text, plain, ours, np.random.default_rng(0))
    sample = SimpleNamespace(
        input_ids=hidden.ids,
        masked_positions=hidden.positions,
        masked_labels=hidden.labels,
        ngram_labels=hidden.ngram_labels,
    )
    assert marked_text(vocab, sample, ours) == "[CLS]{地玄->_}[SEP]"


VOCAB = WordPiece(["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", *"天地玄黄"])
GOOD = f'{HEAD}{{"vocab_sha256": "{VOCAB.sha256}"}}\n'


@pytest.mark.parametrize("content, told", [
    (b"", "not a lexicon ("),
    ("天 地\t1\t5\n".encode(), "not a lexicon ("),
    (f"{HEAD}{{\n".encode(), "not a lexicon ("),
    (f"{HEAD}{{}}\n天 地\t1\t5\n".encode(), ":1: it was made with another vocabulary"),
    (GOOD.encode(), "holds no n-gram"),
    ((GOOD + "天\t1\t5\n").encode(), ":2: not 2 to 19 tokens, TAB score, TAB count"),
    ((GOOD + "天 地\t1\n").encode(), ":2: not 2 to 19 tokens"),
    ((GOOD + " ".join("天" * 20) + "\t1\t5\n").encode(), ":2: not 2 to 19 tokens"),
    ((GOOD + "天 地\t1\t5\n天 人\t1\t5\n").encode(), ":3: contains a token that is not in the"),
    ((GOOD + "天 地\t1\t5\n天 地\t1\t4\n").encode(), ":3: is already in line 2"),
    (GOOD.encode() + b"\xff\xfe", "not a lexicon ("),
    (None, "cannot be read"),
], ids=range(12))  # fmt: skip
def test_a_bad_ngram_lexicon_is_refused_with_its_line(tmp_path, content, told):
    if content is not None:
        (tmp_path / "ngrams.txt").write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_ngrams(tmp_path / "ngrams.txt", "--ngram_lexicon", VOCAB)
    assert told in str(caught.value) and "\n" not in str(caught.value)
    assert "ngram_lexicon " in str(caught.value) and "ernie-pair build ngrams" in str(caught.value)


def test_words_outside_of_ngrams_stay_whole():
    """The rest of a word that an n-gram covers in part is a word of its own."""
    ours = NgramLexicon([(10, 11)], TOKENS)
    word = np.array([12, 113, 114])
    tokens = np.array([CLS, 10, 111, 112, 113, *word, SEP])
    assert GOES_ON[[111, 112, 113, 114]].all()
    for seed in range(40):
        hidden = hide_ngrams(tokens, rule(masked_lm_prob=0.34), ours, np.random.default_rng(seed))
        at = set(hidden.kept[hidden.positions].tolist())
        assert {5, 6, 7} <= at or not at & {5, 6, 7}
        assert {3, 4} <= at or not at & {3, 4}
