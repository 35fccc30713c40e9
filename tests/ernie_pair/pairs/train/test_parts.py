"""A custom training loop, as the documentation writes it, compared with PairTrainer."""

import re

import numpy as np
import paddle
import pytest
from levels import needs_bf16
from places import ROOT
from tiny_pair import DEV, TRAIN, UNTRAINED

from ernie_pair import PairConfig, PairTrainer
from ernie_pair.checkpoint.checkpoint_folder import MANIFEST
from ernie_pair.core.errors import InputError, NumbersError
from ernie_pair.weights.weight_files import read_weights

SETTINGS = {**UNTRAINED, "epochs": 1, "dropout": 0.1, "logging_freq": 5}


def loop_of_the_page():
    """The statements between opening the parts and the evaluation."""
    page = (ROOT / "docs" / "en" / "fine-tune.md").read_text(encoding="utf-8")
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", page, re.S) if "open_parts" in b]
    loop = block.split("trainer.open_parts()")[1].split("print(")[0]
    return block.split("\n\n")[0] + "\nparts = trainer.open_parts()" + loop


HALVES = {"gradient_accumulation_steps": 2, "batch_size": 8}


@pytest.fixture
def make(tmp_path, model):
    def trainer(folder="loop", kind=PairTrainer, **changes):
        config = PairConfig(str(tmp_path / folder), **{**SETTINGS, **changes})
        return kind(model, config, TRAIN, DEV)

    return trainer


@pytest.fixture
def same_as_trainer(tmp_path, make):
    """Trains by `PairTrainer` and by a loop over (parts, batches of a step), and compares the weights."""

    def compare(take_step, **changes):
        run, trainer = make("run", **changes), make(**changes)
        run.train()
        parts = trainer.open_parts()
        assert len(parts.steps) == parts.total_steps == run.state.max_steps
        before = weights_of(trainer)
        for _, batches in parts.steps:
            take_step(parts, batches)
        assert_same_weights(trainer, tmp_path / "run", before)
        return run

    return compare


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gradient_accumulation_steps": 2, "batch_size": 8, "lr_scheduler_type": "cosine", "warmup_steps": 3},
        {"grad_clip": 0.05, "layer_decay": 0.8, "freeze": "embeddings", "max_steps": 5},
    ],
)
def test_a_custom_loop_gives_the_same_weights_as_the_trainer(tmp_path, make, changes):
    run, trainer = make("run", **changes), make(**changes)
    run.train()
    before = weights_of(trainer)
    exec(loop_of_the_page(), {"trainer": trainer})
    assert_same_weights(trainer, tmp_path / "run", before)
    assert not list((tmp_path / "loop").rglob(MANIFEST))
    metrics = [e for e in run.state.log_history if e["step"] == run.state.global_step and "eval_loss" in e]
    assert trainer.evaluate()["loss"] == metrics[0]["eval_loss"]
    trainer.save_model(tmp_path / "final")
    assert (tmp_path / "final" / "model_state.pdparams").is_file()


def weights_of(trainer):
    return {name: value.numpy() for name, value in trainer.model.named_parameters()}


def assert_same_weights(trainer, folder, before):
    last, after = read_weights(folder / "model_last" / "model.safetensors"), weights_of(trainer)
    assert after.keys() == last.keys() and any(not np.array_equal(after[n], before[n]) for n in after)
    for name, value in after.items():
        np.testing.assert_array_equal(value, last[name], err_msg=name)


@pytest.mark.parametrize("changes", [
    {**HALVES, "grad_clip": 0.05, "layer_decay": 0.8},
    {"class_weights": "1,2.5", "rdrop_alpha": 1.0},
    {"symmetric": "average", **HALVES},
    {"use_amp": True, "amp_dtype": "float32"},
    pytest.param({"precision": "bf16"}, marks=needs_bf16),
], ids=str)  # fmt: skip
def test_a_loop_over_parts_gives_the_numbers_of_the_trainer(same_as_trainer, changes):
    losses = []

    def step(parts, batches):
        of_step = []
        for batch in batches:
            of_step.append(parts.loss(batch))
            parts.backward(of_step[-1])
        losses.append(float(np.mean([float(loss) for loss in of_step])))
        assert parts.update()["learning_rate"] == parts.learning_rate(len(losses))

    run = same_as_trainer(step, **changes)
    if "class_weights" not in changes:
        logged = [entry["loss"] for entry in run.state.log_history if "loss" in entry]
        np.testing.assert_allclose(np.mean(losses[:5]), logged[0], rtol=1e-6)


def own_loss(parts, batches):
    for batch in batches:
        logits = parts.forward(batch)
        loss = paddle.nn.functional.cross_entropy(logits, paddle.to_tensor(batch.labels))
        parts.backward(loss.reshape([1]))  # [] and [1] are both one number
    parts.update()


def loss_of_the_model(parts, batches):
    for batch in batches:
        ids, types, labels = map(paddle.to_tensor, (batch.input_ids, batch.token_type_ids, batch.labels))
        parts.backward(parts.model(ids, types, labels=labels, return_dict=True).loss)
    parts.update()


