"""What the flags may name: other layouts, columns, labels, gzip files, and PaddleNLP datasets."""

import json
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

import pyarrow
import pytest
from pandas import NA, DataFrame, NaT

from ernie_pair.core.errors import InputError
from ernie_pair.models.labels import UNLABELLED, Labels, labels_in, parse_label_map
from ernie_pair.pairs.data import pair_source
from ernie_pair.pairs.data.in_memory_pairs import GivenPairs
from ernie_pair.pairs.data.pair_file import checked_rows
from ernie_pair.pairs.data.pair_records import Columns, RowRules
from ernie_pair.pairs.data.pair_source import PairSource

TWO = Labels.numbered(2)
THREE = [("左", "右", 1), ("上", "下", 0), ("前", "后", 1)]


def rows_in(path, labels=TWO, **rules):
    pairs = PairSource("train_file", str(path), "train", labels, rules=RowRules(**rules)).read()
    classes = [None] * len(pairs) if pairs.labels is None else pairs.labels.tolist()
    return list(zip(pairs.left, pairs.right, classes))


def write(path, content):
    path.write_text(content, encoding="utf-8")
    return path


MAPS = {
    "0=different,1=same": (("different", "same"), {"different": 0, "same": 1, "0": 0, "1": 1}),
    " 1 = same , 0 = different ": (("different", "same"), {"different": 0, "same": 1, "0": 0, "1": 1}),
    "no,maybe,yes": (("no", "maybe", "yes"), {"no": 0, "maybe": 1, "yes": 2, "0": 0, "1": 1, "2": 2}),
    "0=no,0=unsure,1=yes": (("no", "yes"), {"no": 0, "unsure": 0, "yes": 1, "0": 0, "1": 1}),
    "0=1,1=0": (("1", "0"), {"1": 0, "0": 1}),
    "0=5,1=6": (("5", "6"), {"5": 0, "6": 1}),
}


@pytest.mark.parametrize("text", MAPS)
def test_a_label_map_names_classes_and_config_json_keeps_them(text):
    labels = parse_label_map(text)
    assert (labels.names, labels.classes) == MAPS[text]
    kept = json.loads(json.dumps({"vocab_size": 9, "num_labels": 7, **labels.to_config()}))
    assert kept["num_labels"] == len(labels.names) and kept["vocab_size"] == 9
    assert kept["id2label"] == {str(number): name for number, name in enumerate(labels.names)}
    again = labels_in(kept)
    assert (again.names, again.classes) == (labels.names, labels.classes)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("same", "needs 2 classes or more"),
        ("0=same,0=equal", "needs 2 classes or more"),
        ("0=a,2=b", "its classes are 0, 2, not 0 and up without a gap"),
        ("1=a,2=b", "its classes are 1, 2, not 0 and up without a gap"),
        ("x=a,1=b", "'x' is not a class number"),
        ("-1=a,0=b", "'-1' is not a class number"),
        ("0=a,1=a", "the name 'a' is given twice"),
        ("0=a,1=", "class 1 has no name"),
        ("a,,b", "class 1 has no name"),
        ("0=a,b", "some of its parts have a class and some have none"),
    ],
)
def test_an_invalid_label_map_is_rejected(text, reason):
    with pytest.raises(InputError, match=rf"label_map='{text}': .*{reason}; write 0=different,1=same, for"):
        parse_label_map(text)


@pytest.mark.parametrize("config, allowed", [
    ({}, "0, 1"),
    ({"num_labels": 3}, "0, 1, 2"),
    ({"num_classes": 3}, "0, 1, 2"),
    ({"num_labels": 2, "id2label": {"0": "no", "1": "yes"}}, "no, yes, 0, 1"),
    ({"num_labels": 2, "id2label": {"1": "yes", "0": "no"}, "label2id": {"nope": 0}}, "yes, no, nope, 1, 0"),
])  # fmt: skip
def test_without_a_label_map_the_model_defines_the_classes(config, allowed):
    assert labels_in(config).allowed == allowed


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
def test_a_model_config_with_invalid_classes_is_rejected(config):
    with pytest.raises(InputError, match="config.json: .*; (fix|a classifier needs)"):
        labels_in(config)


