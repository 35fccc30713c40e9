"""Complete runs on a tiny model, each in its own process, because static mode stays on."""

import json
import subprocess
import sys

import numpy as np
import pytest
from places import ROOT
from pretrain_runs import arrays, assert_same_files, cut_after
from safetensors.numpy import load_file
from tiny_pretrain import events, flags, pretrain, write_corpus, write_model
from waiting import until

SCRIPT = ROOT / "scripts" / "run_pretrain_static.py"
# Checkpoints come every two steps, so one falls inside the four steps that a log line averages.
WHOLE = {"global_batch_size": 8, "logging_freq": 4}
CONVERT = ROOT / "scripts" / "ernie_static_to_dynamic.py"


def convert(*words):
    return subprocess.run([sys.executable, CONVERT, *words], capture_output=True, text=True, timeout=300)


def cut_by_kill(world, output, **changes):
    """Start a run, kill it once it has a checkpoint, and return its exit code."""
    words = [sys.executable, str(SCRIPT), *flags(world / "model", world / "data", output, **changes)]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    until((output / "checkpoints" / "step_00000002").exists, 120)
    process.kill()
    return process.wait()


@pytest.fixture(scope="module")
def world(module_path):
    model = write_model(module_path / "model")
    write_corpus(module_path / "data", model)
    return module_path


@pytest.fixture(scope="module")
def whole(world):
    pretrain(world, world / "whole", **WHOLE)
    return world / "whole"


def test_the_loss_falls(world):
    pretrain(world, world / "longer", max_steps=120, eval_freq=120, checkpoint_steps=120, micro_batch_size=16)
    losses = [event["lm_loss"] for event in events(world / "longer") if event["split"] == "valid"]
    assert losses[-1] < 0.85 * losses[0]


def test_a_run_writes_metrics_checkpoints_and_curves(whole):
    kept = events(whole, timing=True)
    assert [(e["split"], e["step"]) for e in kept if e["split"] != "train"] == [
        ("valid", 0),
        ("valid", 3),
        ("valid", 6),
        ("test", 6),
    ]
    train = [event for event in kept if event["split"] == "train"]
    wanted = "loss lm_loss sop_loss learning_rate consumed_samples samples_per_second tokens_per_second"
    wanted += " real_tokens_per_second tera_flops_per_second"
    assert all(set(wanted.split()) <= set(event) for event in train)
    assert [event["consumed_samples"] for event in train] == [32, 48]
    assert (whole / "model_last").resolve().name == "step_00000006"
    assert list((whole / "vdl").iterdir())


@pytest.mark.parametrize(
    "name, more, is_killed",
    [("cut", {}, True), ("workers", {"num_workers": 2}, False), ("late", {"sync_freq": 100}, True)],
)
def test_kills_workers_and_late_reads_do_not_change_a_bit(world, whole, name, more, is_killed):
    """The four-step log lines are read at checkpoints, at evaluations, and when they are complete."""
    code = cut_by_kill(world, world / name, **more, **WHOLE) if is_killed else 0
    assert "resumed" in pretrain(world, world / name, **more, **WHOLE) or code == 0
    assert events(world / name) == events(whole)
    assert_same_files(world / name, whole)


def test_a_blend_trains_without_the_sentence_order_task(world):
    write_corpus(world / "more", world / "model", seed=1)
    sources = f"1 {world / 'data'} 3 {world / 'more'}"
    options = {"binary_head": "false", "geometric": "true", "whole_word_mask": "false"}
    said = pretrain(world, world / "blend", input_dir=sources, num_workers=2, **options)
    assert "in 2 corpora" in said
    kept = events(world / "blend")
    assert all("sop_loss" not in event and event["lm_loss"] > 0 for event in kept)


def test_restarting_a_finished_run_changes_nothing(world, whole):
    before = events(whole)
    assert "nothing to do" in pretrain(world, whole, **WHOLE)
    assert events(whole) == before


def test_gradient_merge_and_recompute_match_the_plain_run(world):
    plain = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0, "micro_batch_size": 8}
    merged = {"micro_batch_size": 4, "global_batch_size": 8}
    layouts = {"plain": {}, "merge": merged, "recompute": {"use_recompute": "true"}}
    for name, layout in layouts.items():
        pretrain(world, world / name, **{**plain, **layout})
    one, *others = (arrays(world / name) for name in layouts)
    for other in others:
        assert max(np.abs(one[name] - other[name]).max() for name in one) < 2e-5


@pytest.fixture(scope="module")
def dynamic(world, whole):
    words = ["--static_model_path", whole / "model_last/static_vars", "--output_dir", world / "dynamic"]
    done = convert(*words)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("largest difference of") == 4
    return world / "dynamic"


def test_the_converted_folder_holds_the_trained_weights(whole, dynamic):
    from paddlenlp.transformers import ErnieForPretraining, ErnieModel, ErnieTokenizer

    trained = arrays(whole)
    loaded = ErnieForPretraining.from_pretrained(str(dynamic)).state_dict()
    assert all(np.array_equal(loaded[name].numpy(), array) for name, array in trained.items())
    encoder = ErnieModel.from_pretrained(str(dynamic)).state_dict()
    assert all(np.array_equal(array.numpy(), trained[f"ernie.{name}"]) for name, array in encoder.items())
    assert ErnieTokenizer.from_pretrained(str(dynamic)).vocab_size > 0


