"""Every JSON file that the package reads, with invalid content: a one-line error, never a traceback.

Each reader is given the contents of HOSTILE in place of its file, and in a good file each value in turn is
replaced by those of WRONG. Files that can be regenerated are; any other damage is a one-line error.
"""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Callable, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import save as to_safetensors
from tiny_pair import write_model, write_pairs
from tiny_search import HashEmbedder, index_of, texts_of, use_embedder
from tiny_ship import ship, write_trained

from data_tools.corpus.format import Corpus, corpus_paths, open_verified
from data_tools.corpus.writer import CorpusWriter
from data_tools.samples.sample_map import cached_sample_map
from data_tools.text.text_files import STRICT, json_text
from data_tools.text.wordpiece import WordPiece
from ernie_pair.checkpoint.checkpoints import Checkpoints
from ernie_pair.checkpoint.manifest import (
    DamagedError,
    TrainState,
    manifest_bytes,
    parse_state,
    sha256_of,
    state_bytes,
)
from ernie_pair.checkpoint.run_folder import ensure_run_id
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.experiments.series import Series
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.inference.vector_files import open_vectors
from ernie_pair.models.embedding_json import EmbeddingSettings, read_embedding
from ernie_pair.models.labels import Labels
from ernie_pair.models.networks.classifier import build_classifier
from ernie_pair.models.source import open_model
from ernie_pair.models.spec import read_spec
from ernie_pair.models.temperature import Calibration, read_calibration, write_calibration
from ernie_pair.pairs.audit.findings import warn_before_training
from ernie_pair.pairs.data.pair_source import PairSource
from ernie_pair.pairs.data.row_cache import cached_rows
from ernie_pair.retrieval.index_folder import open_index_folder
from ernie_pair.runtime.processes.world import World
from ernie_pair.training.run_log import open_log
from ernie_pair.weights.weight_files import read_weights

DIGITS = "9" * 5000
HOSTILE = {
    "empty": b"",
    "cut": b'{"a": ',
    "no object": b"[]",
    "a text": b'"text"',
    "null": b"null",
    "deep lists": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "deep, but parsed": b'{"a":' * 500 + b"1" + b"}" * 500,
    "5,000 digits": b'{"a": %s}' % DIGITS.encode(),
    "10^400": b'{"a": 1%s}' % (b"0" * 400),
    "beyond a float": b'{"a": 1e999}',
    "NaN": b'{"a": NaN}',
    "Infinity": b'{"a": -Infinity}',
    "a key twice": b'{"a": 1, "a": 2}',
    "not UTF-8": b'{"a": "\xff"}',
    "zeros": b"\0" * 1000,
    "large": b" " * (17 << 20),
}
# JSON values that a reader may accept or refuse, as long as there is no traceback.
WRONG = (
    "null", "true", "-1", "0", "1.5", "1e-320", "1e10", "10000000000", "1e308", "1e999", "NaN", DIGITS,
    "1" + "0" * 400, "1" + "0" * 200, '["a", "b", "c"]',
    '"x"', '""', '"\\ud800"', "[]", "[[]]", "{}", '{"a": []}', '{"1": "a"}', "[" * 200 + "]" * 200,
)  # fmt: skip
SPECIAL = ("fifo", "folder", "device")


class Reader(NamedTuple):
    """A file, its reader, and the exit code when it is damaged; 0: it is regenerated."""

    path: Path
    read: Callable[[], object]
    code: int
    whole_lines: bool  # are the contents of HOSTILE put in place as they are?


READERS = {}


def reads(name, code, whole_lines=True):
    """Add a function of an empty folder to READERS, which returns the file that it writes and its reader."""

    def add(make):
        READERS[name] = lambda folder: Reader(*make(folder), code, whole_lines)
        return make

    return add


@reads("embedding", 2)
def _(folder):
    write_model(folder)
    settings = EmbeddingSettings("mean", 32, (8, 32), 24, 0.05, "f" * 64, {"model.onnx": "e" * 64})
    (folder / "embedding.json").write_text(settings.to_json())
    return folder / "embedding.json", lambda: read_embedding(folder)


