"""Pair files, their rows of token ids, and the batches made from them; without paddle."""

from itertools import islice

import numpy as np
import pytest
from tiny_pair import VOCAB, write_model, write_pairs

from data_tools.text.wordpiece import WordPiece
from ernie_pair import PairConfig
from ernie_pair.core.errors import InputError
from ernie_pair.inference.token_rows import BatchRules, evaluation_batches, kept_lengths, open_tokenizer
from ernie_pair.models.labels import Labels
from ernie_pair.models.spec import read_spec
from ernie_pair.pairs.data.encoded_pairs import encode_pairs, training_steps
from ernie_pair.pairs.data.pair_file import read_pairs
from ernie_pair.runtime.processes.world import World
from ernie_pair.training.batch_order import BatchOrder

ALONE = World()
TWO_ROWS = ["今天\t明天\t0", "你好\t您好\t1"]


def read(tmp_path, content, name="pairs.tsv", num_classes=2):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return read_pairs(path, num_classes)


def columns(pairs):
    return list(zip(pairs.left, pairs.right, pairs.labels.tolist()))


@pytest.mark.parametrize("header", ["", "text_a\ttext_b\tlabel\n", "query\ttitle\tlabel\n"])
def test_a_header_is_optional_and_never_read_as_a_row(tmp_path, header):
    pairs = read(tmp_path, header + "\n".join(TWO_ROWS) + "\n")
    assert columns(pairs) == [("今天", "明天", 0), ("你好", "您好", 1)]


def test_a_header_determines_the_column_order(tmp_path):
    pairs = read(tmp_path, "label\ttext_b\ttext_a\n1\t右\t左\n")
    assert columns(pairs) == [("左", "右", 1)]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_bom_and_line_endings_do_not_change_the_pairs(tmp_path, mark, end, last):
    pairs = read(tmp_path, mark + (end.join(TWO_ROWS) + (end if last else "")).encode("utf-8"))
    assert columns(pairs) == [("今天", "明天", 0), ("你好", "您好", 1)]


def test_only_a_line_feed_ends_a_line(tmp_path):
    strange = "a\u2028b\u0085c\x0bd\x00e"
    pairs = read(tmp_path, f"{strange}\t右\t1\n")
    assert columns(pairs) == [(strange, "右", 1)]


def test_quotes_are_plain_text(tmp_path):
    pairs = read(tmp_path, '"左\t""右\t1\n下"\t上\t0\n')
    assert columns(pairs) == [('"左', '""右', 1), ('下"', "上", 0)]


def test_whole_numbers_with_a_decimal_point_are_labels(tmp_path):
    assert columns(read(tmp_path, "左\t右\t1.0\n上\t下\t0.00\n")) == [("左", "右", 1), ("上", "下", 0)]
    assert Labels.numbered(2).class_of(np.float32(1)) == Labels.numbered(2).class_of(np.int8(1)) == 1
    assert Labels.named({"1.0": 0, "1": 1}).class_of("1.0") == 0


def test_a_json_array_is_read_like_its_objects(tmp_path):
    row = '{"sentence1": "左", "sentence2": "右", "label": 1}'
    for content in (f"[{row}]", f"[\n  {row},\n  {row}\n]\n"):
        assert set(columns(read(tmp_path, content, "pairs.json"))) == {("左", "右", 1)}
    for content, reason in (
        (f"[{row}, 3]", ":2: a number instead of an object"),
        (f"[{row},\n", "pairs.json:1: not JSON.*; correct the array"),
    ):
        with pytest.raises(InputError, match=reason):
            read(tmp_path, content, "pairs.json")


@pytest.mark.parametrize("label", ['"1"', "1", "1.0"])
def test_json_labels_may_be_text_or_number(tmp_path, label):
    line = f'{{"id": 7, "sentence1": "左", "sentence2": "右", "label": {label}}}\n'
    assert columns(read(tmp_path, line, "pairs.json")) == [("左", "右", 1)]


@pytest.mark.parametrize(
    "name, line",
    [
        ("a.tsv", "左\t右\n"),
        ("a.tsv", "左\t右\t1\n"),
        ("a.tsv", "左\t右\t\n"),
        ("a.tsv", "text_a\ttext_b\n左\t右\n"),
        ("a.json", '{"id": 0, "sentence1": "左", "sentence2": "右"}\n'),
        ("a.jsonl", '{"sentence1": "左", "sentence2": "右", "label": "9"}\n'),
    ],
)
def test_labels_are_ignored_when_not_requested(tmp_path, name, line):
    pairs = read(tmp_path, line, name, num_classes=None)
    assert (pairs.left, pairs.right, pairs.labels) == (["左"], ["右"], None)


