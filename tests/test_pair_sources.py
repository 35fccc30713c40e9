"""What the flags may name: other layouts, columns, labels, packed files, and the sets of PaddleNLP."""

import gzip
import json

import pytest

from data_tools.errors import InputError
from ernie_pair.pair.data import pair_file
from ernie_pair.pair.data.labels import Labels, labels_of, with_labels
from ernie_pair.pair.data.pair_columns import Columns
from ernie_pair.pair.data.pair_file import rows_of
from ernie_pair.pair.data.pair_source import PairSource

TWO = Labels.numbered(2)
THREE = [("左", "右", 1), ("上", "下", 0), ("前", "后", 1)]


def rows_in(path, labels=TWO, **columns):
    pairs = PairSource("train_file", str(path), "train", labels, Columns(**columns)).read()
    classes = [None] * len(pairs) if pairs.labels is None else pairs.labels.tolist()
    return list(zip(pairs.left, pairs.right, classes))


def write(path, content):
    path.write_text(content, encoding="utf-8")
    return path


LAYOUTS = {
    "LCQMC": ("a.tsv", "", "{a}\t{b}\t{c}"),
    "LCQMC with a header": ("a.tsv", "text_a\ttext_b\tlabel", "{a}\t{b}\t{c}"),
    "MRPC": ("a.tsv", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "{c}\t7\t8\t{a}\t{b}"),
    "QQP": ("a.tsv", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "1\t2\t3\t{a}\t{b}\t{c}"),
    "text file": ("a.txt", "", "{a}\t{b}\t{c}"),
    "csv": ("a.csv", "", "{a},{b},{c}"),
    "csv with a header": ("a.csv", "label,title,query", "{c},{b},{a}"),
    "AFQMC": ("a.json", None, '{{"sentence1": "{a}", "sentence2": "{b}", "label": "{c}"}}'),
    "JSON of LCQMC": ("a.jsonl", None, '{{"label": {c}, "title": "{b}", "id": 3, "query": "{a}"}}'),
}


@pytest.mark.parametrize("name, header, line", LAYOUTS.values(), ids=LAYOUTS)
def test_the_layouts_of_the_known_sets_are_understood(tmp_path, name, header, line):
    lines = [header] * bool(header) + [line.format(a=a, b=b, c=c) for a, b, c in THREE]
    assert rows_in(write(tmp_path / name, "".join(f"{text}\n" for text in lines))) == THREE


def test_the_unlabelled_test_file_of_mrpc_is_understood(tmp_path):
    content = 'index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t7\t8\tone "two\tthree\n'
    assert rows_in(write(tmp_path / "test.tsv", content), labels=None) == [('one "two', "three", None)]


NAMED = {"text_a": "Frage", "text_b": "Antwort", "label": "gleich"}


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.tsv", "nr\tgleich\tAntwort\tFrage\n5\t1\t右\t左\n"),
        ("a.csv", "Frage,Antwort,gleich,label\n左,右,1,nein\n"),
        ("a.jsonl", '{"Antwort": "右", "Frage": "左", "gleich": 1, "label": "nein"}\n'),
    ],
)
def test_columns_may_be_named_by_flags(tmp_path, name, content):
    assert rows_in(write(tmp_path / name, content), **NAMED) == [("左", "右", 1)]


def test_one_column_may_be_named_where_the_others_are_known(tmp_path):
    path = write(tmp_path / "a.tsv", "query\ttitle\tgleich\n左\t右\t1\n")
    assert rows_in(path, label="gleich") == [("左", "右", 1)]


@pytest.mark.parametrize(
    "name, content, columns, reason",
    [
        ("a.tsv", "a\tb\tc\n左\t右\t1\n", {"text_a": "x"}, r":1: no column 'x' in a, b, c; mend --text_a"),
        ("a.tsv", "左\t右\t1\n", {"label": "gleich"}, r":1: no column 'gleich' in 左, 右, 1; mend --label"),
        (
            "a.tsv",
            "query\ttext_a\ttitle\n左\t右\t1\n",
            {},
            "both columns query, text_a may be sentence1; name",
        ),
        ("a.tsv", "x\tx\ty\n左\t右\t1\n", {"text_a": "x"}, "both columns x, x may be sentence1"),
        ("a.json", '{"query": "左", "s1": "右"}\n', {}, r":1: both columns query, s1 may be sentence1"),
        (
            "a.tsv",
            "text_a\tother\tlabel\n左\t右\t1\n",
            {},
            ":1: the header text_a, other, label is not under",
        ),
        ("a.tsv", "#1 String\tx\n左\t右\n", {}, ":1: the header #1 String, x is not understood"),
        (
            "a.tsv",
            "text_a\ttext_b\tscore\n左\t右\t1\n",
            {},
            "not understood; write text_a, text_b, label, or name",
        ),
        ("a.tsv", "text_a\ttext_b\n左\t右\n", {}, r":2: no label; .* \(name its column with --label\)"),
        (
            "a.jsonl",
            '{"a": "左"}\n',
            {"text_a": "a", "text_b": "b"},
            ":1: b is missing .found: a.; .* --text_b",
        ),
        ("a.csv", '"左, 上",右,1\n', {}, r":1: 4 column\(s\) instead of 3"),
        ("a.csv", '左,右,1\n"左, 上",右,1\n', {}, r":2: 4 column\(s\) .* one comma .*quotes are plain text"),
        (
            "a.jsonl",
            '{"query": "左", "title": "右", "label": 1, "label": 0}\n',
            {},
            "the key 'label' stands twice",
        ),
    ],
)
def test_columns_that_are_not_clear_are_refused(tmp_path, name, content, columns, reason):
    with pytest.raises(InputError, match=reason):
        rows_in(write(tmp_path / name, content), **columns)


