"""The pair audit finds exactly the planted faults, with their file and line; without paddle."""

import json
from pathlib import Path

import pytest
from tiny_pair import write_model

from ernie_pair.__main__ import _run
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.models.labels import Labels
from ernie_pair.pairs.audit.audit_pairs import AuditPairsConfig, audit_pairs
from ernie_pair.pairs.audit.findings import audit_of, coded, equal_class, warnings_of
from ernie_pair.pairs.data.pair_source import read_pairs

CLEAN = ["今天 天气 1", "明天 昨天 0", "大小 多少 1", "上下 左右 0"]


def write(path, *rows):
    path.write_text("".join("\t".join(row.split()) + "\n" for row in rows), encoding="utf-8")
    return path


def audit(tmp_path, classes=2, length=128, **files):
    """files: the rows of train, dev and test, with spaces for tabs; test has no labels."""
    labels = Labels.numbered(classes)
    read = {
        name: read_pairs(write(tmp_path / f"{name}.tsv", *rows), None if name == "test" else classes)
        for name, rows in files.items()
    }
    return audit_of(coded(read), labels, equal_class(labels), None, length)


def found(tmp_path, *rows, **files):
    """{(file, kind): rows} of everything that was found."""
    made = audit(tmp_path, **({"train": rows} if rows else {}), **files)
    return {(finding.file, finding.kind): finding.rows for finding in made.findings}


def lines_of(tmp_path, kind, *rows, **files):
    made = audit(tmp_path, **({"train": rows} if rows else {}), **files)
    (finding,) = [finding for finding in made.findings if finding.kind == kind]
    names = [word for example in finding.examples for word in example.split() if ".tsv:" in word]
    return [Path(name).name for name in names]


def test_repeats_are_found_ignoring_case_and_width(tmp_path):
    rows = [*CLEAN, "ＡＢＣ, 好。 1", "今天！ 天气？ 1", "a-b-c 好 1", "今天 天气 1"]
    rows = [row.replace("ＡＢＣ, ", "ＡＢＣ， ") for row in rows]
    assert found(tmp_path, *rows) == {("train", "repeated"): 3}
    (repeated,) = audit(tmp_path, train=rows).findings
    assert (repeated.rows, repeated.exact) == (3, 1)
    assert lines_of(tmp_path, "repeated", *rows) == ["train.tsv:6", "train.tsv:7", "train.tsv:8"]


@pytest.mark.parametrize(
    "rows, kinds, lines",
    [
        (["？ ！ 0", "。 ！ 1", "？ ！ 0"], {"repeated": 1}, [3]),  # punctuation as it stands
        ([*CLEAN, "今天 天气 0", "昨天 明天 1", "昨天 明天 1"], {"contradicted": 5}, [1, 5, 2, 6, 7]),
        ([*CLEAN, "天气 今天 1", "昨天 明天 0", "昨天 明天 0"], {"reversed": 2, "repeated": 1}, [5, 6]),
        ([*CLEAN, "好 好！ 0", "大 大 1"], {"alike": 1}, [5]),
        (["一 二 1", "二 一 0"], {"contradicted": 2}, [1, 2]),  # and not intransitive
    ],
)
def test_each_kind_of_finding_is_counted_and_shown(tmp_path, rows, kinds, lines):
    assert found(tmp_path, *rows) == {("train", kind): count for kind, count in kinds.items()}
    assert lines_of(tmp_path, next(iter(kinds)), *rows) == [f"train.tsv:{number}" for number in lines]


def test_labels_that_break_transitivity_are_found(tmp_path):
    rows = ["一 二 1", "三 二 1", "三 四 1", "四 一 0", "五 一 0", "五 六 1", "一 三 0", "一 二 1"]
    made = audit(tmp_path, train=rows)
    assert {(f.kind, f.rows) for f in made.findings} == {("intransitive", 2), ("repeated", 1)}
    (finding,) = [f for f in made.findings if f.kind == "intransitive"]
    assert finding.examples == [
        f"{tmp_path}/train.tsv:4 says they differ, but 四 = 三 = 二 = 一",
        f"{tmp_path}/train.tsv:7 says they differ, but 一 = 二 = 三",
    ]


def test_transitivity_is_not_checked_without_a_same_class(tmp_path):
    rows = ["一 二 1", "三 二 1", "一 三 0", "四 五 2"]
    assert audit(tmp_path, classes=3, train=rows).findings == []


