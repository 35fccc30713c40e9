"""The commands as functions of Python: their names, options and results; they print nothing."""

import inspect
import json
import re
import signal
import threading
import urllib.request
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from children import json_of, python
from tiny_pair import train_config, write_pairs
from tiny_pretrain import write_corpus, write_model
from tiny_search import write_embedder, write_lines
from tiny_ship import ship, write_trained
from waiting import free_port, until

import ernie_pair
from ernie_pair.commands import COMMANDS, config_class_of, python_names
from ernie_pair.core.cli.python_call import takes_options
from ernie_pair.core.errors import Stopped

FUNCTIONS = python_names()


def test_no_folder_is_called_like_a_function():
    folders = {path.parent.name for path in Path(ernie_pair.__file__).parent.glob("*/__init__.py")}
    assert not folders & set(FUNCTIONS)


def test_what_is_in_a_folder_can_be_replaced_by_its_name(monkeypatch):
    import ernie_pair.retrieval.searcher as searcher

    monkeypatch.setattr("ernie_pair.retrieval.searcher.RECALL_K", 7)
    assert searcher.RECALL_K == 7
    monkeypatch.setattr(ernie_pair, "search", len)
    assert ernie_pair.search("text") == 4


def test_no_public_name_is_a_module():
    modules = [name for name in ernie_pair.__all__ if inspect.ismodule(getattr(ernie_pair, name))]
    assert modules == [] and all(inspect.isfunction(getattr(ernie_pair, name)) for name in FUNCTIONS)


def test_the_functions_load_no_paddle():
    program = "import sys, ernie_pair.api; print('paddle' in sys.modules)"
    assert python("-c", program).stdout.split() == ["False"]


# --- their options


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_the_options_of_its_command(name):
    shown = inspect.signature(getattr(ernie_pair, name)).parameters
    classes = [config_class_of(row) for row in COMMANDS.values() if name in row.python.split()]
    assert {item.name for one in classes for item in fields(one)} < set(shown)
    for item in fields(classes[0]):
        assert shown[item.name].kind is inspect.Parameter.KEYWORD_ONLY
    for one in classes:
        public = [name for name in ernie_pair.__all__ if getattr(ernie_pair, name) is one]
        assert public == [one.__name__]


FILES = {"model_name_or_path": "model", "train_file": "train.tsv", "dev_file": "dev.tsv"}
WRONG = {
    "model_path and output_dir are missing; give them: ExportConfig(model_": lambda: ernie_pair.export(),
    "train has no option num_train_epochs; did you mean epochs?": lambda: ernie_pair.train(
        num_train_epochs=3
    ),
    "convert takes a configuration, ConvertConfig, not 'dynamic'; give": lambda: ernie_pair.convert(
        "dynamic"
    ),
    "make_sample takes a configuration, SampleConfig, or options by name, not both; put pairs into": (
        lambda: ernie_pair.make_sample(ernie_pair.SampleConfig("out"), pairs=20)
    ),
    "export has no option dims; ": lambda: ernie_pair.export(model_path="m", output_dir="out", dims="3"),
    "search has no query; give text or input_file": lambda: ernie_pair.search(index="i", embedding_model="e"),
    "epochs=-1 is below 1; use 1 or more": (
        lambda: ernie_pair.train_embedding(output_dir="o", epochs=-1, **FILES)
    ),
}


@pytest.mark.parametrize("said", WRONG)
def test_a_wrong_call_is_an_error_of_the_package(said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ernie_pair.InputError) as caught:
        WRONG[said]()
    assert said in str(caught.value) and "--" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_system_is_one_of_the_package():
    @takes_options(ernie_pair.SampleConfig)
    def fail(config):
        raise PermissionError(13, "Permission denied", config.output_dir)

    with pytest.raises(ernie_pair.MachineError, match="Permission denied at /out; check the free space"):
        fail(output_dir="/out")


# --- their results, and what they show


@pytest.fixture(scope="module")
def folder(module_path):
    """A trained classifier, an embedding model, pairs, texts and queries."""
    write_trained(module_path / "pair")
    write_embedder(module_path / "embedder")
    write_pairs(module_path / "test.tsv", 31)
    write_lines(module_path / "texts.txt", ["今天天气很好", "明天天气不好", "你们大家好", "他们前后左右"])
    return module_path


def test_evaluate_returns_what_it_would_write(folder, tmp_path, capfd):
    given = {"model_path": folder / "pair", "input_file": folder / "test.tsv", "bootstrap": 10}
    given.update(device="cpu")
    found = ernie_pair.evaluate(**given)
    assert found["rows"] == 31 and 0 <= found["accuracy"] <= 1
    for _ in range(2):  # the second time it is read
        assert ernie_pair.evaluate(**given, output_file=tmp_path / "test.json") == found
    assert json.loads((tmp_path / "test.json").read_text(encoding="utf-8")) == found
    shown = capfd.readouterr()
    assert shown.out == "" and not [line for line in shown.err.splitlines() if "WARNING" not in line]
    ernie_pair.evaluate(**given, verbose=True)
    shown = capfd.readouterr()
    assert json.loads(shown.out)["accuracy"] == found["accuracy"] and "temperature" in shown.err


