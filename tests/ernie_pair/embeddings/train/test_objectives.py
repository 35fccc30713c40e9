"""Objectives beside in-batch negatives: graded pairs, a teacher's scores, several data sets in one run."""

import json
import re
import shutil
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from run_files import events, killed_after
from scipy.stats import spearmanr
from tiny_embedding import (
    embedding_config,
    embedding_job,
    gradients_of_next,
    toy_graded,
    toy_matches,
    write_files,
    write_texts,
)
from tiny_pair import write_rows
from tiny_pair_job import difference
from tiny_ship import write_trained

from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.embeddings.embed_config import EvaluateEmbeddingConfig
from ernie_pair.embeddings.open_embedder import open_embedder
from ernie_pair.embeddings.train import objectives
from ernie_pair.embeddings.train.contrastive import step_loss
from ernie_pair.embeddings.train.embedding_config import EmbeddingConfig
from ernie_pair.embeddings.train.embedding_data import training_sets
from ernie_pair.embeddings.train.embedding_trainer import EmbeddingTrainer
from ernie_pair.embeddings.train.objectives import GradedStep, TaughtStep
from ernie_pair.embeddings.train.train_embedding import EmbeddingTask, train_embedding
from ernie_pair.evaluation.embeddings.evaluate_embedding import evaluate_embedding
from ernie_pair.evaluation.inference_model import TrainedScorer
from ernie_pair.inference.predictor import PairScorer
from ernie_pair.runtime.processes.world import World
from ernie_pair.training.process_group import ProcessGroup

HALVED = {"batch_size": 8, "gradient_accumulation_steps": 2}
RANKER = {"num_labels": 1, "problem_type": "regression", "pair_target": "ranking"}
CROSS_ENCODER = {"num_labels": 1, "problem_type": "regression", "score_activation": "sigmoid"}
TEMPERATURE = 0.2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_files(tmp_path_factory.mktemp("objectives"), spread=0.2)
    write_trained(folder / "teacher")
    write_texts(folder / "texts.txt", 60)
    return folder


def flags_of(folder, objective):
    """The flags of a run of an objective, or of several with a file each; graded dev pairs if all are."""
    names = objective.split(",")
    files = {"cosent": "graded.tsv", "angle": "graded.tsv", "simcse": "texts.txt"}
    train = ",".join(str(folder / files.get(name, "train.tsv")) for name in names)
    taught = {"teacher": str(folder / "teacher"), "hard_negatives": 2}  # of gist an encoder without a head
    flags = {
        "objective": objective,
        "train_file": train,
        **(taught if {"kl", "margin_mse", "gist"} & {*names} else {}),
    }
    graded = {"dev_file": str(folder / "graded_dev.tsv")} if {*names} <= {"cosent", "angle"} else {}
    return {**flags, **graded}


def units(seed, count, dim=8):
    rows = np.random.default_rng(seed).normal(size=(count, dim))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("dim", [8, 7])
@pytest.mark.parametrize("is_angle", [False, True])
def test_graded_pairs_cost_what_each_wrong_order_does(is_angle, dim):
    rows, scores = units(3, 12, dim), np.array([0, 1, 1, 2.5, 2.5, 5])
    if is_angle:  # the conjugate product of complex numbers, real parts first
        half = np.pad(rows, ((0, 0), (0, dim % 2))).reshape(12, 2, -1)
        product = ((half[:, 0] + 1j * half[:, 1])[:6] * (half[:, 0] - 1j * half[:, 1])[6:]).sum(axis=1)
        s = np.abs(product.real + product.imag) / TEMPERATURE
    else:
        s = (rows[:6] * rows[6:]).sum(axis=1) / TEMPERATURE
    pairs = [(i, k) for i in range(6) for k in range(6) if scores[i] > scores[k]]
    wanted = np.log(1 + sum(np.exp(s[k] - s[i]) for i, k in pairs))
    step = GradedStep(6, np.arange(12), scores, is_angle)
    loss, right = step_loss(paddle.to_tensor(rows.astype(np.float32)), step, (dim,), TEMPERATURE)
    assert float(loss) == pytest.approx(wanted, rel=1e-5)
    assert float(right) == pytest.approx(6 * np.mean([s[k] < s[i] for i, k in pairs]), rel=1e-6)


