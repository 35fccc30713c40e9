"""The one rule for how a command writes its results to the given paths."""

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from places import ROOT
from tiny_corpus import lines_of, make, start, write_vocab
from waiting import until

from data_tools.build_vocab import VocabConfig, build_vocab
from data_tools.make_sample import SampleConfig, make_sample
from data_tools.text.wordpiece import CONTROL_TOKENS
from data_tools.trans_to_json import TransConfig, trans_to_json
from ernie_pair.core.cli.options import Options, option
from ernie_pair.core.errors import InputError, MachineError
from ernie_pair.core.files import atomic_files
from ernie_pair.core.files.atomic_files import own_name, published, stem_of, try_lock
from ernie_pair.core.files.results import Results, check_absent, settings_of
from ernie_pair.models.commands import NewModelConfig, new_model


@pytest.fixture
def given(tmp_path):
    path = tmp_path / "in.tsv"
    path.write_text("one")
    return path


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.tsv"


def results(given, *outputs, overwrite=False, asked=(), **settings):
    settings = {"scores": False, **settings}
    return Results("tool", outputs, {"input_file": [given]}, settings, overwrite, requested=asked)


def write(made, text="result"):
    """Write results as a command does; return whether they were done already."""
    if made.are_done():
        return True
    with made.published() as drafts:
        for draft in drafts:
            draft.write_text(text)
    return False


def test_a_rerun_with_the_same_flags_does_nothing(given, out, capsys):
    assert not write(results(given, out))
    before = out.stat()
    assert write(results(given, out), "other")
    assert out.read_text() == "result" and out.stat().st_ino == before.st_ino
    assert capsys.readouterr().err == f"{out} exists, made from the same inputs and flags: nothing to do\n"


def test_other_flags_inputs_or_command_are_refused_with_reason(given, out):
    write(results(given, out))
    with pytest.raises(InputError, match=r"out\.tsv exists; pass overwrite=True .*scores=False and"):
        write(results(given, out, scores=True))
    with pytest.raises(InputError, match="it was made by tool"):
        write(Results("another", [out], {"input_file": [given]}, {"scores": False}, overwrite=False))
    given.write_text("two")
    with pytest.raises(InputError, match="it was made from other content of input_file"):
        write(results(given, out))
    assert out.read_text() == "result"
    assert not write(results(given, out, overwrite=True), "new") and out.read_text() == "new"
    assert write(results(given, out))


def test_settings_that_one_command_lacks_are_reported(given, out):
    write(results(given, out))
    with pytest.raises(InputError, match="it was made with another rows\\)"):
        write(results(given, out, rows=3))
    out.unlink()
    write(results(given, out, rows=3))
    with pytest.raises(InputError, match="it was made with rows=3\\)"):
        write(results(given, out))


def test_a_full_device_is_named_in_the_error(given):
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write(results(given, Path("/dev/full")))


@dataclass(frozen=True)
class Asked(Options):
    kernels: str = option(help="how", affects="speed")
    scores: bool = option(False, help="what")


def test_kernels_are_not_part_of_the_recorded_settings(tmp_path):
    out = tmp_path / "out.tsv"
    write(Results("tool", [out], {}, settings_of(Asked("fused")), overwrite=False))
    assert json.loads((tmp_path / ".out.tsv.made.json").read_text())["settings"] == {"scores": False}
    assert write(Results("tool", [out], {}, settings_of(Asked("plain")), overwrite=False))


def test_files_made_or_edited_by_hand_are_kept(given, out):
    out.write_text("mine")
    with pytest.raises(InputError, match=r"out\.tsv exists; pass overwrite=True"):
        write(results(given, out))
    assert not write(results(given, out, overwrite=True))
    out.write_text("edited")
    with pytest.raises(InputError, match="it was changed since it was made"):
        write(results(given, out))
    assert out.read_text() == "edited"


def test_a_rerun_completes_a_run_killed_between_two_files(tmp_path, given, monkeypatch):
    outputs = [tmp_path / "a", tmp_path / "b"]
    replace = os.replace

    def until_second(source, target):
        if Path(target).name == "b":
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", until_second)
        write(results(given, *outputs))
    assert [path.exists() for path in outputs] == [True, False]
    assert not write(results(given, *outputs))
    assert write(results(given, *outputs))


def with_asked(given, out, *more):
    return results(given, out, *more, asked=more)


def test_a_rerun_that_asks_for_one_more_file_makes_it(tmp_path, given):
    out, more = tmp_path / "out", tmp_path / "more"
    assert not write(with_asked(given, out))
    assert not write(with_asked(given, out, more)) and more.read_text() == "result"
    assert write(with_asked(given, out, more))
    assert write(with_asked(given, out)) and write(with_asked(given, out, more))  # nothing is forgotten
    more.write_text("edited")
    with pytest.raises(InputError, match="more exists; .*it was changed since it was made"):
        write(with_asked(given, out, more))
    other = tmp_path / "other"
    other.write_text("mine")
    with pytest.raises(InputError, match="other exists; pass overwrite=True"):
        write(with_asked(given, out, other))
    assert other.read_text() == "mine"


