"""The vectors of a file: what is stored, that a killed run resumes to identical bytes, bad input."""

import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from places import ROOT
from tiny_embedding import write_texts
from tiny_ship import write_trained

from data_tools.files.atomic_files import CONFIG_YAML
from data_tools.files.errors import CheckpointError, InputError, MachineError
from ernie_pair.embedding.embed_config import EmbedConfig
from ernie_pair.embedding.open_embedder import EmbedderOptions, open_embedder
from ernie_pair.inference.vector_files import open_vectors
from ernie_pair.score.embeddings import embed as embedding
from ernie_pair.score.embeddings.embed import embed

COUNT, PIECE = 100, 16
# Writes small pieces, and is killed in the fourth: its rows are written, its line is not.
KILLED = """
import os, signal, sys
from ernie_pair.score.embeddings import embed
from ernie_pair.__main__ import main

embed.PIECE = 16
write = embed.VectorWriter._write

def killed(self, name, data):
    if name == embed.PIECES and self.done == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, name, data)

embed.VectorWriter._write = killed
sys.argv = ["ernie-pair", "embed", *sys.argv[1:]]
main()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("embed")
    write_trained(folder / "model")
    write_texts(folder / "texts.txt", COUNT)
    return folder


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
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (tmp_path / "cut.part" / "vectors.npy").is_file() and not (tmp_path / "cut").exists()
    asked, pack = [], embedding.pack_vectors
    monkeypatch.setattr(
        embedding, "pack_vectors", lambda rows, kind: asked.append(len(rows)) or pack(rows, kind)
    )
    embed(config_of(folder, tmp_path / "cut", dtype=dtype))
    assert sum(asked) == COUNT - 3 * PIECE
    whole, cut = files_in(tmp_path / "whole"), files_in(tmp_path / "cut")
    assert {name: whole[name] for name in whole if name[0] != "."} == {
        name: cut[name] for name in cut if name[0] != "."
    }


def stop_after(monkeypatch, pieces):
    """Let the machine fail after this many pieces."""
    pack, made = embedding.pack_vectors, []

    def fail(rows, kind):
        if len(made) == pieces:
            raise MachineError("the machine failed")
        made.append(1)
        return pack(rows, kind)

    with monkeypatch.context() as patch:
        patch.setattr(embedding, "pack_vectors", fail)
        yield


@pytest.mark.parametrize("damage", ["bytes", "lines", "absent"])
def test_a_damaged_piece_is_recomputed(folder, tmp_path, small_pieces, monkeypatch, damage):
    embed(config_of(folder, tmp_path / "whole"))
    with pytest.raises(MachineError, match="the machine failed"):
        for _ in stop_after(monkeypatch, 4):
            embed(config_of(folder, tmp_path / "cut"))
    part = tmp_path / "cut.part"
    if damage == "bytes":
        content = bytearray((part / "vectors.npy").read_bytes())
        content[128 + 32 * 2 * 20] ^= 1
        (part / "vectors.npy").write_bytes(content)
    elif damage == "lines":
        (part / "pieces.txt").write_bytes((part / "pieces.txt").read_bytes()[:-7])
    else:
        (part / "vectors.npy").unlink()
    embed(config_of(folder, tmp_path / "cut"))
    name = "vectors.npy"
    assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_partial_output_of_other_texts_is_not_reused(folder, tmp_path, small_pieces, monkeypatch):
    with pytest.raises(MachineError, match="the machine failed"):
        for _ in stop_after(monkeypatch, 4):
            embed(config_of(folder, tmp_path / "v"))
    other = write_texts(tmp_path / "other.txt", 50, seed=5)
    embed(config_of(folder, tmp_path / "v", input_file=str(other)))
    embed(config_of(folder, tmp_path / "w", input_file=str(other)))
    assert (tmp_path / "v" / "vectors.npy").read_bytes() == (tmp_path / "w" / "vectors.npy").read_bytes()


def test_ray_writes_the_same_bytes(folder, tmp_path, small_pieces):
    pytest.importorskip("ray")
    embed(config_of(folder, tmp_path / "one", dtype="int8"))
    embed(config_of(folder, tmp_path / "ray", dtype="int8", engine="ray", workers=2))
    one, ray = files_in(tmp_path / "one"), files_in(tmp_path / "ray")
    assert all(one[name] == ray[name] for name in one if name[0] != ".")


def test_a_machine_with_another_model_is_refused(folder):
    model = str(folder / "model")
    with pytest.raises(MachineError, match="is another model, or computed by"):
        embedding.RayModel(open_embedder, (model,), model, ("f" * 64, "onnx"), len)(["我"])


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


BAD = {
    "an empty line": ("我\n\n你\n".encode(), "texts.txt:2: an empty text"),
    "not UTF-8": (b"a\n\xff\n", "texts.txt:2: not UTF-8"),
    "no text": (b"", "holds no text"),
}


def test_a_duplicate_id_is_refused(folder, tmp_path):
    path = tmp_path / "texts.tsv"
    path.write_text("id\ttext\na\t我\nb\t你\na\t我你\n", encoding="utf-8")
    with pytest.raises(InputError, match="texts.tsv:4: repeats the id of line 2"):
        embed(config_of(folder, tmp_path / "v", input_file=str(path)))
    assert [path.name for path in tmp_path.iterdir()] == ["texts.tsv"]


@pytest.mark.parametrize("content, reason", BAD.values(), ids=BAD)
def test_bad_texts_are_reported_and_nothing_is_written(folder, tmp_path, content, reason):
    (tmp_path / "texts.txt").write_bytes(content)
    with pytest.raises(InputError) as found:
        embed(config_of(folder, tmp_path / "v", input_file=str(tmp_path / "texts.txt")))
    assert reason in found.value.message
    assert [path.name for path in tmp_path.iterdir()] == ["texts.txt"]


def test_foreign_files_are_not_overwritten(folder, tmp_path):
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "dear.txt").write_text("x")
    with pytest.raises(InputError, match="holds dear.txt, which would be lost"):
        embed(config_of(folder, tmp_path / "v"))
    (tmp_path / "w.part").mkdir()
    (tmp_path / "w.part" / "dear.txt").write_text("x")
    with pytest.raises(MachineError, match="holds dear.txt, which no run made there"):
        embed(config_of(folder, tmp_path / "w"))


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


def test_the_current_folder_is_refused_as_output(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="is the current folder"):
        embed(config_of(folder, "."))


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_users_config_yaml_is_not_overwritten(folder, tmp_path, overwrite):
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / CONFIG_YAML).write_text("seed: 1\n")
    with pytest.raises(InputError, match="holds config.yaml, which would be lost"):
        embed(config_of(folder, tmp_path / "v", overwrite=overwrite))
    assert [path.read_text() for path in (tmp_path / "v").iterdir()] == ["seed: 1\n"]


def test_vectors_of_another_model_are_refused(folder, tmp_path):
    embed(config_of(folder, tmp_path / "v"))
    found = open_vectors(tmp_path / "v")
    found.refuse_other_model(found.fingerprint, "model")
    with pytest.raises(InputError, match="its vectors are of another model"):
        found.refuse_other_model("0" * 64, "model")


def test_damaged_vectors_are_an_error(folder, tmp_path):
    embed(config_of(folder, tmp_path / "v"))
    for name, content in (("cut", b"\x93NUMPY"), ("longer", None)):
        shutil.copytree(tmp_path / "v", tmp_path / name)
        if content is None:
            about = json.loads((tmp_path / name / "vectors.json").read_text())
            (tmp_path / name / "vectors.json").write_text(json.dumps({**about, "count": COUNT + 1}))
        else:
            (tmp_path / name / "vectors.npy").write_bytes(content)
            with pytest.raises(CheckpointError, match="is not the file that was written"):
                open_vectors(tmp_path / name).verify()
        with pytest.raises(CheckpointError):
            open_vectors(tmp_path / name).rows(0, 1)
    with pytest.raises(InputError, match="holds no vectors.json"):
        open_vectors(tmp_path)
