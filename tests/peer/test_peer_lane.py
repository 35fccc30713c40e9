"""The peer's lanes of the benchmarks: they compute in torch what their spec describes."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from other_libraries.client import SCRIPTS, newest_python
from side_by_side.cases import save_batches
from small_bench import small_bench

pytest.importorskip("torch")
pytest.importorskip("transformers")
MODEL = {
    "vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 32, "max_position_embeddings": 16, "type_vocab_size": 2, "num_labels": 2,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "hidden_act": "gelu",
}  # fmt: skip
IDS = np.array([[1, 5, 2, 6, 2], [1, 5, 2, 2, 0]])


def losses(tmp_path, task, batch, **spec):
    save_batches(tmp_path / "batches.npz", [batch])
    settings = {"pad_id": 0, "padded_to": 9, "grad_clip": 1.0, "threads": 1, "device": "cpu"}
    spec = {"task": task, "model": MODEL, "batches": str(tmp_path / "batches.npz"), **settings, **spec}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    path = os.pathsep.join([str(SCRIPTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "side_by_side.peer.lane", str(tmp_path / "spec.json")],
        input="1\n1\n\n",
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    _, *turns = map(json.loads, done.stdout.splitlines())
    return [turn["steps"][0]["loss"] for turn in turns]


def test_padding_does_not_change_the_loss_on_pairs(tmp_path):
    batch = {"input_ids": IDS, "token_type_ids": np.zeros_like(IDS), "labels": np.array([0, 1])}
    best, narrow, defaults = (
        losses(tmp_path, "train_pairs", batch, best=best, precision=precision)
        for best, precision in ((True, "fp32"), (True, "bf16"), (False, "fp32"))
    )
    assert best[1] != best[0] and defaults == pytest.approx(best, rel=1e-4)
    assert narrow != best and narrow == pytest.approx(best, rel=0.02)


def test_unlabelled_tokens_do_not_change_the_pretraining_loss(tmp_path):
    batch = {
        "input_ids": IDS,
        "token_type_ids": np.zeros_like(IDS),
        "masked_positions": np.array([1, 6, 0]),
        "masked_lm_labels": np.array([7, 8, -100]),
        "next_sentence_labels": np.array([0, 1]),
    }
    best, defaults = (
        losses(tmp_path, "pretrain", batch, best=best, precision="fp32") for best in (True, False)
    )
    assert best[1] != best[0] and defaults == pytest.approx(best, rel=1e-4)


@pytest.mark.parametrize(
    "case, lanes",
    [
        ("pair-small", "plain fp32, peer fp32, peer defaults"),
        ("pretrain-base", "plain fp32, peer fp32"),
        ("ask-small", "plain fp32, exported onnx, peer fp32"),
        ("embed-mini", "plain fp32, exported onnx int8, peer fp32, peer defaults"),
        ("rerank-mini", "plain fp32, peer fp32"),
        ("serve-4", ""),
        ("cold-predict", ""),
        ("cold-embed", ""),
        ("cold-train", ""),
    ],
)
def test_each_case_runs_beside_the_newest_libraries(case, lanes, tmp_path, monkeypatch, capsys):
    python = newest_python()
    if python is None:
        pytest.skip("the newest libraries are not there: scripts/test_peer.sh")
    monkeypatch.setenv("COLD", "1")  # the processor time is that of the processes that are started
    figures = small_bench(tmp_path, monkeypatch)(case, str(python), lanes=lanes, pairs=8, rounds=1)
    sides = {lane["side"] for lane in figures["lanes"]}
    assert sides == {"ours", "peer"} and all(lane["step_seconds"] > 0 for lane in figures["lanes"])
    assert figures["ratios"] and all(ratio["wall"] > 0 for ratio in figures["ratios"])
