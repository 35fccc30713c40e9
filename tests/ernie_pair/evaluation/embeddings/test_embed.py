"""The vectors of a file: what is stored, that a killed run resumes to identical bytes, bad input."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from levels import needs_bf16
from places import ROOT
from tiny_embedding import write_texts
from tiny_ship import write_trained

from ernie_pair.core.errors import CheckpointError, InputError, MachineError
from ernie_pair.core.files.atomic_files import CONFIG_YAML
from ernie_pair.embeddings.embed_config import EmbedConfig
from ernie_pair.embeddings.open_embedder import EmbedderOptions, open_embedder
from ernie_pair.evaluation.embeddings import embed as embedding
from ernie_pair.evaluation.embeddings.embed import embed
from ernie_pair.inference.vector_files import VectorWriter, open_vectors
from ernie_pair.retrieval.build_index import IndexConfig, make_index

COUNT, PIECE = 100, 16
# Writes small pieces, and is killed in the fourth: its rows are written, its line is not.
KILLED = """
import os, signal, sys
from ernie_pair.kernels.library import open_kernels
from ernie_pair.inference.vector_files import PIECES, VectorWriter
from ernie_pair.evaluation.embeddings import embed
from ernie_pair.__main__ import main

embed.PIECE = 16
write = VectorWriter._write

def killed(self, name, data):
    if name == PIECES and self.done == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, name, data)