GOOD = "今天\t明天\t0\n"
GOOD_JSON = '{"sentence1": "左", "sentence2": "右", "label": "0"}\n'


@pytest.mark.parametrize(
    "bad, reason",
    [
        ("今天 明天 0", r":2: 1 column.* tab"),
        ("今天\t明天", r":2: 2 column.* instead of 3"),
        ("今天\t明\t天\t0", r":2: 4 column"),
        ("今天\t明天\t2", r":2: label '2' is not one of 0, 1; correct"),
        ("今天\t明天\t-1", r":2: label '-1'"),
        ("今天\t明天\t1.5", r":2: label '1.5'"),
        ("今天\t明天\t1.", r":2: label '1.'"),
        ("今天\t明天\t2.0", r":2: label '2.0'"),
        ("今天\t明天\t-1.0", r":2: label '-1.0'"),
        ("今天\t明天\t ２", r":2: label"),
        ("今天\t明天\t01", r":2: label '01'"),
        ("今天\t明天\tnan", r":2: label 'nan'"),
        ("今天\t明天\t甲", r":2: label '甲'"),
        ('"今\t天"\t明天\t0', r":2: 4 columns instead of 3"),
        ("今\r天\t明天\t0", r":2: .*CR inside the line"),
        (" \u3000\t明天\t0", r":2: sentence1 is empty"),
        ("今天\t\xa0\t0", r":2: sentence2 is empty"),
        ("今天\t明天\t", r":2: label ''"),
        ("\t明天\t1", r":2: sentence1 is empty; fill"),
        ("今天\t  \t1", r":2: sentence2 is empty"),
        ("", r":2: the line is blank; remove"),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_bad_line_error_has_its_number_and_a_fix(tmp_path, bad, reason, end, mark):
    with pytest.raises(InputError, match=r"pairs\.tsv" + reason):
        read(tmp_path, mark + GOOD.rstrip() + end + bad + end + GOOD.rstrip() + end)


@pytest.mark.parametrize(
    "bad, reason",
    [
        ("{oops", r":2: not JSON, .*; write an object per line"),
        ('{"sentence1": "左", "sent', r":2: not JSON"),
        ("[" * 100_000, r":2: nested too deep, above 64 levels; write an object per line"),
        ('["左", "右"]', r":2: a list instead of an object"),
        ('{"sentence1": "左", "label": "0"}', r":2: sentence2 is missing"),
        ('{"sentence1": "左", "sentence2": null, "label": "0"}', r":2: sentence2 is None, not a text"),
        ('{"sentence1": "左", "sentence2": "右"}', r":2: no label; each row needs one of 0, 1"),
        ('{"sentence1": "左", "sentence2": "右", "label": "甲"}', r":2: label '甲'"),
        ('{"sentence1": "左", "sentence2": "右", "label": 0.5}', r":2: label 0.5 is not"),
        ('{"sentence1": "左", "sentence2": "右", "label": 1e400}', r":2: 1e400 is too large"),
        ('{"sentence1": "左", "sentence2": "右", "label": ["1"]}', r":2: label \['1'\] is no single value"),
        (
            '{"sentence1": "左", "sentence2": "右", "label": {"a": 1}}',
            r":2: label {'a': 1} is no single value",
        ),
        ('{"sentence1": "左", "sentence2": ["右"], "label": 1}', r":2: sentence2 is \['右'\], not a text"),
        ('{"sentence1": "左", "sentence2": 7, "label": 1}', r":2: sentence2 is 7, not a text"),
        (
            '{"sentence1": "左", "sentence2": "\\ud83d", "label": 1}',
            r":2: sentence2 has .*half of a character",
        ),
    ],
)
def test_a_bad_json_line_error_has_its_number_and_a_fix(tmp_path, bad, reason):
    with pytest.raises(InputError, match=r"pairs\.json" + reason):
        read(tmp_path, GOOD_JSON + bad + "\n" + GOOD_JSON, "pairs.json")


@pytest.mark.parametrize(
    "line, reason",
    [
        (
            "啊\t波\t1\n".encode("gb18030"),
            r":2: not UTF-8 \(byte 1 .*0xb0.* looks like GB18030, and lines before",
        ),
        (b"\xe4\xbb\x8a\xff\t\xe5\xa4\xa9\t0\n", r":2: not UTF-8 \(byte 4 of the line is 0xff"),
        ("今天\t明天\t".encode()[:-2] + b"\n", r":2: not UTF-8 .*is cut short"),
    ],
)
def test_a_non_utf_8_byte_is_reported_with_its_line(tmp_path, line, reason):
    with pytest.raises(InputError, match=r"pairs\.tsv" + reason):
        read(tmp_path, GOOD.encode("utf-8") + line)


@pytest.mark.parametrize("label", [" 1", "1 ", "\u30001\xa0"])
def test_spaces_around_a_label_are_no_part_of_it(tmp_path, label):
    assert columns(read(tmp_path, f"左\t右\t{label}\n")) == [("左", "右", 1)]


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", b"text_a\ttext_b\tlabel\n"])
def test_a_file_without_pairs_is_refused(tmp_path, content):
    with pytest.raises(InputError, match=r"pairs\.tsv: it holds no pairs"):
        read(tmp_path, content)


def test_an_unknown_header_is_refused(tmp_path):
    for header in ("text_a\tscore\tlabel\n", "text_a\tquality\tlabel\n"):
        with pytest.raises(InputError, match=r":1: both columns .*, label may be label; name one with label"):
            read(tmp_path, header + GOOD)
    with pytest.raises(InputError, match=r":1: label 'similar' .* header"):
        read(tmp_path, "left\tright\tsimilar\n" + GOOD)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path, reason in (
        (tmp_path, "a folder; give"),
        (tmp_path / "absent.tsv", "no such file; give a .tsv"),
    ):
        with pytest.raises(InputError, match=reason):
            read_pairs(path, 2)


@pytest.fixture
def tokenizer(tmp_path):
    return WordPiece.from_file(write_model(tmp_path / "model") / "vocab.txt")


@pytest.fixture
def rows(tmp_path, tokenizer):
    return encode_pairs(read_pairs(write_pairs(tmp_path / "toy.tsv", 37), 2), tokenizer, 64)


def test_a_row_is_cls_a_sep_b_sep(tmp_path, tokenizer):
    batch = encode_pairs(read(tmp_path, "今天\t你好他\t1\n你\t我\t0\n"), tokenizer, 64).batch(
        np.array([0, 1])
    )
    tokens = [[VOCAB[index] for index in row] for row in batch.input_ids]
    assert tokens[0] == ["[CLS]", "今", "天", "[SEP]", "你", "好", "他", "[SEP]"]
    assert tokens[1] == ["[CLS]", "你", "[SEP]", "我", "[SEP]", "[PAD]", "[PAD]", "[PAD]"]
    assert batch.token_type_ids.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0, 0]]
    assert batch.labels.tolist() == [1, 0]