def test_pairs_and_texts_shared_with_training_are_found(tmp_path):
    dev = ["天气 今天！ 1", "今天 昨天 0", "今天 前 0", "前 后 1"]
    assert found(tmp_path, train=CLEAN, dev=dev, test=["明天 昨天", "来 去"]) == {
        ("dev", "shared"): 1,
        ("dev", "2 texts seen"): 1,
        ("dev", "1 text seen"): 1,
        ("test", "shared"): 1,
    }
    assert lines_of(tmp_path, "shared", train=CLEAN, dev=dev) == ["dev.tsv:1", "train.tsv:1"]


def test_a_label_unseen_in_training_is_reported(tmp_path):
    made = audit(tmp_path, train=["一 二 1", "三 四 1"], dev=["五 六 0", "七 八 1"])
    assert [(f.file, f.kind, f.rows) for f in made.findings] == [("dev", "unseen label", 1)]
    assert warnings_of(made) == [
        f"train: {tmp_path}/train.tsv has no pair of class 0; is it the right file?",
        "dev: 1 row (50.00 %) with a label that no training pair has",
    ]


WARNINGS = {
    "one class": (["a b1 1", "a b2 1"], ["c d1 1"], "train: {}/train.tsv has no pair of class 0; is it"),
    "one class in dev": (["a b1 0", "a b2 1"], ["c d1 1"], "dev: {}/dev.tsv has no pair of class 0"),
    "repeated": (["a b 1"] * 3 + ["c d 0"], ["e f 1"], "train: 2 rows (50.00 %) repeating an earlier"),
    "shared": (["a b 1", "c d 0"], ["b！ a 1", "e f 0"], "dev: 1 row (50.00 %) with a pair of the"),
    "two labels": (["a b 1", "a b。 0"], ["c d 1"], "train: 2 rows (100.00 %) with a pair that has two"),
}


@pytest.mark.parametrize("train, dev, warning", WARNINGS.values(), ids=WARNINGS)
def test_what_harms_is_a_warning_with_counts(tmp_path, train, dev, warning):
    warned = warnings_of(audit(tmp_path, train=train, dev=dev))
    assert any(line.startswith(warning.format(tmp_path)) for line in warned), warned


def test_labels_and_lengths_are_counted(tmp_path):
    made = audit(tmp_path, length=7, train=[*CLEAN, "一二三四 五六 0"], test=["一 二"])
    train, test = made.files["train"], made.files["test"]
    assert (train.rows, train.labels, test.labels) == (5, {"0": 3, "1": 2}, {})
    assert train.lengths == {**dict.fromkeys(("0", "5", "25", "50", "75", "95", "99"), 7), "100": 9}
    assert (train.too_long, test.too_long, made.unit) == (1, 0, "characters")


def test_harmless_findings_give_no_warnings(tmp_path):
    made = audit(tmp_path, train=[*CLEAN, "天气 今天 1"], dev=["前 今天 1", "前 来 0"])
    assert {f.kind for f in made.findings} == {"reversed", "1 text seen"} and warnings_of(made) == []


@pytest.fixture
def files(tmp_path):
    dirty = [*CLEAN, "今天 天气 1", "大小 多少 0", "天气 今天 1", "前 后 1", "来 去 0", '"我 你, 1']
    return {
        "train_file": str(write(tmp_path / "train.tsv", *dirty)),
        "dev_file": str(write(tmp_path / "dev.tsv", "后 前！ 1", "他 她 0")),
        "test_file": str(write(tmp_path / "test.tsv", "来 去", "好 坏")),
    }


def test_a_cleaned_copy_has_no_findings(tmp_path, files, capsys):
    before = {name: Path(path).read_bytes() for name, path in files.items()}
    audit_pairs(AuditPairsConfig(**files, output_dir=str(tmp_path / "clean"), drop_leaks="normalised"))
    kept = (tmp_path / "clean" / "train.tsv").read_text(encoding="utf-8").splitlines()
    assert [row.replace("\t", " ") for row in kept] == [
        CLEAN[0],
        CLEAN[1],
        CLEAN[3],
        "天气 今天 1",
        '"我 你, 1',
    ]
    assert before == {name: Path(path).read_bytes() for name, path in files.items()}
    assert sorted(path.name for path in (tmp_path / "clean").iterdir()) == [
        ".audit.json.made.json",
        "audit.json",
        "audit.png",
        "train.tsv",
    ]
    made = json.loads((tmp_path / "clean" / "audit.json").read_text(encoding="utf-8"))
    assert made["cleaned"]["removed"] == {"shared": 2, "contradicted": 2, "repeated": 1}
    assert made["cleaned"]["rows"] == 5 and made["files"]["train"]["rows"] == 10
    assert (tmp_path / "clean" / "audit.png").read_bytes().startswith(b"\x89PNG")
    assert "cleaned       " in capsys.readouterr().out
    audit_pairs(AuditPairsConfig(**{**files, "train_file": str(tmp_path / "clean" / "train.tsv")}))
    again = capsys.readouterr().out
    assert "repeated" not in again and "contradicted" not in again and "shared" not in again