def test_evaluate_follows_options_and_folder_as_the_command(folder, monkeypatch):
    given = {"model_path": folder / "embedder", "input_file": folder / "test.tsv"}
    with pytest.raises(ernie_pair.InputError, match="dims is a flag of evaluate embedding, and .* of pairs"):
        ernie_pair.evaluate(**given, dims="all")
    monkeypatch.setattr("ernie_pair.models.model_folder.kind_of_folder", lambda folder: "embedding")
    found = ernie_pair.evaluate(**given, dims="all")
    assert "mrr" in found["metrics"] and found["pairs"] == 31
    assert ernie_pair.evaluate(**given) == found
    with pytest.raises(ernie_pair.InputError, match="calibrate_on is not an option of EvaluateEmbedding"):
        ernie_pair.evaluate(**given, calibrate_on="dev.tsv")


def test_predict_returns_rows_and_writes_where_asked(folder, tmp_path, capfd):
    given = {"model_path": folder / "pair", "device": "cpu", "scores": True}
    (row,) = ernie_pair.predict(**given, pair=("今天很好", "明天很好"))
    assert set(row) == {"index", "prediction", "probability_0", "probability_1"}
    assert row["prediction"] in (0, 1) and abs(row["probability_0"] + row["probability_1"] - 1) < 1e-5
    rows = ernie_pair.predict(**given, input_file=folder / "test.tsv")
    assert [row["index"] for row in rows] == list(range(31))
    for _ in range(2):
        place = tmp_path / "rows.tsv"
        assert ernie_pair.predict(**given, input_file=folder / "test.tsv", output_file=place) == rows
    write_lines(tmp_path / "bad.tsv", ["今天很好\t明天很好\t1", "今天", "明天\t今天\t0"])
    found = ernie_pair.predict(**given, input_file=tmp_path / "bad.tsv", on_bad_row="skip")
    assert [row["prediction"] is None for row in found] == [False, True, False]
    assert capfd.readouterr().out == ""


def test_embed_returns_vectors_of_full_precision(folder, tmp_path):
    given = {"model_path": folder / "embedder", "input_file": folder / "texts.txt"}
    vectors = ernie_pair.embed(**given)
    texts = (folder / "texts.txt").read_text(encoding="utf-8").splitlines()
    exact = ernie_pair.open_embedder(folder / "embedder").embed(texts)
    assert vectors.dtype == np.float32 and np.array_equal(vectors, exact)
    for _ in range(2):
        stored = ernie_pair.embed(**given, output_dir=tmp_path / "vectors")
        assert stored.dtype == np.float32 and np.array_equal(stored, exact.astype(np.float16))


def test_search_returns_the_hits_of_an_index(folder, tmp_path, capfd):
    pytest.importorskip("faiss")
    made = {"input_file": folder / "texts.txt", "embedding_model": folder / "embedder"}
    index = ernie_pair.index(**made, output_dir=tmp_path / "index")
    given = {"index": index, "embedding_model": folder / "embedder", "top_k": 2}
    hits = ernie_pair.search(**given, text="今天天气很好")
    assert (hits[0].text, len(hits)) == ("今天天气很好", 2) and hits[0].score > hits[1].score
    many = ernie_pair.search(**given, input_file=folder / "texts.txt")
    assert [found[0].id for found in many] == ["0", "1", "2", "3"] and many[0][0].text == hits[0].text
    written = ernie_pair.search(**given, input_file=folder / "texts.txt", output_file=tmp_path / "hits.jsonl")
    assert [[hit.id for hit in row] for row in written] == [[hit.id for hit in row] for row in many]
    assert capfd.readouterr().out == ""


def test_train_returns_the_run_and_does_it_once(tmp_path, capfd):
    config = train_config(tmp_path, max_steps=4, eval_freq=2)
    first = ernie_pair.train(config)
    assert (first.step, first.is_done) == (4, True) and set(first.metrics) >= {"accuracy", "loss"}
    assert first.best_model.is_dir() and ernie_pair.train(config) == first
    shown = capfd.readouterr()
    assert shown.out == "" and "step" not in "".join(shown.err.split("WARNING")[0])
    ernie_pair.train(config, verbose=True)
    assert "start step 4/4" in capfd.readouterr().err
    exported = ernie_pair.export(model_path=config.output_dir, output_dir=tmp_path / "ship")
    assert ernie_pair.PairPredictor(exported).predict([("今天", "很好")]).classes.shape == (1,)


def test_distill_takes_datasets_beside_its_options(folder, tmp_path):
    pairs = [("今天很好", "明天很好", 1), ("今天", "明天不", 0)] * 8
    given = {"teacher": str(folder / "pair"), "layers": 1, "max_steps": 2, "batch_size": 8, "device": "cpu"}
    student = ernie_pair.distill(None, pairs, pairs, output_dir=tmp_path / "student", **given)
    named = {"train_dataset": pairs, "eval_dataset": pairs}
    assert ernie_pair.distill(output_dir=tmp_path / "again", **named, **given).metrics == student.metrics