def test_a_stream_that_is_asked_for_is_written_each_time(tmp_path, given, capfd):
    for _ in range(2):
        assert not write(with_asked(given, tmp_path / "out", Path("/dev/stdout")))
        assert capfd.readouterr().out == "result"


def test_an_output_that_is_an_input_is_always_refused(tmp_path, given):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(given)
    os.link(given, tmp_path / "hard")
    for out in (given, tmp_path / "link", tmp_path / "hard", tmp_path / "folder" / ".." / "in.tsv"):
        with pytest.raises(InputError, match="would be written over input_file"):
            write(results(given, out, overwrite=True))
    assert given.read_text() == "one" and not list(tmp_path.glob("*.draft"))


def test_two_outputs_that_are_one_file_are_refused(tmp_path, given):
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(InputError, match="would be written over another output"):
        write(results(given, tmp_path / "a", tmp_path / "b", overwrite=True))


def test_a_link_is_written_through_and_its_target_is_guarded(tmp_path, given):
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "real.tsv", tmp_path / "out.tsv"
    link.symlink_to(target)
    assert not write(results(given, link))
    assert link.is_symlink() and target.read_text() == "result" and write(results(given, link))
    target.write_text("mine")
    with pytest.raises(InputError, match=r"real\.tsv exists; pass overwrite=True"):
        write(results(given, link))
    write(results(given, link, overwrite=True), "new")
    assert link.is_symlink() and target.read_text() == "new"


def test_a_device_output_is_written_to_and_not_replaced(tmp_path, given):
    for _ in range(2):
        assert not write(results(given, Path("/dev/null")))
    assert Path("/dev/null").is_char_device()
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    write(results(given, link))
    assert link.is_symlink() and Path("/dev/null").is_char_device()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.tsv", "null"]


def test_a_pipe_output_is_written_to_and_not_replaced(tmp_path, given):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write(results(given, pipe))
    reader.join(timeout=20)
    assert read == ["result"] and pipe.is_fifo()


@pytest.mark.parametrize("where", ["pipe", "file"])
def test_results_on_stdout_come_in_the_right_order(tmp_path, where):
    program = (
        "import sys; from pathlib import Path; from ernie_pair.core.files.results import Results\n"
        "print('before'); made = Results('tool', [Path('/dev/stdout')], {}, {}, False)\n"
        "assert not made.are_done()\n"
        "with made.published() as (draft,): draft.write_text('result\\n')\n"
        "print('after')\n"
    )
    with open(tmp_path / "said", "wb") as said:
        subprocess.run(
            [sys.executable, "-c", program]
            if where == "file"
            else ["sh", "-c", '"$0" -c "$1" | cat', sys.executable, program],
            check=True,
            stdout=said,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    assert (tmp_path / "said").read_text() == "before\nresult\nafter\n"


def test_a_symlink_planted_as_the_record_is_not_followed(tmp_path, given):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / ".out.tsv.made.json").symlink_to(tmp_path / "precious")
    write(results(given, tmp_path / "out.tsv"))
    assert (tmp_path / "precious").read_text() == "mine" and write(results(given, tmp_path / "out.tsv"))


def test_refuse_existing_checks_the_target_of_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    check_absent([tmp_path / "link"], overwrite=False)
    (tmp_path / "nowhere").write_text("mine")
    with pytest.raises(InputError, match="nowhere exists; pass overwrite=True"):
        check_absent([tmp_path / "link"], overwrite=False)


# --- drafts


def test_planted_drafts_are_neither_followed_nor_removed(tmp_path):
    (tmp_path / "precious").write_text("mine")
    for name in ("out.draft", ".out.draft", f".out-{'0' * 24}.draft"):
        (tmp_path / name).symlink_to(tmp_path / "precious")
    with published(tmp_path / "out") as (draft,):
        assert draft.lstat().st_size == 0 and not draft.is_symlink()
        draft.write_text("result")
    assert (tmp_path / "precious").read_text() == "mine" and (tmp_path / "out").read_text() == "result"
    assert len(list(tmp_path.iterdir())) == 5


def test_drafts_of_killed_runs_are_cleared_and_live_ones_kept(tmp_path):
    with published(tmp_path / "out") as (living,):
        dead = tmp_path / f"{own_name('.out')}.draft"
        spooled = tmp_path / f"{dead.name}.lens"
        for path in (dead, spooled):
            path.write_text("half")
        with published(tmp_path / "out") as (second,):
            assert living.exists() and second != living
            assert not dead.exists() and not spooled.exists()