def plain_paddle(parts, batches):
    assert parts.optimizer.get_lr() > 0
    parts.loss(batches[0]).backward()
    parts.optimizer.step()
    parts.optimizer.clear_grad()


def evaluation_in_between(parts, batches):
    with paddle.no_grad():
        parts.model.eval()
        logits = [parts.forward(each).numpy() for each in parts.dev_batches()]
        parts.model.train()
    parts.backward(parts.loss(batches[0]))
    parts.update()
    assert np.concatenate(logits).shape == (len(DEV), 2)


@pytest.mark.parametrize(
    "take_step, changes",
    [
        (own_loss, HALVES),
        (own_loss, {"on_nan": "skip", "kernels": "plain"}),
        (loss_of_the_model, {**HALVES, "dropout": 0.0, "kernels": "plain"}),
        (plain_paddle, {"dropout": 0.0, "warmup_steps": 3}),
        (evaluation_in_between, {}),
    ],
)
def test_a_step_of_ones_own_gives_the_weights_of_the_trainer(same_as_trainer, take_step, changes):
    same_as_trainer(take_step, **changes)


def test_batches_of_ones_own_move_through_the_schedule(make):
    parts = make(max_steps=4, warmup_steps=2).open_parts()
    inputs = {"input_ids": np.array([[1, 5, 2, 6, 2]]), "token_type_ids": np.array([[0, 0, 0, 1, 1]])}
    rates = []
    for batch in (inputs, list(inputs.values()), inputs, tuple(inputs.values())):
        parts.backward(parts.forward(batch).sum())
        rates.append(parts.update()["learning_rate"])
    assert rates == [parts.learning_rate(step) for step in (1, 2, 3, 4)] and len(set(rates)) > 2


def test_steps_go_on_where_a_loop_left_them(make):
    parts = make(max_steps=4, warmup_steps=0).open_parts()
    assert parts.learning_rate(0) == SETTINGS["learning_rate"]
    first = next(parts.steps)[0]
    assert [first, *(number for number, _ in parts.steps)] == [1, 2, 3, 4]
    assert list(parts.steps) == []
    parts = make("warm", warmup_steps=3).open_parts()
    assert parts.learning_rate(0) == 0 and parts.optimizer.get_lr() == parts.learning_rate(1) > 0


def test_all_dev_pairs_are_given_once(make):
    parts = make().open_parts()
    batches = list(parts.dev_batches())
    assert [len(batch.labels) for batch in batches] == [16, 16, 9]
    assert np.concatenate([batch.labels for batch in batches]).tolist() == [label for *_, label in DEV]


@pytest.mark.parametrize(
    "change",
    [
        {"fgm_epsilon": 1.0}, {"early_stopping_patience": 2}, {"dry_run": True}, {"keep_every": 5},
        {"evaluation_strategy": "no"}, {"save_strategy": "no"}, {"save_format": "hf"}, {"keep_best": 2},
    ],
)  # fmt: skip
def test_flags_that_a_custom_loop_would_ignore_are_refused(make, change):
    name = next(iter(change))
    with pytest.raises(InputError, match=f"^{name}.* is done by PairTrainer.train, and not by a loop"):
        make(**change).open_parts()


@pytest.mark.parametrize("change", [{"class_weights": "1,2"}, {"rdrop_alpha": 1.0}, {"symmetric": "average"}])
@pytest.mark.parametrize("of_model", [False, True])
def test_flags_that_a_loss_of_ones_own_ignores_are_refused(make, change, of_model):
    parts = make(**change).open_parts()
    _, (batch,) = next(parts.steps)
    ids = map(paddle.to_tensor, (batch.input_ids, batch.token_type_ids))
    parts.backward((parts.model(*ids) if of_model else parts.forward(batch)).mean())
    with pytest.raises(InputError, match=f"^{next(iter(change))}.* is part of parts.loss, and this loop has"):
        parts.update()


def test_micro_batches_that_are_missing_or_too_many_are_refused(make):
    parts = make(gradient_accumulation_steps=2).open_parts()
    _, batches = next(parts.steps)
    parts.backward(parts.loss(batches[0]))
    with pytest.raises(InputError, match="^update: backward was called 1 times, and a step has 2 micro"):
        parts.update()
    parts.backward(parts.loss(batches[1]))
    with pytest.raises(InputError, match="^backward was called once more than a step has micro-batches, 2"):
        parts.backward(parts.loss(batches[1]))


def test_a_step_without_its_update_is_refused(make):
    parts = make().open_parts()
    for _, (batch,) in parts.steps:
        parts.backward(parts.loss(batch))
        break
    with pytest.raises(InputError, match="backward was called in step 1 and update was not"):
        next(parts.steps)
    parts.optimizer.clear_grad()
    assert next(parts.steps)[0] == 3


def test_a_loss_that_is_not_finite_ends_a_loop(make):
    parts = make().open_parts()
    _, (batch,) = next(parts.steps)
    parts.backward(parts.loss(batch) * float("nan"))
    before = parts.model.classifier.weight.numpy()
    with pytest.raises(NumbersError, match="the loss is not finite up to step 1 of your loop"):
        parts.update()
    np.testing.assert_array_equal(parts.model.classifier.weight.numpy(), before)