def test_exact_and_normalised_leaks_are_counted_separately(tmp_path, capsys):
    train = [
        "今天 天气 1",
        "天气！ 今天 1",
        "明天 昨天 0",
        "ＡＢ cd 1",
        "ab CD 0",
        "大小 多少 1",
        "上下 左右 0",
    ]
    dev = ["天气 今天 1", "昨天？ 明天 0", "大小 多少 1"]
    files = {"train": train, "dev": dev}
    kinds = {f.kind: (f.rows, f.exact) for f in audit(tmp_path, **files).findings if f.exact is not None}
    assert kinds == {"contradicted": (2, 0), "reversed": (1, 0), "shared": (3, 2)}
    warned = warnings_of(audit(tmp_path, **files))
    shared = "3 rows (100.00 %) with a pair of the training file, in either order"
    assert f"dev: {shared} (2 exactly, 1 only when normalised)" in warned
    config = {"train_file": str(tmp_path / "train.tsv"), "dev_file": str(tmp_path / "dev.tsv")}
    left = {"exact": [1, 2, 3, 4, 6], "normalised": [6]}
    for compared, rows in left.items():
        out = tmp_path / compared
        audit_pairs(AuditPairsConfig(**config, output_dir=str(out), drop_leaks=compared))
        kept = (out / "train.tsv").read_text(encoding="utf-8").splitlines()
        assert kept == ["\t".join(train[row].split()) for row in rows]
        assert json.loads((out / "audit.json").read_text(encoding="utf-8"))["cleaned"]["compared"] == compared
        assert f"left out, compared {compared}: " in (printed := capsys.readouterr().out)
        assert "compared      exactly: character by character; normalised: NFKC" in printed


def test_cleaning_a_csv_keeps_its_format_and_encoding(tmp_path, capsys):
    header = "text_a,text_b,label\r\n"
    rows = [
        '"左, 上\n下",右,1\r\n',
        "前,后,0\r\n",
        '"左, 上\n下",右,1\r\n',
        "左,yes\r\n",
        '"前""",后,1\r\n',
        '"来\r去\n","a\n\nb",0\r\n',
    ]
    path, out = tmp_path / "a.csv", tmp_path / "out"
    path.write_bytes((header + "".join(rows)).encode("gb18030"))
    config = AuditPairsConfig(
        str(path), output_dir=str(out), drop_leaks="exact", encoding="gb18030", on_bad_row="skip"
    )
    audit_pairs(config)
    kept = header + "".join(rows[row] for row in (0, 1, 4, 5))
    assert (out / "a.csv").read_bytes() == kept.encode("gb18030")
    assert (
        "left out, compared exact: 1 bad rows, 0 shared, 0 contradicted, 1 repeated"
        in capsys.readouterr().out
    )
    (note,) = map(json.loads, (out / "train.rejected.jsonl").read_text().splitlines())
    assert note["line"] == 7 and note["reason"].startswith("2 columns instead of 3")


LAYOUTS = {
    "header, CRLF, mark": ("a.tsv",
     b"\xef\xbb\xbftext_a\ttext_b\tlabel\r\n" + "一\t二\t1\r\n一\t二\t1\r\n三\t四\t0".encode(),
     b"\xef\xbb\xbftext_a\ttext_b\tlabel\r\n" + "一\t二\t1\r\n三\t四\t0".encode()),
    "JSON": ("a.jsonl",
     '{"query": "一", "title": "二", "label":  1}\n{"title": "二", "query": "一", "label": 1}\n'.encode(),
     '{"query": "一", "title": "二", "label":  1}\n'.encode()),
    "a last line without an end": ("a.csv", "一,二,1\n一,二,1".encode(), "一,二,1\n".encode()),
}  # fmt: skip


