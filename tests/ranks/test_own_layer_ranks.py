"""A reader's own layer on two processes ends with the state of one process."""

import os
import subprocess
import sys

import numpy as np
import pytest
from places import ROOT
from tiny_pair import VOCAB, write_pairs

from ernie_pair.weights.weight_files import read_weights

pytestmark = pytest.mark.ranks
TRAIN = """
import sys
from paddle import nn
from own_layers import bag, paddlenlp_model, tutorial_model
from ernie_pair import PairConfig, PairTrainer

kind, folder, out, batch_size = sys.argv[1:]
rank = __import__("paddle").distributed.get_rank()
settings = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
layer = {
    "tutorial": lambda: tutorial_model(seed=rank, dropout=0.0, **settings),
    "paddlenlp": lambda: paddlenlp_model(seed=rank, **settings),
    "norm": lambda: nn.Sequential(bag(seed=rank), nn.BatchNorm1D(2)),
}[kind]()
if kind == "norm":
    layer.forward = lambda input_ids, token_type_ids: layer[1](layer[0](input_ids, token_type_ids))
config = PairConfig(
    f"{folder}/{out}", batch_size=int(batch_size), max_steps=6, learning_rate=5e-3, max_seq_len=32,
    checkpoint_steps=6, eval_freq=3, gradient_accumulation_steps=2, device="cpu",
)
data = f"{folder}/train.tsv", f"{folder}/dev.tsv"
trainer = PairTrainer(layer, config, *data, vocab_file=f"{folder}/vocab.txt")
metrics = trainer.train().metrics
assert trainer.evaluate().items() >= metrics.items()
trainer.save_model(f"{folder}/{out}/saved")
trainer.export(f"{folder}/{out}/ship")
"""


@pytest.fixture
def files(tmp_path):
    write_pairs(tmp_path / "train.tsv", 90, seed=0)
    write_pairs(tmp_path / "dev.tsv", 41, seed=1)
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCAB), encoding="utf-8")
    (tmp_path / "own_training.py").write_text(TRAIN)
    return tmp_path


def run(folder, kind, out, batch_size, processes):
    launch = [] if processes == 1 else ["-m", "paddle.distributed.launch", "--nproc_per_node", str(processes)]
    launch += ["--log_dir", str(folder / "log")] if launch else []
    words = [str(folder / "own_training.py"), kind, str(folder), out, str(batch_size)]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])
    done = subprocess.run(
        [sys.executable, *launch, *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    logs = "".join(path.read_text()[-3000:] for path in sorted((folder / "log").glob("workerlog.*")))
    return done.returncode, done.stderr + logs


@pytest.mark.parametrize("kind", ["tutorial", "paddlenlp"])
def test_a_layer_on_two_ranks_ends_as_on_one(files, kind):
    for out, batch_size, processes in (("one", 8, 1), ("two", 4, 2)):
        code, said = run(files, kind, out, batch_size, processes)
        assert code == 0, said
    for name in ("model.safetensors", "optimizer.safetensors"):
        one, two = (read_weights(files / out / "model_last" / name) for out in ("one", "two"))
        assert one.keys() == two.keys()
        assert max(np.abs(one[key] - two[key]).max() for key in one) < 1e-4
    saved = read_weights(files / "two" / "saved" / "model_state.pdparams")
    assert saved.keys() == read_weights(files / "one" / "saved" / "model_state.pdparams").keys()
    assert (files / "two" / "ship" / "model.pdmodel").is_file()


def test_batch_norm_on_two_ranks_is_refused_by_name(files):
    code, said = run(files, "norm", "two", 4, 2)
    assert code != 0 and "Sequential: 1 is a BatchNorm1D, whose statistics would differ" in said