@reads("vectors", 2)
def _(folder):
    about = {"format": 1, "fingerprint": "f" * 64, "count": 3, "dim": 2, "dtype": "float16"}
    (folder / "vectors.json").write_text(json.dumps({**about, "files": {"vectors.npy": "e" * 64}}))
    return folder / "vectors.json", lambda: open_vectors(folder)


@reads("config", 2)
def _(folder):
    write_model(folder, model_type="ernie", hidden_dropout_prob=0.1, id2label={"0": "a", "1": "b"})

    def read():
        source = open_model(str(folder), model_type="", from_scratch=True)
        assert source.spec.labels
        build_classifier(source, seed=0, dropout=0.1)

    return folder / "config.json", read


@reads("tokenizer_config", 2)
def _(folder):
    path = write_model(folder) / "tokenizer_config.json"
    path.write_text(json.dumps({"do_lower_case": True, "model_max_length": 64, "strip_accents": True}))
    return path, lambda: read_spec(folder / "config.json", folder / "vocab.txt")


@reads("calibration", 2)
def _(folder):
    write_calibration(folder, Calibration(1.5, "dev.tsv", rows=10))
    return folder / "calibration.json", lambda: read_calibration(folder, 2)


@reads("export", 3)
def _(folder):
    exported = ship(write_trained(folder / "best"), folder / "ship", "onnx")

    def ask():
        predictor = PairPredictor(exported, "onnx")
        assert np.isfinite(predictor.predict([("我你", "他们")]).probabilities).all()

    return exported / "export.json", ask


@reads("index", 3)
def _(folder):
    with pytest.MonkeyPatch.context() as patch:
        use_embedder(patch, HashEmbedder())
        return index_of(folder, texts_of(20)) / "index.json", lambda: open_index_folder(folder / "index")


@reads("corpus manifest", 2)
def write_corpus(folder):
    with CorpusWriter(folder / "text", vocab_size=100, about={"vocab_sha256": "x"}) as writer:
        writer.add([np.array([1, 2, 3]), np.array([4, 5])])
    return corpus_paths(folder / "text").manifest, lambda: Corpus(folder / "text").max_id


def note_of(read, folder, pattern="*.json"):
    """The note that a reader keeps beside what it makes."""
    read()
    (note,) = folder.glob(pattern)
    return note, read


@reads("note of a corpus", 0)
def _(folder):
    write_corpus(folder)
    return note_of(lambda: open_verified(folder / "text", folder / "memory"), folder / "memory")


@reads("note of a sample map", 0)
def _(folder):
    rows = np.arange(6).reshape(2, 3)

    def read():
        made = cached_sample_map(folder, {"a": (1, 2)}, lambda: rows, lambda kept: len(kept) == 2)
        assert np.array_equal(made, rows)

    return note_of(read, folder)


def sources_in(folder):
    labels, splits = Labels.numbered(2), ("train", "dev")
    paths = {split: write_pairs(folder / f"{split}.tsv", 12, seed) for seed, split in enumerate(splits)}
    return {split: PairSource(f"{split}_file", str(path), split, labels) for split, path in paths.items()}


@reads("note of rows", 0)
def _(folder):
    tokenizer = WordPiece.from_file(write_model(folder) / "vocab.txt")
    sources = [sources_in(folder)["train"]]

    def read():
        (rows,) = cached_rows(folder / "cache", sources, tokenizer, 32)
        assert len(rows) == 12

    return note_of(read, folder / "cache", "pairs-*.json")


@reads("note of an audit", 0)
def _(folder):
    (folder / "cache").mkdir()
    sources = sources_in(folder)
    return note_of(lambda: warn_before_training(folder / "cache", sources), folder / "cache", "audit-*.json")


@reads("plan of a comparison", 2)
def _(folder):
    config = SimpleNamespace(output_dir=str(folder), overwrite=False)
    series = Series("compare starts", config, ["compare.json"], {})
    plan = {"seed": 1, "flags": ["a", "b"], "test_file (sha256)": "x"}
    series.keep(plan)
    return folder / "plan.json", lambda: series.keep(dict(plan))


@reads("run", 3)
def _(folder):
    ensure_run_id(folder)
    return folder / "run.json", lambda: ensure_run_id(folder)