# --- a process that does it all; signals


LINE = """
import json, sys
from pathlib import Path
import ernie_pair
here = Path(sys.argv[1])
given = dict(model_name_or_path=here / "model", from_scratch=True, input_dir=here / "data", split="80,10,10",
             max_seq_len=32, micro_batch_size=4, max_lr=0.01, eval_freq=2, save_steps=9, device="cpu")
run = ernie_pair.pretrain(**given, output_dir=here / "out", max_steps=4)
again = ernie_pair.pretrain(**given, output_dir=here / "out", max_steps=4)
to_convert = dict(static_model_path=run.model_last / "static_vars", output_dir=here / "dynamic")
folder, differences = ernie_pair.convert(**to_convert)
kept = ernie_pair.convert(**to_convert)
files = dict(train_file=here / "train.tsv", dev_file=here / "train.tsv", output_dir=here / "pair")
settings = dict(max_steps=2, batch_size=8, max_seq_len=32, device="cpu")
trained = ernie_pair.train(model_name_or_path=folder, **files, **settings)
more = ernie_pair.pretrain(**given, output_dir=here / "more", max_steps=2)
sizes = dict(num_samples=4, max_seq_len=32, split="80,10,10")
masked = ernie_pair.evaluate(model_path=more.model_last, input_dir=here / "data", **sizes)
is_same = again == run and kept.differences == differences
is_near = max(differences["lm_logits"].values()) < 1e-5
has_metrics = "lm_loss" in run.metrics and "lm_loss" in masked
print(json.dumps([run.step, run.is_done, is_same, is_near, trained.step, more.step, has_metrics]))
"""


def test_one_process_goes_through_the_whole_line(tmp_path):
    write_corpus(tmp_path / "data", write_model(tmp_path / "model"))
    write_lines(tmp_path / "train.tsv", ["天地玄\t天地黄\t1", "日月盈\t寒来暑\t0"] * 8)
    done = python("-c", LINE, tmp_path, WARM="1")
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = done.stdout.splitlines()  # and nothing else
    assert json.loads(line) == [4, True, True, True, 2, 2, True]
    told = [line for line in done.stderr.splitlines() if not re.search(r"WARN|^W\d{4} ", line)]
    assert told == []


INTERRUPTED = """
import json, os, signal, sys, threading, time
from pathlib import Path
import ernie_pair
here = Path(sys.argv[1])
given = dict(model_name_or_path=here / "model", from_scratch=True, input_dir=here / "data", split="80,10,10",
             max_seq_len=32, micro_batch_size=4, eval_freq=100000, device="cpu", output_dir=here / "out",
             max_steps=100000, logging_freq=1)
def interrupt():
    log = here / "out" / "metrics.jsonl"
    while not (log.is_file() and '"split": "train"' in log.read_text()):
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
try:
    ernie_pair.pretrain(**given)
except KeyboardInterrupt as error:
    is_back = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    print(json.dumps([str(error), is_back, (here / "out" / "model_last").is_dir()]))
"""


def test_ctrl_c_saves_and_is_raised_where_it_was_called(tmp_path):
    write_corpus(tmp_path / "data", write_model(tmp_path / "model"))
    said, is_back, is_saved = json_of("-c", INTERRUPTED, tmp_path, WARM="1")
    assert said.startswith("stopped by SIGINT after step ") and is_back and is_saved


def test_a_stopped_command_puts_the_signals_back():
    before = signal.getsignal(signal.SIGTERM)

    @takes_options(ernie_pair.SampleConfig)
    def stop(config):
        from ernie_pair.runtime.processes.stop_signals import StopSignals

        with StopSignals():
            raise Stopped("stopped by SIGTERM", 143)

    with pytest.raises(SystemExit, match="143"):
        stop(output_dir="out")
    assert signal.getsignal(signal.SIGTERM) is before


def test_serve_answers_from_another_thread(folder, tmp_path):
    for library in ("fastapi", "uvicorn", "prometheus_client"):
        pytest.importorskip(library)
    place = {"model_path": ship(folder / "pair", tmp_path / "ship"), "port": free_port()}
    threading.Thread(target=ernie_pair.serve, kwargs=place, daemon=True).start()

    def is_up():
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{place['port']}/health") as answer:
            return answer.status == 200

    until(is_up)


@pytest.mark.parametrize("call", [
    lambda: ernie_pair.PairPredictor("~/gone"),
    lambda: ernie_pair.open_embedder("~/gone"),
    lambda: ernie_pair.PairSearcher("~/gone"),
    lambda: ernie_pair.PairTrainer("~/gone", ernie_pair.PairConfig("out"), "a.tsv", "b.tsv"),
])  # fmt: skip
def test_a_tilde_is_the_home_folder_in_arguments(call, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ernie_pair.ErniePairError, match=f"{tmp_path}/gone"):
        call()
