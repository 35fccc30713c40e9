"""The n-gram lexicon: its scores against an independent count, its bytes, and what is refused."""

import math
from collections import Counter

import numpy as np
import pytest
from children import python
from tiny_corpus import make, write_vocab

from data_tools import build_ngrams as tool
from data_tools.build_ngrams import NgramsConfig, build_ngrams
from data_tools.corpus.format import Corpus
from data_tools.corpus.writer import CorpusWriter
from data_tools.text.ngrams import NgramCounts, read_ngrams
from data_tools.text.wordpiece import WordPiece
from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.errors import InputError

LETTERS = "天地玄黄宇宙洪荒日月盈昃辰宿列张"
TOKENS = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, "，", "play", "##ing", "##天", "[UNK]"]
MOST = 10_000  # more than there are
SEVERAL = "300 3000 9000 9000"


@pytest.fixture
def folder(tmp_path):
    """A corpus of random tokens of all kinds, of sentences of 1 to 40 tokens."""
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in TOKENS), encoding="utf-8")
    rng, sha256 = np.random.default_rng(5), WordPiece(TOKENS).sha256
    with CorpusWriter(tmp_path / "text", vocab_size=len(TOKENS), about={"vocab_sha256": sha256}) as writer:
        for _ in range(30):
            sizes = rng.integers(1, 40, rng.integers(1, 9))
            writer.add([(rng.integers(4, len(TOKENS), size) ** 2 % 23 + 2).tolist() for size in sizes])
    return tmp_path


def build(folder, name="ngrams.txt", **flags):
    settings = {"input_path": folder, "vocab_file": folder / "vocab.txt", "output_file": folder / name}
    config = NgramsConfig(**{key: str(path) for key, path in settings.items()}, **flags)
    build_ngrams(config)
    return folder / name


def lines_of(path):
    """{the tokens of an n-gram: (score, count)} in the order of the file."""
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return {tuple(tokens.split(" ")): (float(score), int(count)) for tokens, score, count in rows}


def counted_by_hand(folder, longest):
    """[Counter of the n-grams of 1, 2, ... tokens], token by token."""
    corpus, counters = Corpus(folder / "text"), [Counter() for _ in range(longest)]
    for number in range(len(corpus)):
        words = [TOKENS[index] for index in corpus[number]]
        words = [word[2:] if word == "##天" else word for word in words]
        for begin, length in ((b, n) for b in range(len(words)) for n in range(1, longest + 1)):
            ngram, after = tuple(words[begin : begin + length]), words[begin + length : begin + length + 1]
            cut = (begin and ngram[0] == "##ing") or after == ["##ing"]
            held = not {"，", "[UNK]", "[SEP]", "[MASK]"} & set(ngram)
            if len(ngram) == length and held and (length == 1 or not cut):
                counters[length - 1][ngram] += 1
    return counters


@pytest.mark.parametrize("score", ["t", "pmi"])
def test_scores_match_the_formulas(folder, score):
    found = lines_of(build(folder, score=score, min_count=2, sizes=f"{MOST} {MOST} {MOST}"))
    counters = counted_by_hand(folder, longest=4)
    tokens = sum(counters[0].values())
    expected = {}
    for counter in counters[1:]:
        windows = sum(counter.values())
        for ngram, count in counter.items():
            p, q = count / windows, math.prod(counters[0][token,] / tokens for token in ngram)
            value = math.log(p / q) if score == "pmi" else (p - q) / math.sqrt(p * (1 - p) / windows)
            if count >= 2:
                expected[ngram] = (value, count)
    assert len(expected) > 200 and set(found) == set(expected)
    for ngram, (value, count) in expected.items():
        assert found[ngram][1] == count and found[ngram][0] == pytest.approx(value, rel=1e-5, abs=1e-9)


def test_the_best_ngrams_of_each_length_are_kept_in_order(folder):
    everything = list(lines_of(build(folder, "all.txt", sizes=f"{MOST} {MOST}", min_count=1)).items())
    best = list(lines_of(build(folder, sizes="7 5", min_count=1)).items())
    of_two = [item for item in everything if len(item[0]) == 2]
    assert best == of_two[:7] + everything[len(of_two) :][:5]
    scores = [score for _, (score, _) in of_two]
    assert scores == sorted(scores, reverse=True)


