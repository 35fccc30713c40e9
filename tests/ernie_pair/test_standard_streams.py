"""`-` in place of files, and --pair: what commands read, write and refuse."""

import io
import json
import os
from dataclasses import MISSING, fields

import numpy as np
import pytest
from children import python
from command_configs import CONFIGS
from tiny_search import HashEmbedder, texts_of, use_embedder
from tiny_ship import random_texts, ship, write_trained

from ernie_pair import load_config
from ernie_pair.__main__ import _run
from ernie_pair.commands import COMMANDS, config_class_of, function_of
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.cli.options import DASH, path_of
from ernie_pair.core.cli.standard_streams import with_standard_streams
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.atomic_files import CONFIG_YAML
from ernie_pair.embeddings.embed_config import EmbedConfig
from ernie_pair.pairs.config.ask_config import EvaluateConfig
from ernie_pair.retrieval.build_index import IndexConfig


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return write_trained(tmp_path_factory.mktemp("trained") / "best", num_labels=2)


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    return ship(trained, tmp_path_factory.mktemp("exported") / "ship", "paddle")


def run(*words, given=""):
    """Run a command in a process of its own; return (stdout, stderr, exit code)."""
    done = python("-m", "ernie_pair", *words, given=given)
    return done.stdout, done.stderr, done.returncode


@pytest.fixture
def run_here(monkeypatch, capfd):
    def run(*words, given=""):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        code = exit_code_of(lambda: _run([str(word) for word in words]))
        return (*capfd.readouterr(), code)

    return run


def table(pairs):
    return "".join(f"{left}\t{right}\n" for left, right in pairs)


def labelled(count=8):
    return "".join(f"{left}\t{right}\t{row % 2}\n" for row, (left, right) in enumerate(random_texts(count)))


@pytest.mark.parametrize("kind", ["trained", "exported"])
def test_predictions_work_from_stdin_to_stdout(kind, trained, exported, tmp_path, run_here):
    """They equal those of files; JSON rows are recognised by their opening brace."""
    ask = run if kind == "exported" else run_here
    pairs, command = random_texts(7), "predict"
    model = ("--model_path", trained if kind == "trained" else exported)
    (tmp_path / "pairs.tsv").write_text(table(pairs), encoding="utf-8")
    shown, told, code = ask(command, *model, "--input_file", "-", "--output_file", "-", given=table(pairs))
    assert code == 0, told
    output = tmp_path / "out.tsv"
    files = ("--input_file", tmp_path / "pairs.tsv", "--output_file", output)
    assert exit_code_of(lambda: _run([command, *map(str, [*model, *files])])) == 0
    assert shown == output.read_text() and len(shown.splitlines()) == 8
    rows = [json.dumps({"text_a": a, "text_b": b}) for a, b in pairs]
    again, told, code = run_here(command, *model, "--input_file=-", "--output_file=-", given="\n".join(rows))
    assert (code, again) == (0, shown), told


