"""Every kind of training on two processes matches one: other targets, distillation, series, own layers."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from launched import OURS, in_turn, launch, run_script, words_of
from own_layers import bag, paddlenlp_model, tutorial_model
from paddle import nn
from run_files import events
from tiny_pair import (
    VOCAB,
    distill_config,
    graded_rows,
    target_config,
    train_config,
    write_model,
    write_pairs,
    write_teacher,
)
from tiny_ship import PROGRAM

from ernie_pair import (
    CrossValidateConfig,
    PairConfig,
    PairTrainer,
    SearchParamsConfig,
    cross_validate,
    search_params,
)
from ernie_pair.evaluation.evaluate_pair import evaluate_pair
from ernie_pair.evaluation.predict_pair import predict_pair, read_log_probabilities
from ernie_pair.models.networks.classifier import load_classifier
from ernie_pair.pairs.config.ask_config import EvaluateConfig, PredictConfig
from ernie_pair.pairs.distill.distill import distill_pair
from ernie_pair.pairs.train.train_pair import train_pair
from ernie_pair.runtime.processes.world import launched_world
from ernie_pair.weights.weight_files import read_weights

pytestmark = pytest.mark.ranks

BOUND = 1e-4  # float32 rounding, magnified by AdamW's division in the first updates
SHORT = {"max_steps": 6, "learning_rate": 5e-3, "dropout": 0.0, "device": "cpu"}


def difference(one, two, name):
    one, two = (read_weights(Path(folder) / name) for folder in (one, two))
    assert one.keys() == two.keys()
    return max(np.abs(one[key] - two[key]).max() for key in one)


def halved(config, folder):
    """The same run on two processes: half the batch each, into another folder."""
    return replace(config, batch_size=config.batch_size // 2, output_dir=str(folder))


@pytest.mark.parametrize(
    "flags",
    [
        {"freeze_layers": 1, "use_recompute": True, "layer_decay": 0.9},
        {"pooling": "cosine"},
        pytest.param({"freeze": "encoder", "pooling": "mean"}, marks=pytest.mark.slow),
    ],
)
def test_frozen_or_recomputed_training_on_two_ranks_matches_one(tmp_path, flags):
    one = replace(train_config(tmp_path, **SHORT, checkpoint_steps=6), **flags)
    train_pair(one)
    launch(tmp_path, in_turn, (train_pair, halved(one, tmp_path / "two")))
    for name in ("model_last/model.safetensors", "model_last/optimizer.safetensors"):
        assert difference(tmp_path / "out", tmp_path / "two", name) < BOUND
    updated = read_weights(tmp_path / "two" / "model_last" / "optimizer.safetensors")
    is_whole = one.freeze == "none" and not one.freeze_layers
    assert any(".embeddings." in key for key in updated) == is_whole


TARGETS = {
    "regression": ("regression", {"best_metric": "spearman"}),
    "listwise": ("ranking", {"most_candidates": 4}),
    "margin": ("ranking", {"ranking_loss": "margin", "gradient_accumulation_steps": 2}),
    "grades": ("ranking", {"ranking_loss": "ranknet", "most_candidates": 0, "rows": graded_rows}),
    "lambdarank": ("ranking", {"ranking_loss": "lambdarank", "rows": graded_rows}),
}


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    """Train and ask each case in this process, and all of them in one start of two; return their folders."""
    folders, of_one, of_two = {}, [], []
    for case, (target, flags) in TARGETS.items():
        folder = folders[case] = tmp_path_factory.mktemp(case)
        steps = {"batch_size": 8, "max_steps": 6, "eval_freq": 6, "learning_rate": 1e-3}
        one = target_config(folder, target, **steps, **flags)
        for calls, name, config in ((of_one, "one", one), (of_two, "two", halved(one, folder / "two"))):
            files = (str(folder / "out"), str(folder / "dev.tsv"), str(folder / name))
            evaluate = EvaluateConfig(*files[:2], f"{files[2]}.json", device="cpu", bootstrap=20)
            predict = PredictConfig(*files[:2], f"{files[2]}.tsv", device="cpu")
            calls += [(train_pair, config), (evaluate_pair, evaluate), (predict_pair, predict)]
    in_turn(*of_one)
    launch(tmp_path_factory.mktemp("log"), in_turn, *of_two)
    return folders


@pytest.mark.parametrize("case", TARGETS)
def test_regression_and_ranking_on_two_processes_match_one(targets, case):
    folder = targets[case]
    for ending in ("json", "tsv"):
        assert (folder / f"one.{ending}").read_bytes() == (folder / f"two.{ending}").read_bytes()
    same = ("loss", "mae", "hit_at_1", "mrr", "ndcg", "spearman", "step")
    curves = [
        [[row[metric] for metric in same if metric in row] for row in events(folder / name)]
        for name in ("out", "two")
    ]
    assert list(map(len, curves[0])) == list(map(len, curves[1]))
    assert np.concatenate(curves[1]) == pytest.approx(np.concatenate(curves[0]), abs=5e-3)
    weights = [load_classifier(str(folder / name))[0].state_dict() for name in ("out", "two")]
    for name, array in weights[0].items():
        apart = np.sort(np.abs(array.numpy() - weights[1][name].numpy()), axis=None)
        # Of one word the gradients may cancel but for rounding, whose size AdamW takes for that of a step.
        assert (apart[:-1] < BOUND).all() and apart[-1] < (6e-3 if "match_head" in name else BOUND), name


DISTILLED = {
    "cached": {"class_weights": "1,2.5"},
    "states": {"hidden_size": 16, "hidden_weight": 0.5, "layers": 2},
}


@pytest.fixture(scope="module")
def distilled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distil")
    config = distill_config(folder, write_teacher(folder / "teacher"), dropout=0.0)
    lines = Path(config.train_file).read_text(encoding="utf-8").splitlines()
    bare = [line.rpartition("\t")[0] for line in lines[::3]]
    (folder / "bare.tsv").write_text("".join(f"{line}\n" for line in bare), encoding="utf-8")
    return replace(config, unlabelled_file=str(folder / "bare.tsv"))


@pytest.mark.parametrize("kind", DISTILLED)
def test_distillation_on_two_processes_matches_one(distilled, tmp_path, kind):
    one = replace(distilled, output_dir=str(tmp_path / "one"), **DISTILLED[kind])
    distill_pair(one)
    run_script(tmp_path, "distill", *words_of(halved(one, tmp_path / "two")), launcher=OURS)
    weights = []
    for name in ("one", "two"):
        files = (tmp_path / name / "checkpoints" / "step_00000012").glob("*.safetensors")
        files = [path for path in files if not path.name.startswith("optimizer")]
        weights.append({key: array for path in files for key, array in read_weights(path).items()})
    assert weights[0].keys() == weights[1].keys()
    assert ("distillation.1.weight" in weights[1]) == (kind == "states")
    # The softmax cancels out the gradient of these biases, so AdamW's steps come from rounding alone.
    compared = [name for name in weights[0] if not name.endswith("k_proj.bias")]
    assert max(np.abs(weights[1][name] - weights[0][name]).max() for name in compared) < 5e-6
    kept = [list((tmp_path / name / "cache").glob("teacher-*.npy")) for name in ("one", "two")]
    assert list(map(len, kept)) == ([1, 1] if kind == "cached" else [0, 0])
    for first, second in zip(*kept):
        assert np.abs(np.load(first) - np.load(second)).max() < 1e-5


SERIES = {**SHORT, "model_type": "ernie", "from_scratch": True, "kernels": "plain"}
SERIES.update(batch_size=16, eval_freq=3)


def test_cross_validation_on_two_processes_matches_one(tmp_path):
    """With half the batch on each: the same folds, and predictions that differ only by rounding."""
    one, two = tmp_path / "one", tmp_path / "two"
    config = CrossValidateConfig(
        model_name_or_path=str(write_model(tmp_path / "model")),
        train_file=str(write_pairs(tmp_path / "all.tsv", 60)),
        output_dir=str(one),
        **{"folds": 2, "bootstrap": 5, **SERIES},
    )
    cross_validate(config)
    launch(tmp_path, in_turn, (cross_validate, halved(config, two)))
    assert (one / "folds.tsv").read_bytes() == (two / "folds.tsv").read_bytes()
    logs = [read_log_probabilities(folder / "predictions.tsv", 2) for folder in (one, two)]
    assert len(logs[0]) == 60 and np.abs(logs[0] - logs[1]).max() < 1e-3
    assert json.loads((two / "report.json").read_text())["rows"] == 60


def test_parameter_search_on_two_processes_matches_one(tmp_path):
    optuna = pytest.importorskip("optuna")
    config = SearchParamsConfig(
        model_name_or_path=str(write_model(tmp_path / "model")),
        train_file=str(write_pairs(tmp_path / "train.tsv", 64, seed=0)),
        dev_file=str(write_pairs(tmp_path / "dev.tsv", 41, seed=1)),
        output_dir=str(tmp_path / "one"),
        space="{learning_rate: {suggest: float, low: 1e-4, high: 2e-2, log: true}}",
        **{"trials": 2, "evaluations": 2, **SERIES},
    )
    one = search_params(config)
    launch(tmp_path, in_turn, (search_params, halved(config, tmp_path / "two")))
    two = optuna.load_study(study_name="ernie-pair", storage=f"sqlite:///{tmp_path}/two/study.db").trials
    assert two[0].params == one.trials[0].params and len(two) == 2
    assert two[0].value == pytest.approx(one.trials[0].value, abs=0.03)
    assert (tmp_path / "two" / "best" / "model_state.pdparams").is_file()


def train_own_layer(kind, folder, out, batch_size):
    """Train a reader's own layer, whose weights at the start differ from rank to rank."""
    rank = launched_world().rank
    settings = {"seed": rank, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    if kind == "norm":
        layer = nn.Sequential(bag(seed=rank), nn.BatchNorm1D(2))
        layer.forward = lambda input_ids, token_type_ids: layer[1](layer[0](input_ids, token_type_ids))
    else:
        layer = tutorial_model(dropout=0.0, **settings) if kind == "tutorial" else paddlenlp_model(**settings)
    steps = {"max_seq_len": 32, "checkpoint_steps": 6, "eval_freq": 3, "gradient_accumulation_steps": 2}
    flags = {"batch_size": batch_size, "max_steps": 6, "learning_rate": 5e-3, "device": "cpu"}
    config = PairConfig(str(folder / out), **flags, **steps)
    files = [folder / name for name in ("train.tsv", "dev.tsv", "vocab.txt")]
    trainer = PairTrainer(layer, config, *files[:2], vocab_file=files[2])
    metrics = trainer.train().metrics
    assert trainer.evaluate().items() >= metrics.items()
    trainer.save_model(folder / out / "saved")
    trainer.export(folder / out / "ship")


@pytest.fixture
def files(tmp_path):
    write_pairs(tmp_path / "train.tsv", 90, seed=0)
    write_pairs(tmp_path / "dev.tsv", 41, seed=1)
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCAB), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("kind", ["tutorial", "paddlenlp"])
def test_a_layer_on_two_ranks_ends_as_on_one(files, kind):
    launch(files, train_own_layer, kind, files, "one", 8, processes=1)
    launch(files, train_own_layer, kind, files, "two", 4)
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert difference(files / "one", files / "two", f"model_last/{name}") < BOUND
    saved = [read_weights(files / out / "saved" / "model_state.pdparams") for out in ("one", "two")]
    assert saved[0].keys() == saved[1].keys()
    assert (files / "two" / "ship" / PROGRAM).is_file()


def test_batch_norm_on_two_ranks_is_refused_by_name(files):
    logs = launch(files, train_own_layer, "norm", files, "two", 4, fails=True)
    assert "Sequential: 1 is a BatchNorm1D, whose statistics would differ" in "".join(logs)
