"""The file of the rows that were left out, after a later run of the same command has left out none."""

import pytest

from ernie_pair.core.errors import InputError
from ernie_pair.core.files.atomic_files import keep_no_results
from ernie_pair.pairs.data.pair_file import BadRow
from ernie_pair.pairs.data.pair_records import RowRules
from ernie_pair.pairs.data.pair_source import CheckedPairs, PairSource
from ernie_pair.pairs.data.rejected import StreamedRejects, log_rejected, rejected_beside

BAD = [BadRow(3, "a.tsv:3: 1 column instead of 3"), BadRow(7, "a.tsv:7: sentence1 is empty")]


@pytest.fixture
def path(tmp_path):
    """The file of an earlier run that left out two rows."""
    found = rejected_beside(str(tmp_path / "out.tsv"))
    log_rejected("a.tsv", BAD, 10, found)
    assert len(found.read_text(encoding="utf-8").splitlines()) == 2
    return found


def tell_of_none(path):
    log_rejected("a.tsv", [], 12, path)


def stream_of_none(path):
    StreamedRejects("a.tsv", path).log()


def check_good_pairs(path):
    pairs = path.with_name("a.tsv")
    pairs.write_text("左\t右\t1\n", encoding="utf-8")
    CheckedPairs(PairSource("input_file", str(pairs), "test", None, rules=RowRules(skips=True)), path)


@pytest.mark.parametrize("run", [tell_of_none, stream_of_none, check_good_pairs])
def test_rejected_rows_of_an_earlier_run_are_removed(path, run):
    run(path)
    assert not path.exists()
    run(path)


USERS = {
    "a note of the user": lambda path: path.write_text(path.read_text() + '{"todo": "correct line 3"}\n'),
    "a key of the user": lambda path: path.write_text('{"file": "a", "line": 3, "reason": "", "by": "me"}\n'),
    "no JSON": lambda path: path.write_text("my own list\n"),
    "not UTF-8": lambda path: path.write_bytes(b"\xff\xfe\n"),
    "an empty file": lambda path: path.write_text(""),
    "a link": lambda path: path.symlink_to(path.rename(path.with_name("mine.jsonl"))),
}


@pytest.mark.parametrize("write", USERS.values(), ids=USERS)
def test_a_users_file_with_the_name_of_rejected_rows_stays(path, write):
    write(path)
    content = path.read_bytes()
    tell_of_none(path)
    stream_of_none(path)
    assert path.read_bytes() == content


def tell_of_some(path):
    log_rejected("a.tsv", BAD, 12, path)


def stream_of_some(path):
    StreamedRejects("a.tsv", path)(BAD[0])


@pytest.mark.parametrize("run", [tell_of_some, stream_of_some])
@pytest.mark.parametrize("write", [write for name, write in USERS.items() if name != "an empty file"])
def test_a_users_file_is_not_replaced_by_rejected_rows(path, write, run):
    write(path)
    content = path.read_bytes()
    with pytest.raises(InputError, match="out.tsv.rejected.jsonl: .* it is not such a file"):
        run(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("run", [tell_of_some, stream_of_some])
def test_rejected_rows_replace_those_of_an_earlier_run(path, run):
    run(path)
    assert path.read_text(encoding="utf-8").startswith('{"file": "a.tsv", "line": 3')


def test_a_dry_or_failed_run_keeps_the_rejected_rows(path, tmp_path):
    with keep_no_results():
        tell_of_none(path)
    (tmp_path / "a.tsv").write_text("左\n", encoding="utf-8")
    with pytest.raises(InputError):
        CheckedPairs(PairSource("input_file", str(tmp_path / "a.tsv"), "test", None), path)
    assert path.exists()