def test_a_warm_start_begins_where_the_weights_left_off(world, whole, dynamic):
    warm = {"model_name_or_path": dynamic, "from_scratch": "false", "max_steps": 1, "global_batch_size": 8}
    pretrain(world, world / "warm", **warm)
    left_off = [event for event in events(whole) if event["split"] == "valid"][-1]
    assert events(world / "warm")[0]["lm_loss"] == left_off["lm_loss"]


def test_a_checkpoint_of_another_run_or_model_is_refused(world, whole, tmp_path):
    assert "seed was 1234 and is now 7" in pretrain(world, whole, 2, **WHOLE, seed=7).splitlines()[-1]
    other = write_model(tmp_path / "model", hidden_size=16)
    said = pretrain(world, whole, 2, **WHOLE, model_name_or_path=other)
    assert "of --model_name_or_path) was 32 and is now 16" in said.splitlines()[-1]


def bad_inputs(tmp_path, world):
    corpus = write_corpus(tmp_path / "other", write_model(tmp_path / "small"), documents=2)
    lines = (write_model(tmp_path / "swapped") / "vocab.txt").read_text(encoding="utf-8").splitlines()
    lines[4:6] = lines[5:3:-1]
    (tmp_path / "swapped" / "vocab.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{\n nonsense")
    (tmp_path / "broken" / "vocab.txt").write_bytes((world / "model" / "vocab.txt").read_bytes())
    return {
        "no weights": ({"from_scratch": "false"}, "holds no weights"),
        "no such folder": ({"model_name_or_path": tmp_path / "nowhere"}, "is not a folder"),
        "unknown name": ({"model_name_or_path": "ernie-9"}, "neither a folder nor a built-in"),
        "cannot be fetched": (
            {"model_name_or_path": "ernie-1.0", "from_scratch": "false"},
            "cannot be fetched",
        ),
        "config is not json": ({"model_name_or_path": tmp_path / "broken"}, "config.json:2: not JSON, "),
        "vocabulary": ({"model_name_or_path": tmp_path / "swapped"}, "another vocabulary"),
        "no corpus": ({"input_dir": tmp_path / "empty"}, "found none"),
        "no data folder": ({"input_dir": tmp_path / "nowhere"}, "is not a folder with a corpus"),
        "empty split": ({"input_dir": corpus}, "asks for 3 parts of 2 documents"),
        "too long": ({"max_seq_len": 41}, "above the model's 40 positions"),
        "rates": ({"min_lr": 1}, "--min_lr 1.0 is above --max_lr 0.01"),
        "batches": ({"global_batch_size": 7}, "use --global_batch_size 4"),
        "processes": ({"dp_degree": 2}, "asks for 2 process"),
        "amp on cpu": ({"use_amp": "true"}, "use --use_amp false"),
        "unknown flag": ({"max_step": 3}, "did you mean --max_steps"),
        "gpu without one": ({"device": "gpu"}, "--device gpu"),
    }


def test_bad_input_gives_one_line_and_exit_code_2(world, tmp_path):
    from ernie_pair.core.cli.cli import parse_config
    from ernie_pair.core.errors import InputError
    from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
    from ernie_pair.pretraining.pretrain import pretrain as call

    for name, (changes, message) in bad_inputs(tmp_path, world).items():
        output = tmp_path / "out" / name.replace(" ", "_")
        words = flags(world / "model", world / "data", output, **changes)
        with pytest.raises(InputError) as caught:
            call(parse_config(PretrainConfig, words))
        assert message in caught.value.message, name
        assert "\n" not in str(caught.value) and caught.value.exit_code == 2, name
        assert not (output / "metrics.jsonl").exists() and not (output / "cache").exists(), name


def test_a_nan_loss_never_reaches_a_checkpoint(world, tmp_path):
    said = pretrain(world, tmp_path / "out", 4, max_lr=1e30, grad_clip=0)
    assert "the loss of step" in said.splitlines()[-1]
    for folder in (tmp_path / "out" / "checkpoints").iterdir():
        for array in load_file(folder / "static_vars.safetensors").values():
            assert np.isfinite(json.loads(json.dumps(float(np.abs(array).max()))))


def test_a_run_without_validation_documents_is_resumed(world):
    settings = {**WHOLE, "split": "1,0,0"}
    said = pretrain(world, world / "unjudged", **settings)
    assert said.count("no validation: --split 1,0,0 leaves no documents for it") == 1
    assert {event["split"] for event in events(world / "unjudged")} == {"train"}
    cut = cut_after(world / "unjudged", world / "unjudged_cut", 4)
    assert "resumed" in pretrain(world, cut, **settings)
    assert events(cut) == events(world / "unjudged")
    assert_same_files(cut, world / "unjudged")