def test_a_batch_is_as_wide_as_its_longest_row(rows):
    longest = int(rows.lengths.argmax())
    assert rows.batch(np.array([longest])).input_ids.shape == (1, rows.lengths.max())
    shortest = np.argsort(rows.lengths)[:3]
    assert rows.batch(shortest).input_ids.shape == (3, rows.lengths[shortest].max())


@pytest.mark.parametrize(
    "left, right, room", [(a, b, r) for a in range(7) for b in range(7) for r in (2, 5, 6)]
)
def test_truncation_cuts_the_longer_text_or_on_a_tie_the_second(left, right, room):
    kept = [left, right]
    while sum(kept) > room:
        kept[0 if kept[0] > kept[1] else 1] -= 1
    assert kept_lengths(left, right, room) == tuple(kept)


def test_both_texts_keep_a_token_at_the_smallest_length(tmp_path, tokenizer):
    rows = encode_pairs(read(tmp_path, f"{'今' * 5000}\t{'天' * 9000}\t1\n"), tokenizer, 5)
    assert [VOCAB[i] for i in rows.ids] == ["[CLS]", "今", "[SEP]", "天", "[SEP]"]


def order_of(epoch, seed=5, num_rows=37, batch_size=8, bucket=True):
    lengths = np.random.default_rng(9).integers(5, 40, size=num_rows)
    return BatchOrder(lengths, seed, batch_size, bucket).rows_at(epoch * num_rows, num_rows).tolist()


@pytest.mark.parametrize("bucket", [True, False])
@pytest.mark.parametrize("batch_size", [1, 8, 36, 37, 50, 100])
@pytest.mark.parametrize("epoch", range(4))
def test_an_epoch_takes_every_row_once(epoch, batch_size, bucket):
    assert sorted(order_of(epoch, batch_size=batch_size, bucket=bucket)) == list(range(37))