def test_labels_in_a_file_may_be_class_names_or_numbers(tmp_path):
    path = write(tmp_path / "a.tsv", "左\t右\tsame\n上\t下\tdifferent\n前\t后\t1\n")
    assert rows_in(path, parse_label_map("different,same")) == THREE
    path = write(tmp_path / "a.json", '{"query": "左", "title": "右", "label": "same"}\n')
    assert rows_in(path, parse_label_map("different,same")) == [("左", "右", 1)]
    write(tmp_path / "a.tsv", "左\t右\t甲\n")
    with pytest.raises(InputError, match=r"a\.tsv:1: label '甲' is not one of different, same, 0, 1"):
        rows_in(tmp_path / "a.tsv", parse_label_map("different,same"))


@pytest.fixture
def home(tmp_path, monkeypatch):
    """home(module, {file: content}) makes a PaddleNLP dataset download these, and records each download.

    Everything but the download itself is PaddleNLP's: the folder, the file names, and the locking.
    """
    from paddlenlp import datasets

    monkeypatch.setattr(datasets.dataset, "DATA_HOME", str(tmp_path / "home"))
    pair_source.open_set.cache_clear()

    def put(module, files):
        downloads = []

        def download(url, root, md5):
            downloads.append(url)
            for name, content in files.items():
                path = Path(root) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content, encoding="utf-8")
            return str(Path(root) / next(iter(files)))

        module = import_module(f"paddlenlp.datasets.{module}")
        monkeypatch.setattr(module, "DATA_HOME", str(tmp_path / "home"))
        monkeypatch.setattr(module, "get_path_from_url", download)
        return downloads

    yield put
    pair_source.open_set.cache_clear()


def source_of(name, split="train", labels=TWO, skips=False):
    return PairSource(f"{split}_file", name, split, labels, rules=RowRules(skips=skips))


def rows_of_set(name, split="train", labels=TWO):
    pairs = source_of(name, split, labels).read()
    assert pairs.sha256 == source_of(name, split, labels).sha256()
    classes = [None] * len(pairs) if pairs.labels is None else pairs.labels.tolist()
    return list(zip(pairs.left, pairs.right, classes))


NAMED_SETS = {
    "lcqmc": ("lcqmc", "lcqmc/lcqmc/train.tsv", "左\t右\t1\n上\t下\t0\n"),
    "lcqmc_v2": ("lcqmc_v2", "lcqmc/train.tsv", "text_a\ttext_b\tlabel\n左\t右\t1\n上\t下\t0\n"),
    "bq_corpus": ("bq_corpus", "bq_corpus/bq_corpus/train.tsv", "左\t右\t1\n上\t下\t0\n"),
    "paws-x": ("paws-x", "paws-x-zh/paws-x-zh/train.tsv", "左\t右\t1\n上\t下\t0\n"),
    "nlpcc_dbqa": (
        "nlpcc_dbqa",
        "nlpcc-dbqa/nlpcc-dbqa/train.tsv",
        "qid\ttext_a\ttext_b\tlabel\n7\t左\t右\t1\n8\t上\t下\t0\n",
    ),
    "afqmc": (
        "clue",
        "afqmc_public/train.json",
        '{"sentence1": "左", "sentence2": "右", "label": "1"}\n'
        '{"sentence1": "上", "sentence2": "下", "label": "0"}\n',
    ),
    "qqp": (
        "glue",
        "QQP/train.tsv",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n" "0\t1\t2\t左\t右\t1\n1\t3\t4\t上\t下\t0\n",
    ),
    "glue:qnli": (
        "glue",
        "QNLI/train.tsv",
        "index\tquestion\tsentence\tlabel\n" "0\t左\t右\tnot_entailment\n1\t上\t下\tentailment\n",
    ),
}


@pytest.mark.parametrize("name", NAMED_SETS)
def test_a_named_dataset_is_downloaded_by_paddlenlp_and_read(home, name):
    module, file, content = NAMED_SETS[name]
    downloads = home(module, {file: content})
    assert rows_of_set(name) == [("左", "右", 1), ("上", "下", 0)]
    assert len(downloads) == 1
    assert source_of(name).read().path.endswith(file)


