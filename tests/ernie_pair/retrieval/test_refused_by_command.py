"""Bad input to the commands: an exit code, one line on stderr, and no partial output."""

import re

import numpy as np
import pytest
from tiny_pair import toy_rows, write_model, write_pairs
from tiny_search import texts_of, write_embedder, write_lines
from tiny_ship import write_trained

from ernie_pair.__main__ import _run as run_here
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.inference.vector_files import VECTORS_JSON
from ernie_pair.service.serve import ServeConfig, _open_models

pytest.importorskip("faiss")
TEXTS = texts_of(60)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Two embedding models, vectors and an index of the first, and a file of pairs with one bad row."""
    folder = tmp_path_factory.mktemp("refused")
    write_embedder(folder / "model")
    write_trained(folder / "other", initializer_range=0.2)
    texts = write_lines(folder / "texts.txt", TEXTS)
    for words in (
        f"embed --model_path {folder}/model --input_file {texts} --output_dir {folder}/vectors",
        f"index --vectors {folder}/vectors --input_file {texts} --output_dir {folder}/index",
    ):
        assert exit_code_of(lambda: run_here(words.split())) == 0  # noqa: B023
    write_model(folder / "bare")
    write_pairs(folder / "dev.tsv", 41, seed=1)
    rows = list(toy_rows(40, 0))
    rows[6] = (*rows[6][:2], 7)
    write_lines(folder / "bad.tsv", ("\t".join(map(str, row)) for row in rows))
    return folder


def refusal_of(world, words, capfd):
    """The exit code and the error of a command, after checking that it left no files behind."""
    before = sorted(path for path in world.rglob("*") if path.is_file())
    code = exit_code_of(lambda: run_here(words.replace("HERE", str(world)).split()))
    after = sorted(path for path in world.rglob("*") if path.is_file() and "cache" not in path.parts)
    assert after == [path for path in before if "cache" not in path.parts]
    (error,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    return code, error


def spoil(world, name):
    """Copy the stored vectors with the one of text 5 set to NaN, and with a matching checksum."""
    folder = world / name
    folder.mkdir()
    for path in (world / "vectors").iterdir():
        if path.is_file() and path.name[0] != ".":
            (folder / path.name).write_bytes(path.read_bytes())
    array = np.load(folder / "vectors.npy")
    array[5, 3] = np.nan
    np.save(folder / "vectors.npy", array)
    said = (folder / VECTORS_JSON).read_text(encoding="utf-8")
    hashes = [sha256_of_file(of / "vectors.npy") for of in (world / "vectors", folder)]
    assert hashes[0] in said
    (folder / VECTORS_JSON).write_text(said.replace(*hashes), encoding="utf-8")


def test_a_nan_in_stored_vectors_gives_exit_code_4(world, capfd):
    spoil(world, "spoiled")
    words = "index --vectors HERE/spoiled --input_file HERE/texts.txt --output_dir HERE/new"
    code, error = refusal_of(world, words, capfd)
    assert code == 4 and "the vector of text 5 is NaN, infinite or zero" in error


def test_the_service_refuses_an_index_of_another_model(world):
    with pytest.raises(InputError, match="are of another model"):
        _open_models(ServeConfig(index=str(world / "index"), embedding_model=str(world / "other")))
    with pytest.raises(InputError, match="index holds vectors; name their model with embedding_model"):
        _open_models(ServeConfig(index=str(world / "index")))


TRAIN = "--model_type ernie --from_scratch true --max_steps 2 --device cpu"
OF_LABELS = [
    f"train --model_name_or_path HERE/bare --train_file HERE/bad.tsv --dev_file HERE/dev.tsv {TRAIN} "
    "--output_dir HERE/new",
    f"cross-validate --model_name_or_path HERE/bare --train_file HERE/bad.tsv {TRAIN} --output_dir HERE/new",
    "train-embedding --model_name_or_path HERE/bare --train_file HERE/bad.tsv --dev_file HERE/dev.tsv "
    f"{TRAIN} --output_dir HERE/new",
    "mine --train_file HERE/bad.tsv --output_file HERE/new.tsv",
    "distill --teacher HERE/model --train_file HERE/bad.tsv --dev_file HERE/dev.tsv --device cpu "
    "--output_dir HERE/new",
]


@pytest.mark.parametrize("words", OF_LABELS, ids=[words.split()[0] for words in OF_LABELS])
def test_the_error_names_the_line_of_a_label_out_of_range(world, capfd, words):
    code, error = refusal_of(world, words, capfd)
    assert code == 2 and re.search(r"bad\.tsv:7: .*7", error), error