def test_mine_works_from_stdin_and_leaves_nothing_behind(run_here, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    given = "".join(f"怎么开户{n}\t如何开户{n}\t1\n" for n in range(6))
    shown, told, code = run_here("mine", "--train_file", "-", "--output_file", "-", given=given)
    assert code == 0, told
    assert shown.splitlines()[0].split("\t")[:3] == ["text_a", "text_b", "label"]
    assert not list(tmp_path.glob("ernie-pair-*"))


def test_index_search_and_embed_read_stdin(run_here, trained, tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    use_embedder(monkeypatch, HashEmbedder())
    texts = texts_of(20)
    index = ["--output_dir", tmp_path / "index", "--embedding_model", "any", "--kind", "flat"]
    _, told, code = run_here("index", "--input_file", "-", *index, given="\n".join(texts))
    assert code == 0, told
    assert load_config(IndexConfig, tmp_path / "index" / CONFIG_YAML).input_file == "-"
    search = ["search", "--index", tmp_path / "index", "--embedding_model", "any", "--top_k", "1"]
    rows = [json.dumps({"id": f"q{number}", "text": text}) for number, text in enumerate(texts[:3])]
    files = ["--input_file", "-", "--output_file", "-"]
    shown, told, code = run_here(*search, *files, given="\n".join(rows))
    assert code == 0, told
    answers = [json.loads(line) for line in shown.splitlines()]
    assert [(one["id"], one["hits"][0]["text"]) for one in answers] == [
        (f"q{number}", text) for number, text in enumerate(texts[:3])
    ]
    embed = ["embed", "--model_path", trained, "--output_dir", tmp_path / "vectors"]
    _, told, code = run_here(*embed, "--input_file", "-", given="\n".join(texts))
    assert code == 0 and len(np.load(tmp_path / "vectors" / "vectors.npy")) == 20, told
    assert load_config(EmbedConfig, tmp_path / "vectors" / CONFIG_YAML).input_file == "-"
    assert json.loads((tmp_path / "vectors" / "vectors.json").read_text())["texts"]["name"] == "-"


def test_reports_on_stdin_show_no_temporary_file_name(run_here, trained, tmp_path, exported):
    words = ["--model_path", trained, "--bootstrap", "0", "--report", tmp_path / "report"]
    files = ["--input_file", "-", "--output_file", tmp_path / "metrics.json"]
    _, told, code = run_here("evaluate", *words, *files, given=labelled())
    assert code == 0, told
    assert json.loads((tmp_path / "metrics.json").read_text())["input_file"] == "-"
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "input_file" in page and "/stdin." not in page
    words = ["--robustness", "order", "--bootstrap", "0", "--output_file", tmp_path / "found.json"]
    files = ["--model_path", exported, "--input_file", "-"]
    _, told, code = run_here("evaluate", *files, *words, given=labelled())
    assert code == 0, told
    assert json.loads((tmp_path / "found.json").read_text())["input_file"] == "-"


@pytest.mark.parametrize("kind", ["trained", "exported"])
def test_the_pair_flag_predicts_one_pair(kind, trained, exported, capfd):
    folder = trained if kind == "trained" else exported
    words = ["predict", "--model_path", str(folder), "--scores", "true", "--pair", "今天 天气\t好", '坏"']
    assert exit_code_of(lambda: _run(words)) == 0
    header, row = capfd.readouterr().out.splitlines()
    assert header.split("\t") == ["index", "prediction", "probability_0", "probability_1"]
    index, prediction, *scores = row.split("\t")
    assert index == "0" and abs(sum(map(float, scores)) - 1) < 1e-4
    assert float(scores[int(prediction)]) == max(map(float, scores))


def test_a_bad_row_of_stdin_is_reported(exported, run_here):
    words = ("predict", "--model_path", exported, "--input_file", "-", "--output_file", "-")
    shown, told, code = run_here(*words, given="a\tb\nonly one\n")
    read_as, error = told.splitlines()
    assert (shown, code) == ("", 2) and error.startswith("error: standard input:2: ")
    assert "no header: the first row is read as a pair" in read_as
    shown, told, code = run_here(*words, "--on_bad_row", "skip", given="a\tb\nonly one\n")
    assert code == 0 and shown.splitlines()[2].rstrip("\t") == "1"
    assert "standard input: 1 of 2 rows are not pairs" in told
    assert "predictions by" not in told and "1 prediction by" in told and told.endswith(": standard output\n")
    assert not os.path.exists("/dev/stdout.rejected.jsonl")
    _, told, code = run_here(*words, given="")
    assert code == 2 and told.startswith("error: standard input: it holds no pairs")


def test_text_can_be_piped_through_to_a_vocabulary(run_here):
    text = "今天天气真的非常好啊啊\n\n明天的天气也会非常好的吧\n"
    words = ("--input_path", "-", "--output_path", "-", "--no_shuffle", "true", "--workers", "2")
    done = python("-m", "data_tools.trans_to_json", *words, given=text)
    lines = done.stdout
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["text"] for line in lines.splitlines()] == text.split("\n")[0:3:2]
    assert [name for name in os.listdir("/dev") if "stdout." in name] == []
    streams = ("--input_path", "-", "--output_file", "-")
    vocabulary, told, code = run_here("build", "vocab", *streams, given=lines)
    assert code == 0 and vocabulary.startswith("[PAD]\n") and "天\n" in vocabulary, told
    report, told, code = run_here("audit", "text", "-", given=lines)
    assert code == 0 and "odd characters 0" in report, told


def streams_of(config_class):
    return [i.name for i in fields(config_class) if i.metadata["stdin"] or i.metadata["stdout"]]


@pytest.mark.parametrize("name", [name for name in COMMANDS if streams_of(config_class_of(COMMANDS[name]))])
def test_every_command_with_stream_flags_handles_streams(name):
    takes = getattr(function_of(COMMANDS[name]), "takes_streams", False)
    assert takes or name == "predict mlm"  # which reads each line as it comes


@pytest.mark.parametrize("config_class", CONFIGS, ids=lambda one: one.__name__)
def test_path_flags_without_stream_support_refuse_a_dash(config_class):
    for item in fields(config_class):
        if (
            path_of(item) not in ("", "NAME=PATH")
            and item.name not in streams_of(config_class)
            and item.type is str
        ):
            message = rf"(?i)^{item.name}\b.*-: it does not mean a standard stream here; name a f"
            with pytest.raises(InputError, match=message):
                parse(config_class, item, DASH)


def parse(config_class, item, value):
    missing = (item for item in fields(config_class) if item.default is MISSING)
    needed = {item.name: "x" if item.type is str else ["x"] for item in missing}
    return config_class(**{**needed, item.name: value})


@with_standard_streams
def asked(config):
    return config


@pytest.mark.parametrize("words", ["--pair a", "--pair", "--pair a --scores true", "--pair -5 -3"])
def test_a_pair_without_two_texts_is_a_one_line_error(words, capsys):
    assert exit_code_of(lambda: _run(["predict", "--model_path", "x", *words.split()])) == 2
    cure = "correct it, or put texts that begin with - into a file for --input_file"
    assert capsys.readouterr().err == f"error: --pair: expected 2 arguments; {cure}\n"


@pytest.mark.parametrize("words", ["- a.txt", "a.txt -", "- -"])
def test_a_dash_among_other_inputs_is_a_one_line_error(words, capsys):
    assert exit_code_of(lambda: _run(["audit", "text", *words.split()])) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: INPUTS -: standard input must be the only input") and told.count("\n") == 1


def test_stdin_that_is_closed_or_shared_is_refused(monkeypatch):
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
    with pytest.raises(InputError, match="several processes cannot share standard input; give a file"):
        asked(EvaluateConfig("x", "-", "out.json"))
    monkeypatch.delenv("PADDLE_TRAINERS_NUM")
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InputError, match="standard input is closed; give a file"):
        asked(EvaluateConfig("x", "-", "out.json"))