@pytest.mark.parametrize("missing", [None, float("nan"), NA, NaT, " "], ids=repr)
@pytest.mark.parametrize("place", [0, 1])
def test_a_row_without_its_query_is_refused_or_left_out(tmp_path, missing, place):
    rows = [{"s1": "左", "s2": f"右{number}", "label": 1, "qid": number} for number in range(3)]
    rows[place]["qid"] = missing
    columns, skip = Columns(query="qid"), RowRules(skips=True)
    frame = DataFrame(rows, dtype=object)
    with pytest.raises(InputError, match=rf"x\[{place}\]: no query; fill in the column"):
        GivenPairs("x", frame, TWO, columns).read()
    expected = [str(number) for number in range(3) if number != place]
    assert GivenPairs("x", frame, TWO, columns, skip).read().queries == expected
    path = tmp_path / "a.jsonl"
    rows[place]["qid"] = None
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    source = PairSource("train_file", str(path), "train", TWO, columns)
    with pytest.raises(InputError, match=rf"a.jsonl:{place + 1}: no query; fill in the column"):
        source.read()
    assert replace(source, rules=skip).read().queries == expected


@pytest.mark.parametrize("missing", [None, float("nan"), NA, NaT], ids=repr)
def test_a_missing_label_of_a_frame_is_named_as_such(missing):
    frame = DataFrame({"s1": ["左"], "s2": ["右"], "label": [missing]}, dtype=object)
    with pytest.raises(InputError, match=r"x\[0\]: no label; each row needs one of 0, 1"):
        GivenPairs("x", frame, TWO).read()
    optional = replace(TWO, are_optional=True)
    assert GivenPairs("x", frame, optional).read().known_labels.tolist() == [UNLABELLED]


@pytest.mark.parametrize("kind", [pyarrow.Table, pyarrow.RecordBatch])
def test_tables_of_arrow_are_read_by_row(kind):
    table = kind.from_pydict({"s1": ["左", "上"], "s2": ["右", "下"], "label": [1, 0]})
    assert GivenPairs("x", table, TWO).read().left == ["左", "上"]
    twice = kind.from_arrays([pyarrow.array(["左"])] * 3, names=["s1", "s2", "s2"])
    with pytest.raises(InputError, match="x has two columns of one name in s1, s2, s2; rename one"):
        GivenPairs("x", twice, TWO).read()


def test_mrpc_is_assembled_from_its_parts_by_paddlenlp(home):
    header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    files = {"dev_ids.tsv": "7\t8\n", "msr_paraphrase_train.txt": f"{header}1\t7\t8\ta\tb\n0\t5\t6\tc\td\n"}
    module = import_module("paddlenlp.datasets.glue")
    home("glue", files)
    module.get_path_from_url = partial(_one_file, module.get_path_from_url, files)
    assert rows_of_set("mrpc") == [("c", "d", 0)] and rows_of_set("mrpc", "dev") == [("a", "b", 1)]


def _one_file(download, files, url, root, md5):
    download(url, root, md5)
    return str(Path(root) / next(name for name in files if url.endswith(name)))


@pytest.mark.parametrize("row", ["左\t右", "左\t右\t1\t1", "左", "\t右\t1", "左\t\t1", "左\t右\t2"])
def test_a_malformed_dataset_row_is_reported_or_skipped(home, row):
    home("lcqmc", {"lcqmc/lcqmc/train.tsv": f"左\t右\t1\n{row}\n上\t下\t0\n"})
    with pytest.raises(InputError, match=r"LCQMC/lcqmc/lcqmc/train\.tsv:2: "):
        source_of("lcqmc").read()
    pairs = source_of("lcqmc", skips=True).read()
    assert (pairs.left, [bad.number for bad in pairs.bad]) == (["左", "上"], [2])


def test_clue_rows_without_a_gold_label_are_counted_as_bad(home):
    labels = ["entailment", "-", "neutral", "contradiction"]
    lines = [
        f'{{"sentence1": "{n}", "sentence2": "右", "label": "{label}"}}\n' for n, label in enumerate(labels)
    ]
    home("clue", {"ocnli_public/dev.json": "".join(lines)})
    pairs = source_of("clue:ocnli", "dev", Labels.numbered(3)).read()
    assert (pairs.left, pairs.labels.tolist()) == (["0", "2", "3"], [0, 2, 1])  # in the dataset's order
    assert [(bad.number, bad.place) for bad in pairs.bad] == [(2, 1)]
    named = parse_label_map("neutral,entailment,contradiction")
    assert source_of("clue:ocnli", "dev", named).read().labels.tolist() == [1, 0, 2]