def test_one_right_comparison_makes_all_graded_pairs_right():
    rows = paddle.to_tensor(np.array([[1, 0], [1, 0], [1, 0], [0, 1]], np.float32))
    step = GradedStep(2, np.arange(4), np.array([1, 0]), False)
    assert float(step_loss(rows, step, (2,), TEMPERATURE)[1]) == 2


@pytest.mark.parametrize("is_kl", [False, True])
def test_queries_may_have_several_numbers_of_negatives(is_kl):
    rows, taught = units(4, 10), np.random.default_rng(5).normal(size=(3, 4)).astype(np.float32)
    candidates = np.array([[3, 6, -1, -1], [4, 7, 8, 9], [5, 6, 9, -1]])
    losses, squares = [], []
    for row, (places, theirs) in enumerate(zip(candidates, taught)):
        there = places >= 0
        own, theirs = rows[places[there]] @ rows[row] / TEMPERATURE, theirs[there].astype(np.float64)
        squares += list(((own[0] - own[1:]) - (theirs[0] - theirs[1:])) ** 2)
        p, q = (np.exp(one) / np.exp(one).sum() for one in (theirs, own))
        losses.append((p * np.log(p / q)).sum())
    step = TaughtStep(3, np.arange(10), candidates, taught, is_kl)
    loss, _ = step_loss(paddle.to_tensor(rows.astype(np.float32)), step, (8,), TEMPERATURE)
    assert float(loss) == pytest.approx(np.mean(losses if is_kl else squares), rel=1e-5)


ALL = ["cosent", "angle", "margin_mse", "kl", "gist", "pairs,cosent"]


@pytest.mark.parametrize("objective", ALL)
def test_two_micro_batches_of_an_objective_give_one_step(folder, objective):
    flags = {**flags_of(folder, objective), "dropout": 0.0, "dims": "8,15"}
    wanted, found = (gradients_of_next(*embedding_job(folder, **flags, **size)) for size in ({}, HALVED))
    assert len(wanted) > 20 and difference(found, wanted) < 1e-5


@pytest.mark.parametrize("objective", ["cosent", "angle", "margin_mse", "kl", "gist", "pairs,cosent,kl"])
def test_an_objective_is_learned(tmp_path, objective):
    folder = write_files(tmp_path)
    write_rows(folder / "graded.tsv", toy_graded(384, seed=0))
    write_trained(folder / "teacher")
    flags = {**flags_of(folder, objective), "output_dir": str(tmp_path / "out"), "max_steps": 80}
    train_embedding(embedding_config(folder, **flags, eval_freq=1000, temperature=0.1))
    steps, valid = events(tmp_path / "out", "train"), events(tmp_path / "out", "valid")
    for name, sign in (("accuracy", 1), ("loss", -1)):
        first, last = (np.mean([one[name] for one in part]) for part in (steps[:12], steps[-12:]))
        assert sign * last > sign * first + 0.05, name
    if "cosent" in objective:
        assert valid[-1]["spearman"] > valid[0]["spearman"] + 0.2


def test_graded_dev_pairs_are_measured_by_spearman_alone(folder, tmp_path):
    flags = {**flags_of(folder, "cosent"), "output_dir": str(tmp_path / "out"), "max_steps": 4}
    result = train_embedding(embedding_config(folder, **flags))
    assert result.metrics.keys() == {"spearman"} and result.best_metric == result.metrics["spearman"]
    assert result.best_model.name.startswith("best-spearman")
    pairs = list(toy_graded(48, seed=1))
    vectors = open_embedder(result.best_model).embed([text for pair in pairs for text in pair[:2]])
    cosines = (vectors[::2] * vectors[1::2]).sum(axis=1)
    wanted = spearmanr(cosines, [pair[2] for pair in pairs]).correlation
    assert result.metrics["spearman"] == pytest.approx(wanted, abs=1e-4)
    asked = {"input_file": flags["dev_file"], "label_range": "0,5", "device": "cpu"}
    found = evaluate_embedding(EvaluateEmbeddingConfig(model_path=str(result.best_model), **asked))
    assert found["metrics"] == {"spearman": pytest.approx(wanted, abs=1e-4)} and found["pairs"] == 48
    card = (result.best_model / "README.md").read_text(encoding="utf-8")
    assert "48 graded pairs, measured by spearman" in card