def test_workers_and_memory_limit_do_not_change_the_output(folder, monkeypatch):
    monkeypatch.setattr(tool, "TOKENS_AT_ONCE", 400)  # many pieces
    plain = build(folder, sizes=SEVERAL, min_count=1).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(tool, "COUNTS_IN_MEMORY", 1000)
        small = build(folder, "small.txt", sizes=SEVERAL, min_count=1)
    assert len(lines_of(small)) > 1000 and small.read_bytes() == plain
    assert build(folder, "two.txt", sizes=SEVERAL, min_count=1, workers=2).read_bytes() == plain


@pytest.mark.parametrize("most", [1, 7, 100, 10_000])
def test_counts_spilled_to_disk_add_up(most):
    rng, counts, expected = np.random.default_rng(2), NgramCounts(most), Counter()
    for _ in range(40):
        keys, times = np.unique(rng.integers(0, 300, 50), return_counts=True)
        counts.add((keys, times))
        expected.update(dict(zip(keys.tolist(), times.tolist())))
    blocks = list(counts.blocks())
    found = [item for keys, times in blocks for item in zip(keys.tolist(), times.tolist())]
    assert found == sorted(expected.items()) and counts.total == 2000
    assert (len(blocks) > 1) == (most < 300)


def test_a_lexicon_is_not_rebuilt_without_overwrite(folder, capsys):
    path = build(folder, sizes="5")
    made = path.stat().st_mtime_ns
    build(folder, sizes="5", workers=2)
    assert path.stat().st_mtime_ns == made and "nothing to do" in capsys.readouterr().err
    with pytest.raises(InputError, match="it was made with score='t' and not 'pmi'"):
        build(folder, sizes="5", score="pmi")
    build(folder, sizes="5", score="pmi", overwrite=True)
    assert '"pmi"' in path.read_text(encoding="utf-8").splitlines()[0]


def test_a_lexicon_is_read_only_with_its_own_vocabulary(folder):
    path = build(folder, sizes="5 4")
    lexicon = read_ngrams(path, "--ngram_lexicon", WordPiece(TOKENS))
    assert len(lexicon) == 9 and [len(ngram) for ngram in lexicon.ngrams] == [2] * 5 + [3] * 4
    with pytest.raises(InputError, match="ngrams.txt:1: it was made with another vocabulary") as caught:
        read_ngrams(path, "--ngram_lexicon", WordPiece([*TOKENS, "more"]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("flags, told", [
    ({"sizes": "many"}, "not whole numbers above 0"),
    ({"sizes": "10 0"}, "not whole numbers above 0"),
    ({"sizes": ""}, "not whole numbers above 0"),
    ({"sizes": "1 " * 20}, "21 tokens; with a vocabulary of 25 they may have 13: give at most 12"),
    ({"min_count": 10_000}, "no n-gram occurs in it 10000 times; lower "),
    ({"input_path": "nowhere"}, "nowhere"),
], ids=str)  # fmt: skip
def test_unusable_flags_or_input_are_refused_without_output(folder, flags, told):
    with pytest.raises(InputError) as caught:
        words = {"input_path": folder, "vocab_file": folder / "vocab.txt", "output_file": folder / "n.txt"}
        given = {**words, **flags}
        build_ngrams(
            parse_config(NgramsConfig, [w for key, value in given.items() for w in (f"--{key}", str(value))])
        )
    assert told in str(caught.value) and "\n" not in str(caught.value)
    assert not (folder / "n.txt").exists() and not (folder / ".n.txt.made.json").exists()


def test_the_vocabulary_of_another_corpus_is_refused(folder):
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in [*TOKENS, "新"]), encoding="utf-8")
    with pytest.raises(InputError, match="another vocabulary"):
        build(folder)


def test_the_command_builds_a_lexicon_from_a_text_corpus(tmp_path):
    write_vocab(tmp_path)
    sentence = '{"text": "我爱北京天安门。学习学习！hello world, ok12。"}\n'
    make(tmp_path, (sentence * 6).encode("utf-8"))
    words = "--input_path out --vocab_file model/vocab.txt --output_file n.txt --sizes 9".split()
    done = python("-m", "ernie_pair", "build", "ngrams", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "n.txt: n-grams by t: 9 of 2 tokens" in done.stderr
    found = lines_of(tmp_path / "n.txt")
    assert ("天", "安") in found and all("##" not in tokens[0] for tokens in found)