@reads("metrics", 0, whole_lines=False)
def _(folder):
    event = {"split": "train", "step": 1, "loss": 0.5, "consumed_samples": 8}
    (folder / "metrics.jsonl").write_text(json.dumps(event) + "\n")
    state = TrainState(step=5)
    return folder / "metrics.jsonl", lambda: open_log(folder, World(), resumed=state, max_steps=9).close()


@reads("pairs", 2, whole_lines=False)
def _(folder):
    path = folder / "pairs.jsonl"
    path.write_text('{"sentence1": "a", "sentence2": "b", "label": 1}')
    return path, PairSource("train_file", str(path), "train", Labels.numbered(2)).read


@reads("corpus line", 2, whole_lines=False)
def _(folder):
    path = folder / "text.jsonl"
    path.write_text('{"text": "a", "more": 1}')
    return path, lambda: json_text(str(path), 1, path.read_bytes(), STRICT)


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    """Each reader is made once; its file is put back before it is used again."""
    made = {}

    def get(name) -> Reader:
        if name not in made:
            reader = READERS[name](tmp_path_factory.mktemp("json"))
            made[name] = reader, reader.path.read_bytes()
        reader, good = made[name]
        remove(reader.path)
        reader.path.write_bytes(good)
        return reader

    return get


OF_LINES = ("pairs", "corpus line", "metrics")


def remove(path):
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def outcome(reader, capfd):
    """The exit code; a traceback is an exception here. An error is one line, within 10 seconds."""
    capfd.readouterr()
    started = time.perf_counter()
    code = exit_code_of(lambda: reader.read() and None)
    errors = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == (code != 0) and time.perf_counter() - started < 100  # or it hangs
    if errors:
        assert str(reader.path.parent) in errors[0] or reader.path.name in errors[0]
        assert len(errors[0]) < 500
    return code


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("name", READERS)
def test_an_invalid_json_file_is_an_error_line_or_regenerated(readers, capfd, name, content):
    reader = readers(name)
    if not reader.whole_lines and not content.strip(b"\0 "):
        pytest.skip("a line without text is tested elsewhere")
    reader.path.write_bytes(content)
    assert outcome(reader, capfd) == reader.code


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", [name for name in READERS if name not in OF_LINES])
def test_reading_a_special_file_does_not_block(readers, capfd, name, kind):
    reader = readers(name)
    if kind == "folder" and reader.code == 0:
        pytest.skip("a folder cannot be replaced by a file")
    remove(reader.path)
    if kind == "fifo":
        os.mkfifo(reader.path)
    elif kind == "folder":
        reader.path.mkdir()
    else:
        reader.path.symlink_to("/dev/zero")
    assert outcome(reader, capfd) == (2 if name in ("export", "index") else reader.code)


@pytest.mark.parametrize("name", READERS)
def test_a_wrong_value_is_a_one_line_error_or_has_no_effect(readers, capfd, name):
    good = json.loads(readers(name).path.read_bytes())
    codes = set()
    for text in changed_texts(good):
        reader = readers(name)
        reader.path.write_text(text)
        codes.add(outcome(reader, capfd))
    assert codes <= {0, reader.code} and reader.code in codes


def changed_texts(good):
    """JSON texts of ``good`` with each value (of a list, the first) replaced by each of WRONG."""
    for place in places_in(good):
        for wrong in WRONG:
            yield json.dumps(replaced(good, place, "@@")).replace('"@@"', wrong)


def places_in(value):
    inner = value.items() if isinstance(value, dict) else list(enumerate(value))[:1]
    for key, item in inner:
        yield (key,)
        if isinstance(item, (dict, list)):
            yield from ((key, *place) for place in places_in(item))


def replaced(value, place, new):
    if not place:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = replaced(copy[place[0]], place[1:], new)
    return copy


MODEL_VALUES = [
    *({"num_hidden_layers": count} for count in (-1, 0)),
    *({"num_attention_heads": count} for count in (0, -2)),
    *({"hidden_size": size} for size in (0, "32", 10**9)),
    *({"hidden_dropout_prob": share} for share in (1.0, -0.1)),
    *({"max_position_embeddings": 1}, {"vocab_size": 10**9}, {"num_classes": 10**10}),
    *({"id2label": {DIGITS: "a"}}, {"model_type": ["ernie"]}),
    {"num_attention_heads": 5, "hidden_size": 32},
]