def test_scores_of_0_and_1_alone_still_have_matches(folder, tmp_path):
    flags = {**flags_of(folder, "cosent"), "dev_file": str(folder / "dev.tsv"), "max_steps": 2}
    result = train_embedding(embedding_config(folder, **flags, output_dir=str(tmp_path / "out")))
    assert {"recall_at_10", "spearman"} <= result.metrics.keys()


def several(folder):
    flags = {**flags_of(folder, "pairs,angle,margin_mse"), "sampling_weights": "2,1,1", "max_steps": 16}
    return {**flags, "eval_freq": 1000, "checkpoint_steps": 5}


@pytest.fixture(scope="module")
def trained(folder):
    train_embedding(embedding_config(folder, **several(folder), output_dir=str(folder / "whole")))
    return folder / "whole"


def weights_in(output):
    return [
        (output / name).read_bytes() for name in ("model_last/model.safetensors", "best/model_state.pdparams")
    ]


def test_a_killed_run_of_several_sets_resumes_bit_identical(folder, trained, monkeypatch):
    config = embedding_config(folder, **several(folder), output_dir=str(folder / "cut"))
    with killed_after(8):
        train_embedding(config)
    monkeypatch.setattr(objectives, "load_classifier", None)  # the scores are kept with the run
    train_embedding(config)
    assert weights_in(folder / "cut") == weights_in(trained)


def test_other_shares_are_another_run(folder, trained):
    for weights in ("1,1,2", ""):
        flags = {**several(folder), "sampling_weights": weights, "output_dir": str(trained)}
        with pytest.raises(InputError, match="sampling_weights was '2,1,1' and is now"):
            train_embedding(embedding_config(folder, **flags))


@pytest.mark.parametrize("changed", ["first.tsv", "second.tsv", "negatives.tsv", "dev.tsv"])
def test_a_run_does_not_go_on_when_any_of_its_files_has_changed(folder, tmp_path, changed):
    for seed, name in enumerate(("first.tsv", "second.tsv")):
        write_rows(tmp_path / name, [*toy_matches(40 + seed, seed=0), ("我", "", 1)])
    write_rows(tmp_path / "dev.tsv", toy_matches(20, seed=1))
    write_rows(tmp_path / "negatives.tsv", [row for row in toy_matches(40, 0) if not row[2]])
    config = embedding_config(
        folder,
        objective="pairs",
        train_file=f"{tmp_path / 'first.tsv'},{tmp_path / 'second.tsv'}",
        negatives_file=str(tmp_path / "negatives.tsv"),
        dev_file=str(tmp_path / "dev.tsv"),
        output_dir=str(tmp_path / "out"),
        on_bad_row="skip",
        max_steps=1,
    )
    train_embedding(config)
    rejected = sorted(path.name for path in (tmp_path / "out").glob("*.rejected.jsonl"))
    assert rejected == ["train_1.rejected.jsonl", "train_2.rejected.jsonl"]
    (tmp_path / changed).write_text((tmp_path / changed).read_text(encoding="utf-8") * 2, encoding="utf-8")
    with pytest.raises(InputError, match=r"(train|negatives|dev)_file.* \(sha256\) was"):
        train_embedding(config)


def test_python_trains_on_several_sets_as_the_command_does(folder, trained, tmp_path):
    flags = {name: value for name, value in several(folder).items() if name != "train_file"}
    config = embedding_config(folder, **flags)
    named = ("batch_size", "learning_rate", "device", "logging_freq", "max_seq_len", "model_type", *flags)
    own = {name: getattr(config, name) for name in (*named, "from_scratch")}
    matches = list(toy_matches(120, seed=0))
    sets = {"matches": iter(matches), "graded": list(toy_graded(96, seed=0)), "taught": matches}
    dev = list(toy_matches(40, seed=1))
    trainer = EmbeddingTrainer(folder / "model", EmbeddingConfig(str(tmp_path), **own), sets, dev)
    result = trainer.train()
    assert weights_in(tmp_path) == weights_in(trained)
    assert trainer.evaluate()["mrr"] == pytest.approx(result.metrics["mrr"], abs=1e-6)


