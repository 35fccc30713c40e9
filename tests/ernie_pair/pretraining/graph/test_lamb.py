"""LAMB in static pretraining: an independent numpy version, resumed runs, and refused settings."""

import json
from pathlib import Path

import numpy as np
from children import output_of
from pretrain_runs import arrays, assert_same_files
from tiny_pretrain import VOCAB, events, pretrain

STEPS = Path(__file__).with_name("lamb_steps.py")
LAMB = {"optimizer": "lamb", "adam_epsilon": 1e-6}
BETAS, EPSILON, DECAY = (0.9, 0.99), 1e-6, 0.02
EMBEDDING = "ernie.embeddings.word_embeddings.weight"


def lamb_of_numpy(start, gradients, rates, clip):
    """Yield the weights after each step, float64; biases and norms have no decay or adaptation."""
    weights = {name: array.astype(np.float64) for name, array in start.items()}
    moments = {name: [np.zeros_like(array)] * 2 for name, array in weights.items()}
    for step, (gradient, rate) in enumerate(zip(gradients, rates), start=1):
        norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradient.values()))
        for name, g in gradient.items():
            g = g.astype(np.float64) * (clip / max(norm, clip))
            first, second = moments[name]
            first, second = (b * m + (1 - b) * x for b, m, x in zip(BETAS, (first, second), (g, g * g)))
            moments[name] = [first, second]
            whole = [m / (1 - b**step) for b, m in zip(BETAS, (first, second))]
            move = whole[0] / (np.sqrt(whole[1]) + EPSILON)
            trust = 1.0
            if not (name.endswith("bias") or "norm" in name):
                move = move + DECAY * weights[name]
                trust = np.linalg.norm(weights[name]) / np.linalg.norm(move)
            weights[name] = weights[name] - rate * trust * move
        yield dict(weights)


def test_steps_match_an_independent_numpy_lamb(world, tmp_path):
    asked = {"adam_beta1": BETAS[0], "adam_beta2": BETAS[1], "weight_decay": DECAY, "grad_clip": 0.5}
    asked.update({**LAMB, "max_steps": 6, "max_lr": 0.02})
    (tmp_path / "flags.json").write_text(json.dumps(asked))
    words = [STEPS, world / "model", world / "data", tmp_path / "out.npz", tmp_path / "flags.json"]
    output_of(*words)
    found = dict(np.load(tmp_path / "out.npz"))

    def of(step, kind):
        return {key.split("/", 2)[2]: a for key, a in found.items() if key.startswith(f"{step}/{kind}/")}

    gradients = [of(step, "gradient") for step in range(1, 7)]
    start = {name: array for name, array in of(0, "weight").items() if name in gradients[0]}
    assert len(start) > 30 and np.linalg.norm(gradients[0][EMBEDDING]) > 0
    assert not start[EMBEDDING][len(VOCAB) :].any() and len(start[EMBEDDING]) > len(VOCAB)
    rates = [0.02 / step for step in range(1, 7)]
    for step, expected in enumerate(lamb_of_numpy(start, gradients, rates, clip=0.5), start=1):
        weights = of(step, "weight")
        for name, array in expected.items():
            np.testing.assert_allclose(weights[name], array, rtol=2e-4, atol=2e-5, err_msg=f"{step} {name}")
    moved = of(6, "weight")["ernie.encoder.layers.0.linear1.weight"]
    assert np.abs(moved - start["ernie.encoder.layers.0.linear1.weight"]).max() > 1e-3


def test_resuming_a_run_with_lamb_is_bit_identical(world):
    """With gradient merge, dropout and a padded vocabulary; one run ends early and is resumed."""
    changes = {"global_batch_size": 8, "decay_steps": 6, "warmup_rate": 0, **LAMB}
    one, two = world / "one", world / "two"
    for output, steps in ((one, 6), (two, 3), (two, 6)):
        pretrain(world, output, max_steps=steps, **changes)
    assert_same_files(one, two)
    losses = [event["lm_loss"] for event in events(one) if event["split"] == "valid"]
    assert losses[-1] < losses[0]


def test_another_optimizer_learns_otherwise_and_cannot_resume(world):
    short = world / "short"
    pretrain(world, short, max_steps=2, **LAMB)
    pretrain(world, world / "adamw", max_steps=2, adam_epsilon=1e-6)
    assert not np.array_equal(*(arrays(output)[EMBEDDING] for output in (short, world / "adamw")))
    refused = pretrain(world, short, 2, max_steps=2, adam_epsilon=1e-6)
    assert "optimizer was 'lamb' and is now 'adamw'" in refused