@pytest.mark.parametrize("changes", MODEL_VALUES, ids=lambda changes: str(changes)[:40])
def test_an_impossible_model_setting_is_named_in_the_error(tmp_path, capfd, changes):
    folder = write_model(tmp_path / "m", **changes)
    assert exit_code_of(lambda: open_model(str(folder), model_type="", from_scratch=True) and None) == 2
    error = capfd.readouterr().err
    assert f"error: {folder / 'config.json'}" in error and next(iter(changes)) in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("name, line", [("pairs", 3), ("corpus line", 1)])
@pytest.mark.parametrize(
    "content", [HOSTILE[key] for key in HOSTILE if key not in ("empty", "large", "zeros")]
)
def test_an_invalid_json_line_is_reported_by_its_number(readers, capfd, name, line, content):
    reader = readers(name)
    reader.path.write_bytes((reader.path.read_bytes() + b"\n") * (line - 1) + content)
    capfd.readouterr()
    assert exit_code_of(lambda: reader.read() and None) == 2
    assert capfd.readouterr().err.startswith(f"error: {reader.path}:{line}")


def save_two(folder):
    checkpoints = Checkpoints(folder, World(), lambda values: values)
    arrays = {"w": np.ones(3, np.float32)}
    for step in (5, 10):
        state = TrainState(step=step, consumed_samples=step)
        checkpoints.save(state, {"seed": 1}, [("w.safetensors", arrays)], {"processes": 1})
    checkpoints.close()
    return folder / "checkpoints" / "step_00000010"


def newest(folder):
    checkpoints = Checkpoints(folder, World(), lambda values: values)
    try:
        found = checkpoints.resume({"seed": 1}, {"processes": 1})
        return found.state().step if found else 0
    finally:
        checkpoints.close()


def test_a_damaged_state_falls_back_to_previous_checkpoint(tmp_path):
    """Its hash is correct, as if it had been saved like that."""
    for name, state in HOSTILE.items():
        folder = save_two(tmp_path / name.replace(" ", "-"))
        manifest = json.loads((folder / "MANIFEST.json").read_text())
        (entry,) = [entry for entry in manifest["files"] if entry["name"] == "state.json"]
        entry.update(size=len(state), sha256=sha256_of(state))
        del manifest["format"], manifest["checksum"]
        (folder / "state.json").write_bytes(state)
        (folder / "MANIFEST.json").write_bytes(manifest_bytes(manifest))
        assert newest(folder.parents[1]) == 5, name


def test_a_changed_state_is_rejected_or_still_valid():
    good = json.loads(state_bytes(TrainState(step=10, consumed_samples=10)))
    damaged = 0
    for text in changed_texts(good):
        try:
            assert 0 <= parse_state(text.encode(), Path("state.json")).step < 2**63
        except DamagedError as error:
            damaged += 1
            assert str(error).startswith("state.json")
    assert damaged > 50


def test_a_damaged_manifest_falls_back_to_previous_checkpoint(tmp_path):
    for name, content in HOSTILE.items():
        folder = save_two(tmp_path / name.replace(" ", "-"))
        (folder / "MANIFEST.json").write_bytes(content)
        assert newest(folder.parents[1]) == 5, name


def test_a_wrong_safetensors_header_is_a_one_line_error(tmp_path, capfd):
    good = to_safetensors({"w": np.ones((2, 3), np.float32)})
    size = int.from_bytes(good[:8], "little")
    header, data, path = json.loads(good[8 : 8 + size]), good[8 + size :], tmp_path / "w.safetensors"
    changed = {text.encode() for text in changed_texts(header)} - {json.dumps(header).encode()}
    texts = [*sorted(changed), *HOSTILE.values()]
    codes = []
    for text in texts:
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)
        codes.append(exit_code_of(lambda: read_weights(path) and None))
    for length in (0, 7, 1 << 62, (1 << 64) - 1):
        path.write_bytes(length.to_bytes(8, "little") + good[8:])
        codes.append(exit_code_of(lambda: read_weights(path) and None))
    errors = capfd.readouterr().err.splitlines()
    assert set(codes) == {3} and all(line.startswith(f"error: {path}") for line in errors)