def test_steps_are_shared_by_weight_or_by_size(folder):
    for weights, share in (("", 96 / (120 + 96)), ("1,3", 0.75)):
        flags = {**flags_of(folder, "pairs,cosent"), "sampling_weights": weights, "batch_size": 2}
        _, updates = embedding_job(folder, **flags)
        kinds = [isinstance(batch.step, GradedStep) for (batch,) in islice(updates, 108)]
        assert sum(kinds) == pytest.approx(108 * share, abs=1)


def test_each_set_of_a_run_loses_no_pair_of_its_epoch(folder):
    flags = {**flags_of(folder, "pairs,cosent"), "sampling_weights": "1,1"}
    job, updates = embedding_job(folder, **flags)
    steps = [batch.step for (batch,) in islice(updates, 12)]
    graded = np.concatenate([step.scores for step in steps if isinstance(step, GradedStep)])
    assert len(graded) == 96 and np.bincount(graded.astype(int)).tolist() == [16] * 6
    _, resumed = embedding_job(folder, consumed=5 * 16, **flags)
    assert np.array_equal(next(resumed)[0].step.numbers, steps[5].numbers)


@pytest.mark.parametrize("kind", [{}, RANKER, CROSS_ENCODER], ids=["classes", "ranker", "cross-encoder"])
def test_a_teacher_gives_its_log_odds(folder, tmp_path, kind):
    teacher = write_trained(tmp_path / "teacher", **kind)
    flags = {**flags_of(folder, "kl"), "teacher": str(teacher), "output_dir": str(tmp_path / "out")}
    config = embedding_config(folder, **flags)
    left, right = (list(side) for side in zip(*(row[:2] for row in toy_matches(9, seed=3))))
    found = objectives.scores_of_teacher(config, left, right, ProcessGroup())
    scorer: PairScorer = TrainedScorer(str(teacher), "cpu")
    theirs = scorer.score(list(zip(left, right)))
    wanted = theirs if kind == RANKER else np.log(theirs / (1 - theirs))
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    assert np.ptp(found) > 0.05
    (note,) = (tmp_path / "out" / "cache").glob("teacher-*.json")
    assert json.loads(note.read_text())["key"]["teacher"] == objectives.sha256_of_teacher(config)


def test_a_guide_hides_what_it_takes_for_a_match(folder):
    job, updates = embedding_job(folder, **flags_of(folder, "gist"))
    _, plain = embedding_job(folder, hard_negatives=2)
    guide, more = open_embedder(folder / "teacher"), 0
    texts = {text for pair in toy_matches(120, seed=0) for text in pair[:2]}
    vectors = {text: guide.embed([text])[0] for text in texts}
    known = job.data.updates.args[0][0].texts.texts
    for (batch,), (other,) in islice(zip(updates, plain), 5):
        step = batch.step
        assert np.array_equal(step.numbers, other.step.numbers)
        left, right = (np.stack([vectors[known[n]] for n in part]) for part in
                       (step.numbers[:16], step.numbers[16:]))  # fmt: skip
        margins = left @ right.T - (left * right[:16]).sum(axis=1)[:, None]
        added = step.is_hidden & ~other.step.is_hidden
        assert (margins[added] > -1e-6).all() and not (other.step.is_hidden & ~step.is_hidden).any()
        assert (margins[~step.is_hidden] < 1e-6).all()
        more += added.sum()
    assert more > 20