@pytest.mark.parametrize("bucket", [True, False])
def test_each_epoch_and_seed_has_a_different_order(bucket):
    orders = [order_of(epoch, seed, bucket=bucket) for epoch in (0, 1) for seed in (5, 6)]
    assert len(set(map(tuple, orders))) == 4


def padding(lengths, batches):
    widths = [lengths[rows].max() * len(rows) for rows in batches]
    return 1 - lengths[np.concatenate(batches)].sum() / sum(widths)


@pytest.mark.parametrize("num_rows, batch_size", [(3000, 16), (1000, 7)])
def test_buckets_group_similar_lengths_in_random_order(num_rows, batch_size):
    lengths = np.random.default_rng(0).integers(10, 60, size=num_rows)

    def batches_of(bucket):
        stream = BatchOrder(lengths, 1, batch_size, bucket).batches(0)
        return list(islice(stream, 2 * num_rows // batch_size))

    plain, bucketed = batches_of(bucket=False), batches_of(bucket=True)
    assert padding(lengths, bucketed) < 0.06 < 0.3 < padding(lengths, plain)
    mean_lengths = [lengths[rows].mean() for rows in bucketed]
    steps = np.abs(np.diff(mean_lengths))
    assert steps.mean() > 10  # not one long ramp
    assert abs(np.corrcoef(mean_lengths, np.arange(len(bucketed)))[0, 1]) < 0.2
    assert len(set(map(frozenset, bucketed))) == len(bucketed)  # the next epoch has other batches


def updates_of(rows, count, world=ALONE, consumed=0, batch_size=8):
    stream = training_steps(rows, PairConfig("out", seed=3, batch_size=batch_size), world, consumed)
    return [batch.input_ids for batches in islice(stream, count) for batch in batches]


def strip(batches):
    return [row[row > 0].tolist() for batch in batches for row in batch]


def test_a_reopened_stream_continues_as_if_never_closed(rows):
    whole = updates_of(rows, 12)
    again = updates_of(rows, 5) + updates_of(rows, 7, consumed=5 * 8)
    assert strip(whole) == strip(again)


def test_slices_of_two_ranks_form_the_batch_of_one_process(rows):
    one = updates_of(rows, 6, batch_size=8)
    two = [updates_of(rows, 6, World(rank, 2), batch_size=4) for rank in (0, 1)]
    assert strip(one) == strip([batch for both in zip(*two) for batch in both])


def test_no_batch_is_short_even_if_larger_than_the_file(rows):
    assert [len(batch) for batch in updates_of(rows, 3, batch_size=50)] == [50, 50, 50]


@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_evaluation_covers_every_row_once_sorted_by_length(batch_size):
    lengths = np.random.default_rng(0).integers(5, 40, size=33)
    batches = evaluation_batches(lengths, batch_size)
    assert sorted(np.concatenate(batches).tolist()) == list(range(33))
    assert (np.diff(lengths[np.concatenate(batches)]) >= 0).all()


@pytest.mark.parametrize("batch_size", [1, 5, 64])
@pytest.mark.parametrize("rules", [BatchRules(256), BatchRules(300, 8), BatchRules(16)])
def test_evaluation_batches_respect_the_token_limit(batch_size, rules):
    lengths = np.random.default_rng(1).integers(5, 40, size=500)
    batches = evaluation_batches(lengths, batch_size, rules)
    assert np.array_equal(np.concatenate(batches), np.argsort(lengths, kind="stable"))
    for rows in batches:
        tokens = len(rows) * rules.padded(int(lengths[rows].max()))
        assert len(rows) == 1 or (tokens <= rules.most_tokens and len(rows) <= batch_size)
    assert batch_size < 64 or rules.most_tokens < 64 or max(map(len, batches)) > 8


@pytest.mark.parametrize(
    "changes, length, reason",
    [
        ({"vocab_size": 9}, 64, "tokens, its model takes 9; give the vocabulary"),
        ({"vocab_size": "many"}, 64, 'vocab_size is "many", and takes a whole number'),
        ({"pad_token_id": 3}, 64, r"vocab\.txt:1: \[PAD\] has the id 0"),
        ({}, 129, "max_seq_len=129 is more than the model's 128 positions; use 128"),
    ],
)
def test_a_vocabulary_that_does_not_fit_its_model_is_refused(tmp_path, changes, length, reason):
    folder = write_model(tmp_path / "model", **changes)
    files = folder / "config.json", folder / "vocab.txt"
    with pytest.raises(InputError, match=reason):
        open_tokenizer(files[1], read_spec(*files), length)
