"""Vectors of a file by several processes of a launcher, on the CPU: the bytes of one, also after a kill."""

import os
import signal

import pytest
from launched import launch
from tiny_embedding import write_texts
from tiny_search import write_exports

from ernie_pair.core.errors import InputError
from ernie_pair.embeddings.embed_config import EmbedConfig
from ernie_pair.evaluation.embeddings import embed as embedding
from ernie_pair.inference.vector_files import PIECES, VectorWriter
from ernie_pair.runtime.processes.world import launched_world

pytestmark = pytest.mark.ranks
COUNT, PIECE = 150, 16


def embed_pieces(config, killed_at=0, changed=""):
    """Embed in small pieces; the first process is killed in one, the second has other texts."""
    embedding.PIECE, write, count = PIECE, VectorWriter._write, embedding._count_texts

    def write_until_killed(self, name, data):
        if name == PIECES and killed_at and self.done == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        write(self, name, data)

    def count_others(config):
        found = count(config)
        return found if launched_world().is_first else (found[0], changed, found[2])

    VectorWriter._write = write_until_killed
    if changed:
        embedding._count_texts = count_others
    embedding.embed(config)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_exports(tmp_path_factory.mktemp("shares"))
    write_texts(folder / "texts.txt", COUNT)
    return folder


def config_of(folder, model, output, **flags):
    files = {"input_file": str(folder / "texts.txt"), "output_dir": str(folder / output)}
    return EmbedConfig(model_path=str(folder / model), device="cpu", **files, **flags)


def content(folder, output):
    names = ("vectors.npy", "scales.npy", "vectors.json")
    return [(folder / output / name).read_bytes() for name in names]


@pytest.mark.parametrize("model", ["trained", "encoder"])
def test_several_processes_write_the_bytes_of_one(folder, model):
    for processes in (1, 2, 4):
        config = config_of(folder, model, f"{model}{processes}", dtype="int8")
        launch(folder, embed_pieces, config, processes=processes)
        assert content(folder, f"{model}{processes}") == content(folder, f"{model}1")
    cut = config_of(folder, model, f"{model}_cut", dtype="int8")
    launch(folder, embed_pieces, cut, 3, processes=2, fails=True)
    assert (folder / f"{model}_cut.part" / PIECES).read_text().count("\n") == 4
    launch(folder, embed_pieces, cut, processes=4)
    assert content(folder, f"{model}_cut") == content(folder, f"{model}1")


def test_processes_with_other_texts_are_stopped(folder):
    logs = launch(folder, embed_pieces, config_of(folder, "encoder", "other"), 0, "f" * 64, fails=True)
    assert any("rank 1 has not the texts of rank 0; give all processes the same" in log for log in logs)
    assert not (folder / "other").exists()


def test_ray_is_refused_under_a_launcher(folder, monkeypatch):
    for name, value in (("PADDLE_TRAINERS_NUM", "2"), ("PADDLE_TRAINER_ENDPOINTS", "a:1,a:2")):
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="engine ray starts its own tasks; run it in one process, not by"):
        config_of(folder, "encoder", "ray", engine="ray").check_ray()
