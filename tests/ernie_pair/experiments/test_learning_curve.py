"""A learning curve: the fit finds a planted one, its interval holds the truth, a killed series resumes."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm
from tiny_pair import toy_rows, train_config, write_rows

from ernie_pair import LearningCurveConfig, learning_curve
from ernie_pair.core.errors import InputError
from ernie_pair.experiments.learning_curve import describe_gain, fit_curves, place_rows, predict_metric
from ernie_pair.experiments.series import TrainingRun
from ernie_pair.pairs.data.pair_source import read_pairs

SIZES = (250, 500, 1000)
Killed = type("Killed", (BaseException,), {})


@pytest.mark.parametrize("a, b, c", [(0.1, 2, 0.5), (0, 1, 0.3), (0.05, 20, 1), (0.2, -1, 0.4)])
def test_a_planted_curve_is_found(a, b, c):
    sizes = np.array([*SIZES, 4000.0])
    planted = a + b * sizes**-c
    one, turned = fit_curves(sizes, np.stack([planted, planted[::-1]])).T
    assert one == pytest.approx([a, b, c], abs=1e-6)
    assert turned[0] >= 0 >= turned[1] * b


def made_up(rng, a, b, c, rows=400, seeds=3, samples=100):
    """What `predict_metric` takes, of models whose true error is on the curve, but for the luck of a seed."""
    errors = a + b * np.array(SIZES)[:, None, None] ** -c + 0.01 * rng.normal(size=(3, seeds, 1))
    right = 0.8 * rng.normal(size=rows) + 0.6 * rng.normal(size=(3, seeds, rows)) < norm.isf(errors)
    times = np.vstack([np.ones(rows), rng.multinomial(rows, np.full(rows, 1 / rows), samples)])
    return np.einsum("spr,nr->nsp", right, times) / rows


@pytest.mark.parametrize("a, b, c", [(0.1, 2, 0.5), (0.05, 1, 0.3), (0.15, 0, 0.5)])
def test_intervals_hold_the_truth_about_95_times_in_100(a, b, c):
    rng, held = np.random.default_rng(5), []
    now, *more = (1 - a - b * rows**-c for rows in (1000, 2000, 4000))
    for seed in range(200):
        points = predict_metric(SIZES, made_up(rng, a, b, c), seed)[-2:]
        ends = np.array([[point[name] for name in ("interval", "interval_of_gain")] for point in points])
        true = np.array([[each, each - now] for each in more])
        inside = (ends[..., 0] <= true) & (true <= ends[..., 1])
        held.append([*inside.ravel(), ends[0, 1, 0] > 0])
    *shares, found = np.mean(held, axis=0)
    assert min(shares) >= 0.9 and (found <= 0.05 if b == 0 else found >= 0.5)


def test_shares_are_nested_and_hold_every_class_alike():
    labels = np.random.default_rng(0).choice(3, 400, p=[0.7, 0.2, 0.1])
    for share in (0.25, 0.5, 1):
        counts = np.bincount(labels[place_rows(labels, 7) <= share])
        assert np.abs(counts - share * np.bincount(labels)).max() <= 0.5


def test_the_verdict_tells_a_gain_from_none():
    now, more = {"rows": 1000}, {"rows": 4000}
    twice = {"rows": 2000, "value": 0.812, "interval": [0.795, 0.829], "gain": 0.013}
    wanted = (
        "twice the labels (2,000): accuracy 0.812 (0.795 to 0.829), +0.013 ({} to +0.021) over 1,000 rows"
    )
    for low, shown, rest in ((0.004, "+0.004", ""), (-0.001, "-0.001", "; more labels are not seen to help")):
        points = [now, {**twice, "interval_of_gain": [low, 0.021]}, more]
        assert describe_gain(points, "accuracy") == wanted.format(shown) + rest


@pytest.fixture
def config(tmp_path):
    """Of 90 training pairs, and 40 to measure on; two more of these are training pairs, one turned round."""
    own = train_config(tmp_path, max_steps=3, eval_freq=3, learning_rate=5e-3)
    (a, b, label), other = list(toy_rows(90, 0))[:2]
    test = write_rows(tmp_path / "test.tsv", [*toy_rows(40, 9), (b, a, label), other])
    return LearningCurveConfig(**vars(own), test_file=str(test), seeds=2, bootstrap=20)


def test_a_killed_curve_resumes_and_tells_of_twice_the_labels(config, monkeypatch, capsys, caplog):
    caplog.set_level("INFO")
    made, train = [], TrainingRun.train

    def train_or_die(run):
        made.append(Path(run._trainer.config.output_dir).name)
        if len(made) == 2:
            raise Killed
        return train(run)

    monkeypatch.setattr(TrainingRun, "train", train_or_die)
    with pytest.raises(Killed):
        learning_curve(config)
    found, out = learning_curve(config, verbose=True), Path(config.output_dir)
    names = [f"share-{share}-seed-{config.seed + n}" for share in ("0.25", "0.5", "1") for n in (0, 1)]
    assert made == [*names[:2], *names[1:]]
    told, verdict = capsys.readouterr().out, found["verdict"]
    assert told.startswith(verdict) and verdict.startswith("twice the labels (180): accuracy 0.")
    assert [point["rows"] for point in found["points"]] == [22, 46, 90, 180, 360]
    assert json.loads((out / "curve.json").read_text()) == found
    assert "360 rows" in (out / "curve.html").read_text(encoding="utf-8")
    assert "2 test pairs are in the train file and were left out" in caplog.text
    parts = [read_pairs(out / "shares" / f"{name}.jsonl", 2) for name in ("test", *names)]
    assert [len(part) for part in parts] == [40, 22, 22, 46, 46, 90, 90]
    pairs = [{*zip(part.left, part.right)} for part in parts]
    assert pairs[1] < pairs[3] < pairs[5] and pairs[2] < pairs[4] and pairs[1] != pairs[2]
    assert learning_curve(replace(config, metric="auc"))["metric"] == "auc" and len(made) == 7


def test_bad_inputs_are_refused_in_a_line(config, tmp_path, monkeypatch):
    for shares in ("1,0.5,0.25", "0.5,1", "0.1,0.5,2", "0,0.5,1", "a,b,c", ""):
        with pytest.raises(InputError, match=f"^shares {shares}"):
            replace(config, shares=shares)
    monkeypatch.setattr(TrainingRun, "train", None)
    one = write_rows(tmp_path / "few.tsv", [*toy_rows(2, 1), *(row for row in toy_rows(60, 0) if row[2])])
    for flags, reason in (
        ({"train_file": str(one)}, "share 0.25 of .*few.tsv has no pair of class 0; give more pairs of it"),
        ({"test_file": config.train_file}, "train.tsv has no pair of class 0; give other pairs"),
    ):
        with pytest.raises(InputError, match=reason):
            learning_curve(replace(config, **flags))
        assert not (tmp_path / "out").exists()