def test_a_dry_run_does_not_ask_the_teacher(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(objectives, "predict_logits", None)
    flags = {**flags_of(folder, "margin_mse"), "output_dir": str(tmp_path / "out"), "dry_run": True}
    assert train_embedding(embedding_config(folder, **flags)).step == 0
    assert not (tmp_path / "out").exists()


def test_another_teacher_is_another_run(folder, tmp_path):
    flags = {**flags_of(folder, "kl"), "max_steps": 2, "output_dir": str(tmp_path / "out")}
    train_embedding(embedding_config(folder, **flags))
    flags["teacher"] = str(write_trained(tmp_path / "other", **RANKER))
    with pytest.raises(InputError, match=r"is a checkpoint of another run: (--)?teacher"):
        train_embedding(embedding_config(folder, **flags))


def test_a_teacher_is_known_by_all_its_files(folder, tmp_path):
    teacher = shutil.copytree(folder / "teacher", tmp_path / "teacher")
    config = SimpleNamespace(teacher=str(teacher))
    files = objectives.list_content(str(objectives.resolve_model_folder(teacher)))
    hashes = {objectives.sha256_of_teacher(config)}
    for path in map(Path, files):
        path.write_bytes(path.read_bytes() + b" ")
        hashes.add(objectives.sha256_of_teacher(config))
    assert len(hashes) == 1 + len(files) > 2


FIVE, COSENT = "我\t你\t5\n我\t他\t3.5\n", {"objective": "cosent"}
KL = {"objective": "kl", "teacher": "teacher"}

WORDS = "".join(f"第{n}个开头\t第{n}个结尾\t{'同异疑'[n % 3]}\n" for n in range(6))


@pytest.mark.parametrize("rows, flags, reason", [
    (f"{FIVE}我\t她\t5.5\n", COSENT, "train.tsv:3: label '5.5' is not a number from 0 to 5"),
    (f"{FIVE}我\t她\t-1\n", {"objective": "angle"}, "train.tsv:3: label '-1' is not a number from 0 to 5"),
    (FIVE, {**COSENT, "label_range": "0,1"}, "train.tsv:1: label '5' is not a number from 0 to 1"),
    ("我\t你\t3\n我\t他\t3.0\n", COSENT, "train.tsv: all scores are 3, and the order"),
    ("我\t你\n我\t他\n", COSENT, "train.tsv:1: no label; each row needs a number from 0 to 5"),
    (FIVE, {}, "train.tsv:1: label '5' is not one of 0, 1; .* --objective cosent"),
    ("我\n", {**COSENT, "train_file": "texts.txt"}, "texts.txt has a text in each line, and pairs"),
    ("", {"objective": "cosine"}, "--objective cosine is none; use pairs, simcse, gist, cosent"),
    ("", {"objective": "pairs,cosent"}, "--objective pairs,cosent has 2 parts for 1 training file"),
    (FIVE, {**COSENT, "sampling_weights": "1,2"}, "--sampling_weights 1,2 is not a number above 0 for each"),
    (FIVE, {**COSENT, "sampling_weights": "0"}, "--sampling_weights 0 is not a number above 0"),
    (FIVE, {**COSENT, "best_metric": "mrr"}, "--best_metric mrr needs matches, and the dev pairs are graded"),
    (FIVE, {**COSENT, "negatives_file": "d"}, "--negatives_file is for --objective pairs, not cosent"),
    ("", {"objective": "kl"}, "--objective kl --teacher -: margin_mse and kl need a teacher of pairs and"),
    ("", {"teacher": "teacher"}, "--objective pairs --teacher .*, and no other takes one"),
    ("", {"objective": "gist,kl"}, "gist an embedding model as --teacher"),
    ("", {**KL, "hard_negatives": 0}, "margin_mse and kl need a teacher of pairs and --hard_negatives"),
    ("我\t你\t1\n他\t她\t1\n", KL, "train.tsv: no pair has a hard negative"),
    ("我\t你\t1\n我\t我\t0\n他\t她\t1\n", KL, "train.tsv:2: the text '我' is its own negative; correct"),
    ("我\t你\t1\n我\t我\t0\n他\t她\t1\n", {}, "train.tsv:2: the text '我' is its own negative; correct"),
    ("我\t你\t0\n", KL, "train.tsv has no pair of label 1"),
    (WORDS, {}, "train.tsv: its labels are 同 in 2 rows, 异 in 2"),
    ("我\t你\t1\n我\t他\t0\n", {**KL, "teacher": "absent"}, "--teacher .*absent is not a folder"),
    ("我\t你\t1\n我\t他\t0\n", {**KL, "teacher": "three"}, "three is a model for classification with 3 out"),
    ("我\t你\t1\n我\t他\t0\n", {**KL, "teacher": "scores"}, "scores is a model for regression with 1 output"),
    ("", {"label_range": "5,0"}, "--label_range 5,0 is not a lowest and a highest label"),
])  # fmt: skip
def test_what_does_not_fit_an_objective_is_refused(folder, tmp_path, rows, flags, reason):
    (tmp_path / "train.tsv").write_text(rows, encoding="utf-8")
    (tmp_path / "texts.txt").write_text(rows, encoding="utf-8")
    if flags.get("teacher") == "three":
        write_trained(tmp_path / "three", num_labels=3)
    if flags.get("teacher") == "scores":
        write_trained(tmp_path / "scores", num_labels=1, problem_type="regression", label_range=[0, 5])
    places = {"train_file": str(tmp_path / flags.get("train_file", "train.tsv"))}
    if "teacher" in flags:
        where = folder if flags["teacher"] == "teacher" else tmp_path
        places["teacher"] = str(where / flags["teacher"])
    graded = {"dev_file": str(folder / "graded_dev.tsv")} if flags.get("objective") == "cosent" else {}
    given = {**graded, **flags, **places, "output_dir": str(tmp_path / "out")}
    if given.get("label_range") == "0,1":
        given["dev_file"] = str(folder / "dev.tsv")
    if flags.get("objective") == "angle":
        given["dev_file"] = str(folder / "graded_dev.tsv")
    with pytest.raises(InputError) as found:
        train_embedding(embedding_config(folder, **given))
    assert re.search(reason, found.value.message) and "\n" not in found.value.message
    assert not (tmp_path / "out" / "checkpoints").exists()


def test_an_encoder_is_no_teacher(folder, tmp_path):
    train_embedding(embedding_config(folder, max_steps=1, output_dir=str(tmp_path / "out")))
    places = {"teacher": str(tmp_path / "out"), "output_dir": str(tmp_path / "taught")}
    flags = {**flags_of(folder, "kl"), **places}
    with pytest.raises(CheckpointError, match="holds no classifier, only an encoder; train one"):
        train_embedding(embedding_config(folder, **flags))


def test_graded_dev_pairs_need_two_scores(folder, tmp_path):
    dev = tmp_path / "dev.tsv"
    dev.write_text("我\t你\t3\n我\t他\t3.0\n", encoding="utf-8")
    flags = {**flags_of(folder, "cosent"), "dev_file": str(dev), "output_dir": str(tmp_path / "out")}
    with pytest.raises(InputError, match="dev.tsv: all scores are 3, and their order is measured; take"):
        train_embedding(embedding_config(folder, **flags))


@pytest.mark.parametrize("second, objective, reason", [
    ([("我", "你", 1.0), ("我", "他", 7.0)], "cosent", r"train_dataset 2\[1\]: label 7.0 is not a num"),
    ([("我", "你", 2.0), ("我", "他", 2.0)], "cosent", "given from Python 2: all scores are 2"),
    ([("我", "你", 0)], "pairs", "given from Python 2 has no pair of label 1"),
    (["我", " "], "simcse", r"train_dataset 2\[1\]: an empty text"),
    ([("我", "你"), ("我", "")], "simcse", r"train_dataset 2\[1\]: .* is empty"),
])  # fmt: skip
def test_python_names_the_set_and_the_row_that_do_not_fit(folder, tmp_path, second, objective, reason):
    flags = {"objective": f"pairs,{objective}", "model_type": "ernie", "from_scratch": True}
    sets = {"matches": list(toy_matches(9, seed=0)), "second": second}
    config = EmbeddingConfig(str(tmp_path), **flags)
    trainer = EmbeddingTrainer(folder / "model", config, sets, list(toy_matches(9, seed=1)))
    with pytest.raises(InputError, match=reason):
        trainer.train()


@pytest.mark.parametrize("objective", ["cosent", "kl"])
def test_fused_kernels_and_bfloat16_learn_an_objective(folder, objective):
    flags = {**flags_of(folder, objective), "dropout": 0.0}
    plain = gradients_of_next(*embedding_job(folder, **flags, kernels="plain"))
    assert difference(gradients_of_next(*embedding_job(folder, **flags)), plain) < 1e-3
    try:
        half = gradients_of_next(*embedding_job(folder, **flags, precision="bf16", kernels="fused"))
    except InputError as error:
        pytest.skip(error.message)  # this processor has no such products
    assert 0 < difference(half, plain) < 0.3


def test_a_file_whose_name_has_a_comma_is_one_file(folder, tmp_path):
    path = write_rows(tmp_path / "a,b.tsv", toy_matches(20, seed=0))
    task = EmbeddingTask(embedding_config(folder, train_file=str(path)))
    task.open_model()
    task.open_data(World())
    assert task.data.num_rows == 20


def test_a_comma_at_the_end_names_no_set(folder):
    sets, _ = training_sets(embedding_config(folder), "a.tsv, ")
    assert [one.dataset for one in sets] == ["a.tsv"]
