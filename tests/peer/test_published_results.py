"""The results of a published model, on a tiny one: equal losses, and vectors of texts with symbols."""

import json
import subprocess
import sys

import compare_vectors
import pytest
from places import ROOT
from tiny_models import write_sentence
from tiny_pair import write_pairs

SYMBOLS = "满意度★★★ 5¥每个 25℃以上 a≥b 退款→余额 没有符号".split()


@pytest.fixture
def data(tmp_path):
    for number, part in enumerate(("train", "dev", "test")):
        (tmp_path / "data/pairs/mrpc").mkdir(parents=True, exist_ok=True)
        write_pairs(tmp_path / f"data/pairs/mrpc/{part}.tsv", 400, seed=number)
    (tmp_path / "data" / "text").mkdir()
    (tmp_path / "data/text/some.txt").write_text("\n".join(SYMBOLS), encoding="utf-8")
    return tmp_path / "data"


def test_losses_and_vectors_of_a_published_model(newest, tmp_path, data):
    if subprocess.run([newest.python, "-c", "import accelerate"], capture_output=True).returncode:
        pytest.skip("the newest libraries are without accelerate; run scripts/test_peer.sh")
    (tmp_path / "work" / "published").mkdir(parents=True)
    write_sentence(tmp_path / "work/published/minilm", max_seq_len=64)
    flags = {"work": tmp_path / "work", "data": data}
    words = [f"--{name}={value}" for name, value in {**flags, "peer_python": newest.python}.items()]
    command = [sys.executable, "scripts/results/run.py", "published", "--only", "losses vectors", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    losses, vectors = (
        json.loads((tmp_path / f"work/figures/published/{name}.json").read_text())
        for name in ("losses", "vectors")
    )
    assert len(losses["losses"]) == 10 and losses["largest_difference"] < 1e-5
    assert len({row["ours"] for row in losses["losses"]}) == 10, "the steps are not of different rows"
    assert vectors["texts"] == 5 and vectors["beyond_ascii"] == 5
    assert vectors["cut_ours"] == vectors["cut_theirs"] == 0
    assert vectors["vectors"] < 1e-5 and vectors["cosines"] < 1e-5


def test_texts_are_chosen_of_each_file_in_turn(data):
    (data / "text" / "other.txt").write_text("1+1\nno symbol\n2$\n1+1\n", encoding="utf-8")
    files = compare_vectors.files_of(data)
    texts = compare_vectors.chosen_texts(files, 100)
    assert len(texts) == 7 and {"1+1", "2$"} < set(texts[:4]) and "no symbol" not in texts
    assert compare_vectors.chosen_texts(files, 3) == texts[:3]