def test_the_flag_chooses_the_dataset_split(home):
    rows = {"train": "左\t右\t1\n", "dev": "上\t下\t0\n", "test": "东\t西\n"}
    home("lcqmc", {f"lcqmc/lcqmc/{split}.tsv": row for split, row in rows.items()})
    assert rows_of_set("lcqmc", "dev") == [("上", "下", 0)]
    assert rows_of_set("lcqmc", "test", labels=None) == [("东", "西", None)]


def test_hashes_are_of_the_first_and_the_last_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(pair_source, "_END_BYTES", 10)  # a row
    last, first = [*THREE[:2], ("前", "后", 0)], [("左", "右", 0), *THREE[1:]]
    hashes = set()
    for rows in (THREE, last, first):
        path = write(tmp_path / "a.tsv", "".join(f"{a}\t{b}\t{c}\n" for a, b, c in rows))
        hashes.add(PairSource("train_file", str(path), "train", TWO, Columns()).sha256_of_ends())
        monkeypatch.setattr(PairSource, "_set", lambda self, rows=rows: rows)
        hashes.add(source_of("lcqmc").sha256())
    assert len(hashes) == 6


@pytest.mark.parametrize(
    "error", [RuntimeError("Retry limit\nreached"), ConnectionError("no net"), OSError()]
)
def test_a_failed_dataset_download_is_a_one_line_error(monkeypatch, home, error):
    def fail(*args, **kwargs):
        raise error

    home("lcqmc", {})
    monkeypatch.setattr(import_module("paddlenlp.datasets.lcqmc"), "get_path_from_url", fail)
    with pytest.raises(
        InputError, match="train_file lcqmc is not a file, and PaddleNLP cannot load"
    ) as caught:
        source_of("lcqmc").read()
    assert "check the name and the network, or give a file" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name, split, reason",
    [
        ("xnli_cn:no", "train", "xnli_cn has no parts; write xnli_cn"),
        ("clue:no", "train", "clue has the parts afqmc, .*; write clue:afqmc, for example"),
        ("clue", "train", "clue has the parts afqmc, "),
        ("imdb", "dev", "it has the parts train, test, and not dev"),
        ("intokens_dataset", "train", "PaddleNLP cannot load a set of that name"),
    ],
)
def test_an_unknown_dataset_part_or_split_is_an_error(home, name, split, reason):
    with pytest.raises(InputError, match=reason):
        source_of(name, split).read()


class Hub:
    """A stand-in for PaddleNLP's load_dataset, which asks the Hugging Face Hub for names it does not know."""

    def __init__(self, splits):
        self.splits, self.asked = splits, []

    def load_dataset(self, path, name=None, splits=None):
        self.asked.append((path, name, splits))
        if splits not in self.splits:
            raise ValueError(f'Invalid split "{splits}". Should be one of {list(self.splits)}.')
        return self.splits[splits]


def test_a_name_unknown_to_paddlenlp_is_loaded_from_the_hub(home, monkeypatch):
    import paddlenlp.datasets

    rows = [{"query": "左", "title": "右", "labels": 1}, {"query": "上", "title": "下", "labels": 2}]
    hub = Hub({"train": rows, "validation": rows[:1]})
    monkeypatch.setattr(paddlenlp.datasets, "load_dataset", hub.load_dataset)
    with pytest.raises(InputError, match="some_set train:2: label 2 is not one of 0, 1"):
        source_of("some_set").read()
    assert source_of("some_set", skips=True).read().left == ["左"]
    assert rows_of_set("some_set", "dev") == [("左", "右", 1)]  # called validation there
    assert hub.asked == [("some_set", None, split) for split in ("train", "dev", "validation")]
    with pytest.raises(InputError, match='test_file some_set is not a file.*Invalid split "test'):
        source_of("some_set", "test").read()


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    path = write(tmp_path / "a.tsv", "左\t右\t1\n")

    def and_write(*args):
        yield from checked_rows(*args)
        write(path, "左\t右\t1\n上\t下\t1\n")

    monkeypatch.setattr(pair_source, "checked_rows", and_write)
    with pytest.raises(InputError, match=r"a\.tsv changed while it was read; run again when it is complete"):
        rows_in(path)


def test_a_file_takes_precedence_over_a_dataset_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "lcqmc", "左\t右\t1\n")
    assert source_of("lcqmc").read().left == ["左"]
