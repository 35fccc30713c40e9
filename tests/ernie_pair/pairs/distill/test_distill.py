"""Distillation of a tiny teacher: its students, its cached logits, resuming, and errors."""

import json
import shutil
from dataclasses import asdict, fields, replace

import numpy as np
import pytest
from asked import evaluated
from run_files import Killed, events, killed_after
from tiny_pair import TEACHER_LAYERS, distill_config, toy_rows, write_model, write_teacher
from tiny_pretrain import needs_kernels
from tiny_ship import write_trained

from ernie_pair import PairCallback, StudentConfig, distill
from ernie_pair.core.cli.cli import exit_code_of, run_command
from ernie_pair.core.errors import InputError
from ernie_pair.models.networks.classifier import load_classifier
from ernie_pair.models.source import open_model
from ernie_pair.models.temperature import Calibration, write_calibration
from ernie_pair.pairs.config.distill_config import DistillConfig
from ernie_pair.pairs.distill import distill as teaching
from ernie_pair.pairs.distill.distill import Teacher, distill_pair, open_student
from ernie_pair.weights.weight_files import from_safetensors

LAST = "checkpoints/step_00000012"
NARROW = {"hidden_size": 16, "hidden_weight": 0.5}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return write_teacher(tmp_path_factory.mktemp("teacher"))


@pytest.fixture
def config(tmp_path, teacher):
    return distill_config(tmp_path, teacher)


def weights_in(folder, name="model.safetensors"):
    return from_safetensors((folder / LAST / name).read_bytes(), name)


def parameters(model):
    return {name: parameter.numpy() for name, parameter in model.named_parameters()}


def test_a_student_has_every_kth_layer_of_its_teacher(config):
    start = open_student(replace(config, layers=1), Teacher(config))
    ours, theirs = parameters(start.model), parameters(load_classifier(Teacher(config).name)[0])
    assert len(ours) == len(theirs) - 16 * (TEACHER_LAYERS - 1)
    for name, array in ours.items():
        assert np.array_equal(array, theirs[name.replace("layers.0.", f"layers.{TEACHER_LAYERS - 1}.")])
    assert start.beginning.startswith(
        "start from layer 3 of 3, embeddings, pooler and classifier of the teacher"
    )


def test_a_student_of_a_plain_teacher_has_a_new_match_head(tmp_path, config):
    plain = replace(config, teacher=str(write_trained(tmp_path / "plain")), layers=1, match_embeddings=True)
    assert not open_student(plain, Teacher(plain)).model.match_head.shares.numpy().any()


def test_every_dimension_of_a_student_can_be_reduced(config):
    flags = {"layers": 2, "hidden_size": 24, "heads": 3, "intermediate_size": 40}
    spec = open_student(replace(config, **flags), Teacher(config)).model.spec
    assert [spec.num_layers, spec.hidden_size, spec.num_heads, spec.intermediate_size] == [2, 24, 3, 40]
    alone = open_student(replace(config, hidden_size=16), Teacher(config)).model.spec
    assert [alone.num_layers, alone.num_heads, alone.intermediate_size] == [1, 1, 32]


def test_a_student_can_start_from_a_pretrained_model(tmp_path, config, teacher):
    pretrained = tmp_path / "pretrained"
    shutil.copytree(Teacher(config).name, pretrained)
    flags = {"model_name_or_path": str(pretrained), "layers": 1}
    start = open_student(replace(config, **flags), Teacher(config))
    assert (
        start.beginning.startswith("start from layer 3 of 3, embeddings") and "pretrained" in start.beginning
    )
    whole = open_student(replace(config, model_name_or_path=str(pretrained)), Teacher(config))
    theirs = parameters(Teacher(config).model)
    assert all(np.array_equal(array, theirs[name]) for name, array in parameters(whole.model).items())


def test_random_students_depend_only_on_the_seed(config):
    def first(**flags):
        start = open_student(replace(config, **flags), Teacher(config))
        return parameters(start.model)["ernie.embeddings.word_embeddings.weight"]

    scratch = first(from_scratch=True)
    assert np.array_equal(scratch, first(from_scratch=True))
    assert not np.array_equal(scratch, first(from_scratch=True, seed=7))
    assert not np.array_equal(scratch, first())