VectorWriter._write = killed
sys.argv = ["ernie-pair", "embed", *sys.argv[1:]]
main()
"""


@pytest.fixture(scope="module")
def folder(module_path):
    write_trained(module_path / "model")
    write_texts(module_path / "texts.txt", COUNT)
    return module_path


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(embedding, "PIECE", PIECE)


def config_of(folder, output, **changes):
    flags = {"input_file": str(folder / "texts.txt"), "device": "cpu", "max_seq_len": 16}
    return EmbedConfig(model_path=str(folder / "model"), output_dir=str(output), **{**flags, **changes})


def vectors_of(folder):
    embedder = open_embedder(folder / "model", options=EmbedderOptions(max_seq_len=16))
    return embedder.embed((folder / "texts.txt").read_text(encoding="utf-8").split())


def files_in(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != CONFIG_YAML}


@pytest.mark.parametrize("dtype, bound", [("float16", 1e-3), ("int8", 1 / 200)])
def test_the_stored_vectors_are_those_of_the_texts(folder, tmp_path, small_pieces, dtype, bound):
    embed(config_of(folder, tmp_path / "v", dtype=dtype))
    found = open_vectors(tmp_path / "v")
    found.verify()
    assert (found.count, found.dim, found.dtype) == (COUNT, 32, dtype)
    assert isinstance(found.array, np.memmap) and found.array.dtype == dtype
    wanted = vectors_of(folder)
    assert np.abs(found.rows(0, COUNT) - wanted).max() < bound
    assert np.array_equal(found.rows(20, 30), found.rows(0, COUNT)[20:30])
    assert not (tmp_path / "v.part").exists()


def test_repeating_the_same_command_does_nothing(folder, tmp_path, capfd):
    for _ in "ab":
        embed(config_of(folder, tmp_path / "v"))
    assert "nothing to do" in capfd.readouterr().err
    with pytest.raises(InputError, match="it was made with dtype='float16' and not 'int8'|dtype 'float16'"):
        embed(config_of(folder, tmp_path / "v", dtype="int8"))
    embed(config_of(folder, tmp_path / "v", dtype="int8", overwrite=True))
    assert open_vectors(tmp_path / "v").dtype == "int8"


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_a_killed_run_resumes_to_identical_bytes(folder, tmp_path, small_pieces, monkeypatch, dtype):
    embed(config_of(folder, tmp_path / "whole", dtype=dtype))
    words = ["--model_path", folder / "model", "--input_file", folder / "texts.txt", "--dtype", dtype]
    words += ["--output_dir", tmp_path / "cut", "--max_seq_len", "16", "--device", "cpu"]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *map(str, words)],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "WARM": "1"},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (tmp_path / "cut.part" / "vectors.npy").is_file() and not (tmp_path / "cut").exists()
    asked, pack = [], embedding.pack_vectors
    monkeypatch.setattr(
        embedding, "pack_vectors", lambda rows, dtype: asked.append(len(rows)) or pack(rows, dtype)
    )
    embed(config_of(folder, tmp_path / "cut", dtype=dtype))
    assert sum(asked) == COUNT - 3 * PIECE
    whole, cut = files_in(tmp_path / "whole"), files_in(tmp_path / "cut")
    assert {name: whole[name] for name in whole if name[0] != "."} == {
        name: cut[name] for name in cut if name[0] != "."
    }


@contextmanager
def failing_after(monkeypatch, pieces):
    """The disk is full for one piece, behind this many; there is room for the next."""
    write, asked = VectorWriter._write, []

    def fail(self, name, data):
        asked.append(name)
        if name == "vectors.npy" and asked.count(name) == pieces + 1:
            raise OSError("the disk is full")
        write(self, name, data)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="the disk is full"):
        patch.setattr(VectorWriter, "_write", fail)
        yield


@pytest.mark.parametrize("damage", ["none", "bytes", "lines", "absent"])
def test_a_damaged_piece_is_recomputed(folder, tmp_path, small_pieces, monkeypatch, damage):
    embed(config_of(folder, tmp_path / "whole"))
    with failing_after(monkeypatch, 4):
        embed(config_of(folder, tmp_path / "cut"))
    vectors, pieces = (tmp_path / "cut.part" / name for name in ("vectors.npy", "pieces.txt"))
    if damage == "bytes":
        content = bytearray(vectors.read_bytes())
        content[128 + 32 * 2 * 20] ^= 1
        vectors.write_bytes(content)
    elif damage == "lines":
        pieces.write_bytes(pieces.read_bytes()[:-7])
    elif damage == "absent":
        vectors.unlink()
    embed(config_of(folder, tmp_path / "cut"))
    cut, whole = ((tmp_path / name / "vectors.npy").read_bytes() for name in ("cut", "whole"))
    assert cut == whole


def test_texts_that_change_meanwhile_are_reported(folder, tmp_path, small_pieces, monkeypatch):
    texts, rows_of, read = write_texts(tmp_path / "texts.txt", 20), embedding._rows_of, []

    def fewer(config):
        read.append(os.utime(texts, (1, 1)))
        return islice(rows_of(config), 20 - len(read))

    monkeypatch.setattr(embedding, "_rows_of", fewer)
    with pytest.raises(InputError, match="texts.txt changed while it was read; run again when it is"):
        embed(config_of(folder, tmp_path / "cut", input_file=str(texts)))


def test_partial_output_of_other_texts_is_not_reused(folder, tmp_path, small_pieces, monkeypatch):
    with failing_after(monkeypatch, 4):
        embed(config_of(folder, tmp_path / "v"))
    other = write_texts(tmp_path / "other.txt", 50, seed=5)
    for name in "vw":
        embed(config_of(folder, tmp_path / name, input_file=str(other)))
    assert (tmp_path / "v" / "vectors.npy").read_bytes() == (tmp_path / "w" / "vectors.npy").read_bytes()


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_a_database_gets_ids_texts_payload_and_vectors(folder, tmp_path, small_pieces, dtype):
    table = tmp_path / "faq.tsv"
    lines = [f"q{n}\t今天{n}\t{'答' * (n % 3)}" for n in range(3 * PIECE + 2)]
    table.write_text("\n".join(["id\t问题\t答案", *lines]) + "\n", encoding="utf-8")
    flags = {"input_file": str(table), "text_column": "问题", "format": "parquet", "payload_columns": "答案"}
    embed(config_of(folder, tmp_path / "v", dtype=dtype, **flags))
    found = pyarrow.parquet.read_table(tmp_path / "v" / "vectors.parquet").to_pydict()
    assert found["id"] == [f"q{n}" for n in range(len(lines))] and found["text"][4] == "今天4"
    assert found["答案"][:4] == [None, "答", "答答", None]
    vectors = open_vectors(tmp_path / "v")
    assert np.array_equal(np.array(found["vector"], np.float32), vectors.rows(0, vectors.count))
    with pytest.raises(InputError, match="payload_columns text: vectors.parquet has its own text"):
        config_of(folder, tmp_path / "w", **{**flags, "payload_columns": "答案,text"})


def test_ray_writes_the_same_bytes(folder, tmp_path, small_pieces):
    pytest.importorskip("ray")
    embed(config_of(folder, tmp_path / "one", dtype="int8"))
    embed(config_of(folder, tmp_path / "ray", dtype="int8", engine="ray", workers=2))
    one, ray = files_in(tmp_path / "one"), files_in(tmp_path / "ray")
    assert all(one[name] == ray[name] for name in one if name[0] != ".")


def test_a_replaced_model_is_opened_again(tmp_path):
    """A second run in one process must not answer with the weights that it opened for the first."""
    write_texts(tmp_path / "texts.txt", 8)
    write_trained(tmp_path / "model")
    embed(config_of(tmp_path, tmp_path / "before"))
    shutil.rmtree(tmp_path / "model")
    write_trained(tmp_path / "model", initializer_range=0.1)
    embed(config_of(tmp_path, tmp_path / "after"))
    before, after = (open_vectors(tmp_path / name) for name in ("before", "after"))
    assert (
        after.fingerprint
        == open_embedder(tmp_path / "model", options=EmbedderOptions(max_seq_len=16)).fingerprint
    )
    assert after.fingerprint != before.fingerprint
    assert np.abs(after.rows(0, 8) - vectors_of(tmp_path)).max() < 1e-3


@pytest.mark.parametrize("name, content, reason", [
    ("texts.txt", "我\n\n你\n".encode(), "texts.txt:2: an empty text"),
    ("texts.txt", b"a\n\xff\n", "texts.txt:2: not UTF-8"),
    ("texts.txt", b"", "holds no text"),
    ("texts.tsv", "id\ttext\na\t我\nb\t你\na\t我你\n".encode(), "texts.tsv:4: repeats the id of line 2"),
])  # fmt: skip
def test_bad_texts_are_reported_and_nothing_is_written(folder, tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=reason):
        embed(config_of(folder, tmp_path / "v", input_file=str(tmp_path / name)))
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("place, name, error, reason", [
    ("v", "dear.txt", InputError, "holds dear.txt, which would be lost"),
    ("v", CONFIG_YAML, InputError, "holds config.yaml, which would be lost"),
    ("v.part", "dear.txt", MachineError, "holds dear.txt, which no run made there"),
])  # fmt: skip
def test_foreign_files_are_not_overwritten(folder, tmp_path, place, name, error, reason):
    (tmp_path / place).mkdir()
    (tmp_path / place / name).write_text("seed: 1\n")
    for overwrite in (False, True):
        with pytest.raises(error, match=reason):
            embed(config_of(folder, tmp_path / "v", overwrite=overwrite))
    assert (tmp_path / place / name).read_text() == "seed: 1\n"


def test_a_link_to_a_folder_stays_a_link(folder, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "v").symlink_to(disk / "vectors")
    for flags in ({}, {"dtype": "int8", "overwrite": True}):
        embed(config_of(folder, tmp_path / "v", **flags))
        assert os.readlink(tmp_path / "v") == str(disk / "vectors")
    assert open_vectors(disk / "vectors").dtype == "int8"
    assert [path.name for path in disk.iterdir()] == ["vectors"]
    assert {path.name for path in tmp_path.iterdir()} == {"disk", "v"}


def test_damaged_vectors_are_an_error(folder, tmp_path):
    embed(config_of(folder, tmp_path / "v"))
    cut, longer = (Path(shutil.copytree(tmp_path / "v", tmp_path / name)) for name in ("cut", "longer"))
    (cut / "vectors.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(CheckpointError, match="is not the file that was written"):
        open_vectors(cut).verify()
    about = json.loads((longer / "vectors.json").read_text())
    (longer / "vectors.json").write_text(json.dumps({**about, "count": COUNT + 1}))
    for damaged in (cut, longer):
        with pytest.raises(CheckpointError):
            open_vectors(damaged).rows(0, 1)
    with pytest.raises(InputError, match="holds no vectors.json"):
        open_vectors(tmp_path)


@needs_bf16
@pytest.mark.parametrize("command", ["embed", "index"])
def test_lower_precision_is_told_beside_fp32(folder, tmp_path, capfd, command):
    if command == "index":
        pytest.importorskip("faiss")
    places = {"input_file": str(folder / "texts.txt"), "embedding_model": str(folder / "model")}
    if command == "embed":
        embed(config_of(folder, tmp_path / "out", precision="bf16"))
    else:
        make_index(IndexConfig(**places, output_dir=str(tmp_path / "out"), embedding_precision="bf16"))
    said = capfd.readouterr().err
    told = re.search(r"bf16 beside fp32: .* is ([\d.]+) in the mean, ([\d.]+) at least", said)
    assert 0.99 < float(told[2]) <= float(told[1]) <= 1
    assert said.count("fused kernels") == 1