def test_a_text_may_be_called_as_a_column_is(tmp_path):
    assert rows_in(write(tmp_path / "a.tsv", "query\tlabel\t1\n")) == [("query", "label", 1)]


def test_a_packed_file_is_read_as_the_file_in_it(tmp_path):
    with gzip.open(tmp_path / "a.csv.gz", "wt", encoding="utf-8") as file:
        file.write("左,右,1\n")
    assert rows_in(tmp_path / "a.csv.gz") == [("左", "右", 1)]


MAPS = {
    "0=different,1=same": (("different", "same"), {"different": 0, "same": 1, "0": 0, "1": 1}),
    " 1 = same , 0 = different ": (("different", "same"), {"different": 0, "same": 1, "0": 0, "1": 1}),
    "no,maybe,yes": (("no", "maybe", "yes"), {"no": 0, "maybe": 1, "yes": 2, "0": 0, "1": 1, "2": 2}),
    "0=no,0=unsure,1=yes": (("no", "yes"), {"no": 0, "unsure": 0, "yes": 1, "0": 0, "1": 1}),
    "0=1,1=0": (("1", "0"), {"1": 0, "0": 1}),
    "0=5,1=6": (("5", "6"), {"5": 0, "6": 1}),
}


@pytest.mark.parametrize("text", MAPS)
def test_a_label_map_names_the_classes_and_config_json_keeps_them(text):
    labels = labels_of({}, text)
    assert (labels.names, labels.classes) == MAPS[text]
    kept = json.loads(json.dumps(with_labels({"vocab_size": 9, "num_labels": 7}, labels)))
    assert kept["num_labels"] == len(labels.names) and kept["vocab_size"] == 9
    assert kept["id2label"] == {str(number): name for number, name in enumerate(labels.names)}
    again = labels_of(kept)
    assert (again.names, again.classes) == (labels.names, labels.classes)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("same", "needs 2 classes or more"),
        ("0=same,0=equal", "needs 2 classes or more"),
        ("0=a,2=b", "its classes are 0, 2, not 0 and up without a gap"),
        ("1=a,2=b", "its classes are 1, 2, not 0 and up without a gap"),
        ("x=a,1=b", "'x' is no class"),
        ("-1=a,0=b", "'-1' is no class"),
        ("0=a,1=a", "the name 'a' stands twice"),
        ("0=a,1=", "class 1 has no name"),
        ("a,,b", "class 1 has no name"),
        ("0=a,b", "some of its parts have a class and some have none"),
    ],
)
def test_a_label_map_that_is_not_clear_is_refused(text, reason):
    with pytest.raises(InputError, match=rf"--label_map {text}: .*{reason}; write 0=different,1=same, for"):
        labels_of({}, text)


@pytest.mark.parametrize(
    "config, allowed",
    [
        ({}, "0, 1"),
        ({"num_labels": 3}, "0, 1, 2"),
        ({"num_classes": 3}, "0, 1, 2"),
        ({"num_labels": 2, "id2label": {"0": "no", "1": "yes"}}, "no, yes, 0, 1"),
        (
            {"num_labels": 2, "id2label": {"1": "yes", "0": "no"}, "label2id": {"nope": 0}},
            "yes, no, nope, 1, 0",
        ),
    ],
)
def test_without_a_map_the_model_says_what_the_classes_are(config, allowed):
    assert labels_of(config).allowed == allowed


@pytest.mark.parametrize(
    "config",
    [
        {"num_labels": 1},
        {"num_labels": True},
        {"num_labels": "2"},
        {"num_labels": 3, "id2label": {"0": "no", "1": "yes"}},
        {"num_labels": 2, "id2label": {"0": "no", "one": "yes"}},
        {"id2label": {}},
    ],
)
def test_a_model_whose_classes_are_not_clear_is_refused(config):
    with pytest.raises(InputError, match="config.json: .*; (mend|a classifier needs)"):
        labels_of(config)


def test_names_and_numbers_are_the_labels_of_a_file(tmp_path):
    path = write(tmp_path / "a.tsv", "左\t右\tsame\n上\t下\tdifferent\n前\t后\t1\n")
    assert rows_in(path, labels_of({}, "different,same")) == THREE
    path = write(tmp_path / "a.json", '{"query": "左", "title": "右", "label": "same"}\n')
    assert rows_in(path, labels_of({}, "different,same")) == [("左", "右", 1)]
    write(tmp_path / "a.tsv", "左\t右\tSame\n")
    with pytest.raises(InputError, match=r"a\.tsv:1: label 'Same' is not one of different, same, 0, 1"):
        rows_in(tmp_path / "a.tsv", labels_of({}, "different,same"))