def test_the_command_makes_an_ordinary_model(tmp_path, config, teacher):
    flags = {"layers": 2, "teacher": config.teacher, "train_file": config.train_file, "max_steps": 12}
    flags.update(dev_file=config.dev_file, output_dir=tmp_path / "small", batch_size=16, learning_rate=1e-3)
    with pytest.raises(SystemExit) as stop:
        run_command(distill_pair, DistillConfig, [f"--{n}={v}" for n, v in flags.items()] + ["--device=cpu"])
    assert stop.value.code == 0
    best = tmp_path / "small" / "best"
    card = (best / "README.md").read_text(encoding="utf-8")
    assert f"- teacher: {Teacher(config).name}\n" in card and Teacher(config).sha256 in card
    assert "- student size: ernie, 2 layers x 32\n" in card and str(teacher) not in card.split("## Flags")[1]
    highest = max(event["accuracy"] for event in events(tmp_path / "small", "valid"))
    assert evaluated(best, config.dev_file)["accuracy"] == highest > 0.7


def student_config(config, **changes):
    names = {item.name for item in fields(StudentConfig)}
    return StudentConfig(**{**{n: v for n, v in asdict(config).items() if n in names}, **changes})


class Noting(PairCallback):
    """Records the steps of the evaluations, and stops at the one of step 4."""

    def __init__(self):
        self.steps = []

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        self.steps.append(state.global_step)
        control.should_training_stop = state.global_step == 4