@pytest.mark.parametrize("name, content, cleaned", LAYOUTS.values(), ids=LAYOUTS)
def test_a_cleaned_file_keeps_the_layout_byte_for_byte(tmp_path, name, content, cleaned):
    (tmp_path / name).write_bytes(content)
    out = tmp_path / "out"
    audit_pairs(AuditPairsConfig(train_file=str(tmp_path / name), output_dir=str(out), drop_leaks="exact"))
    assert (out / name).read_bytes() == cleaned


def test_the_report_has_names_tokens_and_no_control_codes(tmp_path, capsys):
    train = tmp_path / "train.tsv"
    train.write_text("今\x1b天\t明天\tsame\n今\x1b天\t明天\tsame\n我\t你\tdifferent\n", encoding="utf-8")
    vocab = write_model(tmp_path / "model") / "vocab.txt"
    words = [
        "--train_file",
        str(train),
        "--label_map",
        "different,same",
        "--vocab_file",
        str(vocab),
        "--max_seq_len",
        "5",
    ]
    _run(["audit", "pairs", *words])
    out = capsys.readouterr().out.splitlines()
    assert f"train         {train}: 3 pairs" in out
    assert "  labels      different 1 (33.33 %), same 2 (66.67 %)" in out
    assert (
        "  tokens      shortest 5, 5 % 5, 25 % 5, median 7, 75 % 7, 95 % 7, 99 % 7, longest 7 of a pair"
        in out
    )
    assert "              longer than 5: 2 pairs (66.67 %), which will be cut" in out
    assert f"  {train}:2  今\\x1b天 | 明天 | 1" in out


def test_the_same_class_can_be_set_by_a_flag(tmp_path, capsys):
    rows = ["一 二 0", "三 二 0", "一 三 1", "四 五 1"]
    config = {"train_file": str(write(tmp_path / "train.tsv", *rows)), "output_dir": str(tmp_path / "out")}
    audit_pairs(AuditPairsConfig(**config, same="0"))
    audited = json.loads((tmp_path / "out" / "audit.json").read_text(encoding="utf-8"))
    assert [(f["kind"], f["rows"]) for f in audited["findings"]] == [("intransitive", 1)]
    audit_pairs(AuditPairsConfig(**config, overwrite=True))
    assert json.loads((tmp_path / "out" / "audit.json").read_text(encoding="utf-8"))["findings"] == []
    assert capsys.readouterr().out.count("findings      none\n") == 1


DROPPING = {"drop_leaks": "exact", "output_dir": "out"}
REFUSED = [
    ({"drop_leaks": "exact"}, "--output_dir"),
    ({**DROPPING, "output_dir": "."}, "choose another one"),
    ({**DROPPING, "train_file": "lcqmc"}, "lcqmc is a set"),
    ({**DROPPING, "train_file": "a.tsv.gz"}, "packed"),
    *(({**DROPPING, "train_file": name}, name) for name in ("audit.json", "train.rejected.jsonl")),
    ({**DROPPING, "dev_file": "train.tsv"}, "would leave no pair"),
    ({"max_seq_len": 4}, "--max_seq_len 4"),
    ({"same": "2"}, "--same 2"),
    ({"label_map": "a"}, "--label_map"),
    ({"dev_file": "absent.tsv"}, "absent.tsv: no such file"),
    ({"train_file": "bad.tsv"}, "bad.tsv:1: label 'x'"),
    ({"vocab_file": "absent.txt"}, "absent.txt: no such file"),
    ({"label": "gleich"}, "'gleich'"),
]


@pytest.mark.parametrize("changes, named", REFUSED)
def test_audit_errors_are_one_line_with_exit_code_2(tmp_path, monkeypatch, capsys, changes, named):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "bad.tsv", "一 二 x")
    (tmp_path / "a.tsv.gz").write_bytes(b"")
    for name in ("train.tsv", "audit.json", "train.rejected.jsonl"):
        write(tmp_path / name, *CLEAN)
    assert exit_code_of(lambda: audit_pairs(AuditPairsConfig(**{"train_file": "train.tsv", **changes}))) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and named in line
    assert not (tmp_path / "out").exists()


def test_an_unlabelled_test_file_needs_no_label_column(tmp_path):
    (tmp_path / "L.csv").write_text("q1x,q2x,same\n一,二,1\n三,四,0\n", encoding="utf-8")
    (tmp_path / "T.csv").write_text("q1x,q2x\n五,六\n", encoding="utf-8")
    files = {"train_file": str(tmp_path / "L.csv"), "test_file": str(tmp_path / "T.csv")}
    audit_pairs(AuditPairsConfig(**files, text_a="q1x", text_b="q2x", label="same"))