def test_a_draft_removed_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    removed = []

    def lock_too_late(descriptor):
        if not removed:
            removed.extend(tmp_path.glob(".out-*.draft"))
            removed[0].unlink()
        return try_lock(descriptor)

    monkeypatch.setattr(atomic_files, "try_lock", lock_too_late)
    with published(tmp_path / "out") as (draft,):
        assert draft.exists() and draft not in removed
        draft.write_text("result")
    assert len(removed) == 1 and [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_left_draft_is_locked_while_it_is_removed(tmp_path, monkeypatch):
    dead, locked = tmp_path / f"{own_name('.out')}.draft", []
    dead.touch()
    unlink = Path.unlink

    def note_the_lock(path, missing_ok=False):
        if path == dead:
            with open(path) as file:
                locked.append(not try_lock(file.fileno()))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", note_the_lock)
    with published(tmp_path / "out"):
        assert locked == [True] and not dead.exists()


def test_only_our_own_temporary_names_are_recognised(tmp_path):
    name = own_name(".tmp-best")
    assert stem_of(name) == ".tmp-best" and stem_of(own_name("a-b")) == "a-b"
    assert own_name("a", "0" * 16) == own_name("a", "0" * 16) != own_name("b", "0" * 16)
    for other in (name[:-1], f"{name}0", f"x{name}", ".tmp-best-" + "0" * 24, name.upper()):
        assert stem_of(other) == ""


def test_a_failed_fsync_publishes_nothing(tmp_path, monkeypatch):
    (tmp_path / "out").write_text("before")
    calls = []

    def failing(descriptor):
        calls.append(descriptor)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="Input/output error"), published(tmp_path / "out") as (draft,):
        draft.write_text("result")
    assert calls and (tmp_path / "out").read_text() == "before" and len(list(tmp_path.iterdir())) == 1


# --- the data tools


def sample(folder, **flags):
    make_sample(SampleConfig(str(folder / "sample"), documents=6, pairs=20, **flags))


def trans(folder, **flags):
    trans_to_json(TransConfig(input_path=str(folder / "raw.txt"), output_path=str(folder / "text"), **flags))


def vocabulary(folder, **flags):
    build_vocab(VocabConfig(input_path=str(folder / "raw.txt"), output_file=str(folder / "v.txt"), **flags))


def model(folder, **flags):
    words = {"vocab_file": str(folder / "model" / "vocab.txt"), "output_dir": str(folder / "small")}
    new_model(NewModelConfig(**words, hidden_size=32, num_attention_heads=2, **flags))


def corpus(folder, **flags):
    make(folder, (folder / "in.jsonl").read_bytes(), **flags)