def test_datasets_from_python_give_the_same_student_as_files(tmp_path, config):
    rows, dev, bare = list(toy_rows(90, 0)), list(toy_rows(41, 1)), [row[:2] for row in toy_rows(30, 3)]
    (tmp_path / "bare.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in bare), encoding="utf-8")
    whole = distill(replace(config, unlabelled_file=str(tmp_path / "bare.tsv")))
    given, noting = student_config(config, output_dir=str(tmp_path / "given")), Noting()
    keys = ("sentence1", "sentence2", "label")
    datasets = [dict(zip(keys, row)) for row in rows], iter(dev), bare
    first = distill(given, *datasets, callbacks=[noting])
    assert noting.steps == [0, 4] and not first.is_done and first.step == 4
    second = distill(given, *datasets[:1], dev, bare)  # the iterator is exhausted; the run resumes
    assert second.is_done and second.metrics == whole.metrics
    for name in ("model.safetensors", "optimizer.safetensors"):
        one, other = (tmp_path / run / LAST / name for run in ("small", "given"))
        assert one.read_bytes() == other.read_bytes(), name


def test_missing_or_invalid_python_datasets_are_rejected(tmp_path, config):
    given, rows = student_config(config), list(toy_rows(20, 0))
    with pytest.raises(InputError, match="there is no eval_dataset; give it to distill"):
        distill(given, rows)
    with pytest.raises(InputError, match="callbacks: object is not a PairCallback"):
        distill(given, rows, rows, callbacks=[object()])
    with pytest.raises(InputError, match=r"eval_dataset\[1\]: no label"):
        distill(given, rows, [rows[0], rows[1][:2] + (None,)])
    with pytest.raises(InputError, match=r"train_dataset\[0\].* 7 is not one of"):
        distill(given, [("我", "你", 7)], rows)
    with pytest.raises(InputError, match="unlabelled_dataset is read whole, and streaming reads one dataset"):
        distill(replace(given, streaming=True), rows, rows, rows)
    assert not (tmp_path / "small" / "checkpoints").exists()


def test_cached_and_on_the_fly_teacher_logits_are_equivalent(tmp_path, config):
    for kind in ("cached", "on_the_fly"):
        distill(replace(config, teacher_logits=kind, output_dir=str(tmp_path / kind)))
    cached, asked = (weights_in(tmp_path / kind) for kind in ("cached", "on_the_fly"))
    # Adam turns the last bit of a near-zero gradient into a step; logits of wrong rows give 17 times this.
    assert max(np.abs(cached[name] - asked[name]).max() for name in asked) < 1e-3
    assert list((tmp_path / "cached" / "cache").glob("teacher-*.npy"))
    assert not list((tmp_path / "on_the_fly" / "cache").glob("teacher-*.npy"))


@pytest.mark.parametrize(
    "flags", [{"symmetric": "average"}, {"use_amp": True, "amp_dtype": "float32"}, NARROW]
)
def test_a_killed_and_resumed_run_ends_bit_identical(tmp_path, config, flags):
    config = replace(config, **flags)
    whole, cut = (replace(config, output_dir=str(tmp_path / name)) for name in ("whole", "cut"))
    distill(whole)
    with killed_after(6):
        distill(cut)
    distill(cut)
    names = {path.name for path in (tmp_path / "whole" / LAST).iterdir()} - {"MANIFEST.json"}
    assert ("distillation.safetensors" in names) == (flags is NARROW)
    for name in names:
        one, other = (tmp_path / run / LAST / name for run in ("whole", "cut"))
        assert one.read_bytes() == other.read_bytes(), name


def test_distillation_projections_are_not_saved_in_models(tmp_path, config):
    result = distill(replace(config, **NARROW))
    projections = weights_in(tmp_path / "small", "distillation.safetensors")
    assert {name: array.shape for name, array in projections.items()} == {
        "distillation.0.weight": (16, 32),
        "distillation.0.bias": (32,),
    }
    for folder in (result.best_model, tmp_path / "small" / "model_last"):
        model, _ = load_classifier(str(folder))
        assert not any("distillation" in name for name in parameters(model))
    losses = [event["hidden_loss"] for event in events(tmp_path / "small", "train")]
    assert losses[-1] < losses[0]


def test_the_layer_map_selects_the_hidden_states(tmp_path, config, monkeypatch):
    """A student identical to its teacher has no distance from it; the two layer maps give different ones."""
    same = {"layers": 3, "hidden_weight": 1.0, "dropout": 0.0, "max_steps": 1}
    distill(replace(config, output_dir=str(tmp_path / "same"), **same))
    assert events(tmp_path / "same", "train")[0]["hidden_loss"] < 1e-9
    found = {}
    for layer_map in ("uniform", "last"):
        flags = {**same, "layers": 2, "layer_map": layer_map}
        distill(replace(config, output_dir=str(tmp_path / layer_map), **flags))
        found[layer_map] = events(tmp_path / layer_map, "train")[0]["hidden_loss"]
    assert found["uniform"] != found["last"] and min(found.values()) > 1e-6


def test_a_symmetric_teacher_is_compared_in_the_same_order(tmp_path, config):
    """A student identical to its teacher has no distance from it, though the teacher runs both orders."""
    folder = tmp_path / "both"
    shutil.copytree(Teacher(config).name, folder)
    write_calibration(folder, Calibration(symmetric="average"))
    same = {"layers": 3, "hidden_weight": 1.0, "dropout": 0.0, "max_steps": 1, "teacher": str(folder)}
    distill(replace(config, output_dir=str(tmp_path / "same"), **same))
    assert events(tmp_path / "same", "train")[0]["hidden_loss"] < 1e-9


def test_unlabelled_rows_are_used_in_training(tmp_path, config, capfd):
    rows = list(toy_rows(60, 5))
    lines = [{"text_a": a, "text_b": b, "label": None if n % 3 else y} for n, (a, b, y) in enumerate(rows)]
    mixed, bare = tmp_path / "mixed.jsonl", tmp_path / "bare.tsv"
    mixed.write_text("".join(json.dumps(line) + "\n" for line in lines))
    bare.write_text("".join(f"{a}\t{b}\n" for a, b, _ in rows), encoding="utf-8")
    weighted = {"train_file": str(mixed), "unlabelled_file": str(bare), "class_weights": "balanced"}
    distill(replace(config, **weighted), verbose=True)
    told = capfd.readouterr().err
    assert "mixed.jsonl: 60 pairs (10 of class 0, 10 of class 1, 40 without label)" in told
    assert "bare.tsv: 60 pairs (0 of class 0, 0 of class 1, 60 without label)" in told
    soft = replace(config, train_file=str(bare), output_dir=str(tmp_path / "soft"), dropout=0.0, max_steps=3)
    distill(soft)
    assert all(e["loss"] == e["soft_loss"] for e in events(tmp_path / "soft", "train"))
    streamed = {"streaming": True, "output_dir": str(tmp_path / "streamed"), "train_file": str(mixed)}
    assert distill(replace(config, **streamed)).is_done


def test_killed_teacher_inference_resumes_at_the_next_part(tmp_path, config, monkeypatch):
    monkeypatch.setattr(teaching, "PART", 32)
    asked, logits_of = [], teaching.predict_logits

    def until_killed(model, rows, *more):
        asked.append(len(rows))
        if len(asked) == 2:
            raise Killed
        return logits_of(model, rows, *more)

    monkeypatch.setattr(teaching, "predict_logits", until_killed)
    with pytest.raises(Killed):
        distill(config)
    (kept,) = (tmp_path / "small" / "cache").glob("teacher-*.npy")
    distill(config)
    assert asked == [32, 32, 32, 26]
    kept.write_bytes(kept.read_bytes()[:-8])
    distill(replace(config, output_dir=str(tmp_path / "again"), cache_dir=str(tmp_path / "small" / "cache")))
    assert asked[4:] == [32]  # the damaged part is computed again


@needs_kernels
def test_cached_logits_of_other_kernels_are_not_reused(tmp_path, config, monkeypatch):
    asked, logits_of = [], teaching.predict_logits
    monkeypatch.setattr(
        teaching, "predict_logits", lambda model, *more: asked.append(1) or logits_of(model, *more)
    )
    cache = str(tmp_path / "kept")
    for number, kernels in enumerate(("fused", "plain", "auto")):
        distill(replace(config, kernels=kernels, cache_dir=cache, output_dir=str(tmp_path / str(number))))
    assert len(asked) == 2  # auto is fused here


def test_a_symmetric_teacher_teaches_the_mean_of_both_orders(tmp_path, config, teacher):
    folder = tmp_path / "both"
    shutil.copytree(Teacher(config).name, folder)
    write_calibration(folder, Calibration(symmetric="average"))
    one, both = Teacher(config), Teacher(replace(config, teacher=str(folder)))
    assert one.sha256 != both.sha256 and both.symmetric == "average"
    distill(replace(config, teacher=str(folder)))
    ids = np.array([[1, 5, 6, 2, 7, 2]]), np.array([[0, 0, 0, 0, 1, 1]])
    swapped = np.array([[1, 7, 2, 5, 6, 2]]), np.array([[0, 0, 0, 1, 1, 1]])

    def logits(model, rows):
        import paddle

        return model(*map(paddle.to_tensor, rows)).numpy()

    mean = (logits(one, ids) + logits(one, swapped)) / 2
    np.testing.assert_allclose(logits(both, ids), mean, atol=1e-6)


def test_resuming_with_another_teacher_or_loss_is_rejected(tmp_path, config):
    distill(config)
    for flags, said in (
        ({"temperature": 4.0}, "temperature was 2.0 and is now 4.0"),
        ({"soft_weight": 0.9}, "soft_weight was 0.5 and is now 0.9"),
        ({"teacher": str(tmp_path / "other")}, r"teacher \(sha256\) was "),
    ):
        if "teacher" in flags:
            shutil.copytree(Teacher(config).name, tmp_path / "other")
            write_calibration(tmp_path / "other", Calibration(symmetric="average"))
        with pytest.raises(InputError, match=f"is a checkpoint of another run: .*{said}"):
            distill(replace(config, **flags))
    assert distill(replace(config, teacher_logits="on_the_fly")).is_done


BAD = [
    ({"teacher": "absent"}, 2, "--teacher absent is not a folder; give the OUT of a training run"),
    ({"teacher": "model"}, 2, "model holds no weights"),
    ({"teacher": "encoder"}, 3, "--teacher encoder holds no classifier, only an encoder"),
    ({"teacher": "torn"}, 3, "model_state.pdparams"),
    ({"train_file": "absent.tsv"}, 2, "absent.tsv: no such file"),
    ({"layers": 4}, 2, "--layers 4 is more than the 3 layers of"),
    ({"hidden_size": 30, "heads": 4}, 2, "--hidden_size 30 is not a multiple of --heads 4"),
    ({"model_name_or_path": "other"}, 2, "its vocabulary is another than that of --teacher"),
    ({"query": "topic"}, 2, "--query topic is for --target ranking"),
    ({"most_candidates": 4}, 2, "--most_candidates 4 is for --target ranking"),
    ({"max_seq_len": 512}, 2, "--max_seq_len 512 is more than the model's 128 positions"),
]


@pytest.mark.parametrize("changes, code, reason", BAD)
def test_bad_input_is_a_one_line_error_and_writes_nothing(
    tmp_path, config, monkeypatch, capfd, changes, code, reason
):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model", model_type="ernie")
    for name in ("encoder", "torn", "other"):
        shutil.copytree(Teacher(config).name, tmp_path / name)
    source = open_model("encoder", model_type="", from_scratch=False)
    from ernie_pair.weights.weight_files import write_weights

    arrays = {name: a for name, a in source.read_weights().items() if not name.startswith("classifier")}
    write_weights(tmp_path / "encoder", arrays)
    torn = tmp_path / "torn" / "model_state.pdparams"
    torn.write_bytes(torn.read_bytes()[:-50])
    vocab = tmp_path / "other" / "vocab.txt"
    vocab.write_text(vocab.read_text(encoding="utf-8").replace("我\n你", "你\n我"), encoding="utf-8")
    assert exit_code_of(lambda: distill_pair(replace(config, **changes))) == code
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and reason in error
    assert not (tmp_path / "small").exists()