class Sets:
    """Stands for PaddleNLP's load_dataset: asked and answered without a network."""

    def __init__(self, splits):
        self.splits, self.asked = splits, []

    def load_dataset(self, path, name=None, splits=None):
        self.asked.append((path, name, splits))
        if splits not in self.splits:
            raise ValueError(f'Invalid split "{splits}". Should be one of {list(self.splits)}.')
        return self.splits[splits]


@pytest.fixture
def sets(monkeypatch):
    """sets(splits) puts them in place of PaddleNLP's."""
    import paddlenlp.datasets

    from ernie_pair.pair.data import pair_source

    pair_source._content_of_set.cache_clear()

    def put(splits):
        found = Sets(splits)
        monkeypatch.setattr(paddlenlp.datasets, "load_dataset", found.load_dataset)
        return found

    yield put
    pair_source._content_of_set.cache_clear()


def source_of(name, split="train", labels=TWO):
    return PairSource(f"{split}_file", name, split, labels)


LCQMC = [{"query": "左", "title": "右", "label": 1}, {"query": "上", "title": "下", "label": 0}]


@pytest.mark.parametrize(
    "name, asked",
    [
        ("lcqmc", ("lcqmc", None, "train")),
        ("bq_corpus", ("bq_corpus", None, "train")),
        ("paws-x", ("paws-x", None, "train")),
        ("afqmc", ("clue", "afqmc", "train")),
        ("mrpc", ("glue", "mrpc", "train")),
        ("qqp", ("glue", "qqp", "train")),
        ("clue:cmnli", ("clue", "cmnli", "train")),
    ],
)
def test_a_name_that_is_no_file_is_a_set_of_paddlenlp(sets, name, asked):
    found = sets({"train": LCQMC})
    pairs = source_of(name).read()
    assert found.asked == [asked]
    assert (pairs.left, pairs.right, pairs.labels.tolist()) == (["左", "上"], ["右", "下"], [1, 0])
    assert pairs.where(1) == f"{name} train:2"


def test_the_flag_chooses_the_part_of_a_set(sets):
    found = sets(
        {"train": LCQMC, "validation": LCQMC[:1], "test": [{"query": "东", "title": "西", "label": ""}]}
    )
    assert len(source_of("set", "dev").read()) == 1  # called validation on the Hub
    assert source_of("set", "test", labels=None).read().left == ["东"]
    assert [splits for _, _, splits in found.asked] == ["dev", "validation", "test"]


def test_the_keys_of_glue_and_a_change_of_content_are_noticed(sets):
    sets({"train": [{"sentence1": "左", "sentence2": "右", "labels": 1}]})
    first = source_of("mrpc").read()
    assert first.labels.tolist() == [1]
    from ernie_pair.pair.data.pair_source import _content_of_set

    _content_of_set.cache_clear()
    sets({"train": [{"sentence1": "左", "sentence2": "右", "labels": 0}]})
    assert source_of("mrpc").sha256() != first.sha256


def test_a_row_of_a_set_is_checked_like_one_of_a_file(sets):
    sets({"train": [*LCQMC, {"query": "左", "title": "右", "label": 2}]})
    with pytest.raises(InputError, match="lcqmc train:3: label 2 is not one of 0, 1"):
        source_of("lcqmc").read()


@pytest.mark.parametrize(
    "error", [RuntimeError("Retry limit\nreached"), ConnectionError("no Hub"), OSError()]
)
def test_without_a_network_a_set_is_one_line(monkeypatch, sets, error):
    import paddlenlp.datasets

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(paddlenlp.datasets, "load_dataset", fail)
    with pytest.raises(
        InputError, match="--train_file lcqmc is no file, and PaddleNLP cannot load"
    ) as caught:
        source_of("lcqmc").read()
    assert "check the name and the network, or give a file" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_set_without_pairs_and_one_without_the_part_are_refused(sets):
    sets({"train": []})
    with pytest.raises(InputError, match="--train_file lcqmc: its part train holds no pairs"):
        source_of("lcqmc").read()
    with pytest.raises(InputError, match='--test_file lcqmc is no file.*Invalid split "test"'):
        source_of("lcqmc", "test").read()


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    path = write(tmp_path / "a.tsv", "左\t右\t1\n")

    def and_write(*args):
        yield from rows_of(*args)
        write(path, "左\t右\t1\n上\t下\t1\n")

    monkeypatch.setattr(pair_file, "rows_of", and_write)
    with pytest.raises(InputError, match=r"a\.tsv changed while it was read; run again when it is complete"):
        rows_in(path)


def test_a_file_goes_before_a_set_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "lcqmc", "左\t右\t1\n")
    assert source_of("lcqmc").read().left == ["左"]


@pytest.mark.parametrize("name", ["absent.tsv", "folder/lcqmc", "lc qmc"])
def test_what_cannot_be_the_name_of_a_set_is_a_missing_file(name):
    with pytest.raises(InputError, match=f"{name}: no such file; give"):
        source_of(name).read()