TOOLS = {
    "make_sample": (sample, {"seed": 5}, "sample/corpus.txt"),
    "trans_to_json": (trans, {"seed": 5}, "text.jsonl"),
    "build_vocab": (vocabulary, {"vocab_size": 12}, "v.txt"),
    "new_model": (model, {"num_hidden_layers": 1}, "small/config.json"),
    "create_pretraining_data": (corpus, {"max_sentence_length": 3}, "out_idx.npz"),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_every_data_tool_follows_the_overwrite_rule(tmp_path, tool, capfd):
    write_vocab(tmp_path)
    (tmp_path / "raw.txt").write_text(
        "我爱北京天安门我爱学习。\n\n我爱学习天安门北京。\n" * 9, encoding="utf-8"
    )
    (tmp_path / "in.jsonl").write_bytes(lines_of("我爱北京天安门", "我爱学习"))
    run, other, output = TOOLS[tool]
    run(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    stamp = (tmp_path / output).stat().st_mtime_ns
    capfd.readouterr()
    run(tmp_path)
    assert "nothing to do" in capfd.readouterr().err and (tmp_path / output).stat().st_mtime_ns == stamp
    with pytest.raises(InputError, match=f"exists; pass overwrite=True .*{next(iter(other))}="):
        run(tmp_path, **other)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    run(tmp_path, overwrite=True, **other)
    assert (tmp_path / output).read_bytes() != before[tmp_path / output]
    if tool == "make_sample":  # which reads nothing
        return
    with open(tmp_path / "raw.txt", "a", encoding="utf-8") as text:
        text.write("\n学习学习学习学习学习。\n")
    (tmp_path / "in.jsonl").write_bytes(lines_of("我爱北京", "我爱学习"))
    with open(tmp_path / "model" / "vocab.txt", "a", encoding="utf-8") as text:
        text.write("[unused1]\n")
    with pytest.raises(InputError, match="exists; pass overwrite=True .*it was made from other content of "):
        run(tmp_path, **other)


def test_a_users_folder_beside_a_corpus_is_kept(tmp_path):
    write_vocab(tmp_path)
    for name in ("out.shards", "text.jsonl.parts"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.txt").write_text("mine")
    (tmp_path / "raw.txt").write_text("我爱北京天安门我爱学习。\n" * 9, encoding="utf-8")
    with pytest.raises(MachineError, match=r"out\.shards holds mine\.txt"):
        make(tmp_path, lines_of("我爱北京天安门"))
    trans(tmp_path)
    for name in ("out.shards", "text.jsonl.parts"):
        assert (tmp_path / name / "mine.txt").read_text() == "mine"
    assert json.loads((tmp_path / "text.jsonl").read_text().splitlines()[0])


@pytest.fixture
def prepare(tmp_path):
    """Runs prepare_data.sh in this environment: (exit code, stderr)."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "environment.sh").write_text(f"ROOT={ROOT}\nPY={sys.executable}\n")
    script = (ROOT / "scripts" / "prepare_data.sh").read_text(encoding="utf-8")
    (tmp_path / "scripts" / "prepare_data.sh").write_text(script, encoding="utf-8")
    text = "我爱北京天安门我爱学习。\n\n我爱学习天安门北京。\n"
    (tmp_path / "raw.txt").write_text(text * 9, encoding="utf-8")

    def run(*flags, **variables):
        places = {"TEXT": str(tmp_path / "raw.txt"), "OUT": str(tmp_path / "data"), "WORKERS": "1"}
        done = subprocess.run(
            ["sh", str(tmp_path / "scripts" / "prepare_data.sh"), *flags],
            env={**os.environ, "PYTHONPATH": str(ROOT), **places, **variables},
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stderr

    return run


def test_preparing_again_does_nothing_or_says_what_differs(tmp_path, prepare):
    assert prepare()[0] == 0
    files = {p: p.read_bytes() for p in (tmp_path / "data").iterdir()}
    code, said = prepare()
    assert code == 0 and said.count("nothing to do") == 3
    code, said = prepare("--max_sentence_length", "3")
    assert code == 2 and "--max_sentence_length 510 and not 3" in said.splitlines()[-1]
    with open(tmp_path / "raw.txt", "a", encoding="utf-8") as text:
        text.write("\n学习学习学习学习学习。\n")
    code, said = prepare()
    assert code == 2 and "from other content of --input_path" in said.splitlines()[-1]
    assert files == {p: p.read_bytes() for p in (tmp_path / "data").iterdir()}
    for flags in ("--overwrite False", "--overwrite=no", "--overwrite true --overwrite off"):
        assert prepare(*flags.split())[0] == 2
    assert files == {p: p.read_bytes() for p in (tmp_path / "data").iterdir()}
    assert prepare("--overwrite", "TRUE")[0] == 0 and prepare()[0] == 0
    assert (tmp_path / "data" / "text_ids.npy").read_bytes() != files[tmp_path / "data" / "text_ids.npy"]


def test_a_users_vocabulary_is_used_unchanged(tmp_path, prepare):
    path = write_vocab(tmp_path)
    code, said = prepare(VOCAB=path)
    assert code == 0 and "vocab.txt: " not in said
    assert prepare(VOCAB=path)[1].count("nothing to do") == 2


def test_a_vocabulary_that_the_user_built_is_never_rebuilt(tmp_path, prepare):
    """It has a record beside it, as one that the script built."""
    source, twins = tmp_path / "vocab.txt", tmp_path / "twins.txt"
    source.write_text(
        "\n".join([*CONTROL_TOKENS[:4], *"我爱北京天安门学习。", CONTROL_TOKENS[4], ""]), "utf-8"
    )
    build_vocab(VocabConfig(add_twins_to=str(source), output_file=str(twins)))
    before = twins.read_bytes()
    code, said = prepare("--overwrite", "true", VOCAB=str(twins))
    assert code == 0 and "vocab.txt: " not in said and twins.read_bytes() == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_preparation_leaves_nothing_in_shared_memory(tmp_path, number):
    """All of its processes are killed at once, including the one that would clean up after the others."""
    write_vocab(tmp_path)
    line = lines_of("我爱北京天安门，我爱学习！" * 400)
    (tmp_path / "in.jsonl").write_bytes(line * 3000)
    before = set(os.listdir("/dev/shm"))
    process = start(tmp_path, "--workers", "2", start_new_session=True)
    until(lambda: list(tmp_path.glob("out.shards/*.shard")))
    assert process.poll() is None
    os.killpg(process.pid, number)
    process.communicate(timeout=60)
    until(lambda: not subprocess.run(["pgrep", "-s", str(process.pid)], stdout=subprocess.PIPE).stdout)
    assert not [name for name in os.listdir("/dev/shm") if name not in before and name.startswith("sem.mp-")]
