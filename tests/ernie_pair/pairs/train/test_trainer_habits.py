"""What people write who know the Trainer of transformers and PaddleNLP: it is called, or refused by name."""

import numpy as np
import paddle
import pytest
from paddle.nn import functional as F
from tiny_pair import DEV, TRAIN, UNTRAINED, train_config

from ernie_pair import PairCallback, PairConfig, PairTrainer
from ernie_pair.core.errors import InputError
from ernie_pair.pairs.train.overrides import batch_of
from ernie_pair.pairs.train.train_pair import train_pair
from ernie_pair.weights.weight_files import read_weights

SETTINGS = {**UNTRAINED, "max_steps": 6, "eval_freq": 3, "checkpoint_steps": 3}


@pytest.fixture
def make(tmp_path, model):
    def trainer(kind=PairTrainer, folder="out", own=None, **settings):
        config = PairConfig(str(tmp_path / folder), **{**SETTINGS, **settings})
        return kind(model, config, TRAIN, DEV, **(own or {}))

    return trainer


@pytest.fixture
def losses(make):
    def run(*given, **named):
        trainer = make(*given, **named)
        trainer.train()
        return losses_of(trainer)

    return run


def subclass(**methods):
    return type("Mine", (PairTrainer,), methods)


def stop_at(step):
    stop = type("Stop", (PairCallback,), {})
    stop.on_step_end = lambda self, args, state, control, **kwargs: setattr(
        control, "should_training_stop", state.global_step == step
    )
    return stop


def losses_of(trainer):
    lines = [entry for entry in trainer.state.log_history if "loss" in entry]
    return [line["loss"] for line in lines], [line.get("accuracy") for line in lines]


@pytest.fixture(scope="module")
def plain(tmp_path_factory, model):
    trainer = PairTrainer(model, PairConfig(str(tmp_path_factory.mktemp("plain")), **SETTINGS), TRAIN, DEV)
    trainer.train()
    return losses_of(trainer)


class OwnLoss(PairTrainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        labels = inputs.pop("labels")
        logits = model(**inputs)
        loss = F.cross_entropy(logits, labels)
        return (loss, logits) if return_outputs else loss


class FlagsLoss(PairTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
        return (loss, {"logits": outputs}) if return_outputs else loss


class Doubled(PairTrainer):
    def compute_loss(self, model, inputs):
        return 2 * F.cross_entropy(model(inputs["input_ids"], inputs["token_type_ids"]), inputs["labels"])


def of_outputs(outputs, labels):
    return F.cross_entropy(outputs.logits, labels)


@pytest.mark.parametrize(
    "kind, function",
    [
        (OwnLoss, None),
        (FlagsLoss, None),
        (PairTrainer, of_outputs),
        (PairTrainer, paddle.nn.CrossEntropyLoss()),
    ],
)
def test_a_loss_of_ones_own_is_trained_with(losses, plain, kind, function):
    assert losses(kind, own={"compute_loss_func": function}) == plain


def test_a_loss_without_outputs_has_no_accuracy(losses, plain):
    doubled, accuracies = losses(Doubled)
    assert doubled[0] == pytest.approx(2 * plain[0][0], rel=1e-6) and accuracies == [None] * 6
    assert doubled[1:] != [2 * loss for loss in plain[0][1:]]


def test_the_loss_of_the_flags_in_an_override_has_weights(losses):
    both = [losses(kind, kind.__name__, class_weights="1,2.5")[0] for kind in (PairTrainer, FlagsLoss)]
    np.testing.assert_allclose(*both, rtol=1e-6)


def test_a_run_resumes_with_its_own_loss_alone(make, losses, plain):
    make(OwnLoss, own={"callbacks": [stop_at(3)]}).train()
    with pytest.raises(InputError, match="loss .*OwnLoss.compute_loss"):
        make().train()
    assert losses(OwnLoss) == plain


@pytest.mark.parametrize(
    "loss_of, reason",
    [
        (lambda rows: None, "returned NoneType, not a loss; return one number with its gradient"),
        (lambda rows: rows, r"returned a tensor \[16\], not a loss"),
        (lambda rows: rows.mean().detach(), r"returned a tensor \[\], not a loss"),
    ],
)
def test_what_is_no_loss_is_refused(make, loss_of, reason):
    def compute_loss(self, model, inputs):
        logits = model(inputs["input_ids"], inputs["token_type_ids"])
        return loss_of(F.cross_entropy(logits, inputs["labels"], reduction="none"))

    with pytest.raises(InputError, match=f"Mine.compute_loss {reason}"):
        make(subclass(compute_loss=compute_loss)).train()


@pytest.mark.parametrize("name", ["training_step", "get_eval_dataloader", "optimizer_step", "compute_losses"])
def test_a_method_that_nobody_calls_is_refused(make, name):
    reason = f"nothing calls Mine.{name}; what is called of a subclass is compute_loss"
    with pytest.raises(InputError, match=reason):
        make(subclass(**{name: lambda self, *inputs: None}))
    make(subclass(describe=lambda self: "", _training_step=lambda self: ""))  # nobody's business
    make(subclass(create_rows=lambda self: [], evaluate=lambda self: self.create_rows()))


def momentum(trainer):
    rate = SETTINGS["learning_rate"]
    return paddle.optimizer.Momentum(rate, 0.9, parameters=trainer.model.parameters())


class OwnOptimizer(PairTrainer):
    def create_optimizer(self):
        return momentum(self)


class SetOptimizer(PairTrainer):
    def create_optimizer(self):
        self.optimizer = momentum(self)


class OwnScheduler(OwnOptimizer):
    def create_scheduler(self, num_training_steps, optimizer=None):
        return paddle.optimizer.lr.LambdaDecay(0.1, lambda step: 1 / (1 + step))


def by_hand(make, rates):
    """The losses of a loop with Paddle's Momentum at the given rates."""
    trainer = make(folder="hand")
    parts = trainer.open_parts()
    optimizer, losses = momentum(trainer), []
    for (_, (batch,)), rate in zip(parts.steps, rates):
        loss = parts.loss(batch)
        loss.backward()
        losses.append(float(loss))
        optimizer.set_lr(rate)
        optimizer.step()
        optimizer.clear_grad()
    return losses


@pytest.mark.parametrize("kind", [OwnOptimizer, SetOptimizer, OwnScheduler])
def test_an_optimizer_of_a_subclass_has_the_rates_of_the_run(make, kind):
    trainer = make(kind)
    trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert losses_of(trainer)[0] == by_hand(make, rates)
    if kind is OwnScheduler:
        np.testing.assert_allclose(rates, [0.1 / (1 + step) for step in range(6)])


@pytest.mark.parametrize("is_inside", [True, False])
def test_optimizers_given_as_an_argument_are_used_and_resumed(tmp_path, make, is_inside):
    lr = paddle.optimizer.lr

    def run(folder, steps):
        start = make(folder="start")
        scheduler = lr.LinearWarmup(lr.ExponentialDecay(0.1, 0.9), 2, 0.0, 0.1)
        rate = scheduler if is_inside else 0.1
        optimizer = paddle.optimizer.Momentum(rate, 0.9, parameters=start.model.parameters())
        own = {"vocab_file": start._start.source.vocab_file, "callbacks": [stop_at(steps)]}
        own["optimizers"] = (optimizer, None if is_inside else scheduler)
        config = PairConfig(str(tmp_path / folder), **{**SETTINGS, **RATE})
        trainer = PairTrainer(start.model, config, TRAIN, DEV, **own)
        trainer.train()
        return losses_of(trainer)[0], read_weights(tmp_path / folder / "model_last" / "model.safetensors")

    whole, weights = run("whole", 6)
    run("parts", 3)
    resumed, again = run("parts", 6)
    assert resumed == whole and len(set(whole)) == 6
    for name, value in weights.items():
        np.testing.assert_array_equal(value, again[name])


def creating(make_optimizer):
    return subclass(create_optimizer=lambda self: make_optimizer(parameters=self.model.parameters()))


DECAY = paddle.optimizer.lr.ExponentialDecay(0.1, 0.9)
FOREIGN = paddle.optimizer.SGD(0.1, parameters=paddle.nn.Linear(2, 2).parameters())
TwoSchedulers = subclass(
    create_optimizer=lambda self: paddle.optimizer.SGD(DECAY, parameters=self.model.parameters()),
    create_scheduler=lambda self, steps, optimizer=None: paddle.optimizer.lr.StepDecay(0.1, 2),
)


SCHEDULED, RATE = (None, DECAY), {"learning_rate": 5e-5}
IGNORED = "is of a part that PairTrainer is given here; leave it out"


@pytest.mark.parametrize(
    "given, flags, reason",
    [
        ((FOREIGN, None), {}, "the optimizer moves parameters that this model does not have"),
        ((FOREIGN, None), {"weight_decay": 0.1}, IGNORED),
        ((FOREIGN, None), {"layer_decay": 0.9}, IGNORED),
        ((FOREIGN, None), {"grad_clip": 1.0}, IGNORED),
        (SCHEDULED, {**RATE, "warmup_steps": 2}, IGNORED),
        (SCHEDULED, {**RATE, "lr_scheduler_type": "cosine"}, IGNORED),
        (SCHEDULED, {}, IGNORED),
    ],
)
def test_given_optimizers_that_do_not_fit_are_refused(make, given, flags, reason):
    with pytest.raises(InputError, match=reason):
        make(own={"optimizers": given}, **flags).train()


OTHER = "return an optimizer of Paddle's other than LBFGS"


def look_ahead(parameters):
    return paddle.incubate.LookAhead(paddle.optimizer.SGD(0.005, parameters))


@pytest.mark.parametrize("kind, reason", [
    (creating(lambda parameters: None), "of Mine returned NoneType; return an optimizer"),
    (creating(paddle.optimizer.LBFGS), f"returned LBFGS; {OTHER}"),
    (creating(look_ahead), f"returned LookAhead; {OTHER} and LookAhead"),
    (creating(lambda parameters: paddle.optimizer.SGD(0.5, parameters)),
     "the optimizer has the learning rate 0.5, and its steps have that of learning_rate=0.005"),
    (TwoSchedulers, "the optimizer has a ExponentialDecay, and there is a StepDecay"),
])  # fmt: skip
def test_optimizers_of_a_subclass_that_do_not_fit_are_refused(make, kind, reason):
    with pytest.raises(InputError, match=reason):
        make(kind).train()


def test_a_run_resumes_with_an_optimizer_of_the_same_kind(make):
    make(own={"callbacks": [stop_at(3)]}).train()
    with pytest.raises(InputError, match="optimizer .*Momentum"):
        make(OwnOptimizer).train()


def test_gradients_that_an_optimizer_leaves_out_do_not_grow(make):
    def of_head(self):
        return paddle.optimizer.SGD(SETTINGS["learning_rate"], self.model.classifier.parameters())

    trainer = make(subclass(create_optimizer=of_head), dropout=0.0)
    trainer.train()
    gradients = [p.grad for p in trainer.model.encoder.parameters() if p.grad is not None]
    assert not any(float(gradient.abs().max()) for gradient in gradients)


@pytest.mark.parametrize("flag", [{"class_weights": "1,2"}, {"rdrop_alpha": 1.0}, {"symmetric": "average"}])
def test_flags_of_the_loss_beside_one_of_ones_own_are_refused(make, flag):
    with pytest.raises(InputError, match="is of a part that PairTrainer is given here"):
        make(own={"compute_loss_func": paddle.nn.CrossEntropyLoss()}, **flag)
    with pytest.raises(InputError, match="is of the loss of the flags, which OwnLoss.compute_loss does not"):
        make(OwnLoss, **flag).train()


class OwnLoader(PairTrainer):
    def get_train_dataloader(self):
        return super().get_train_dataloader() if self.loader is None else self.loader

    loader = None


def test_the_loader_of_a_trainer_gives_the_batches_of_its_run(make, losses, plain):
    batches = make(folder="loader").get_train_dataloader()
    assert len(batches) == 6 and [len(batch["labels"]) for batch in batches] == [16] * 6
    assert losses(OwnLoader) == plain


def test_the_loader_of_a_trainer_resumes_in_a_later_epoch(losses):
    settings = {"max_steps": 14, "dropout": 0.0}
    whole = losses(OwnLoader, "whole", **settings)
    losses(OwnLoader, own={"callbacks": [stop_at(8)]}, **settings)
    assert losses(OwnLoader, **settings) == whole


def test_a_loader_of_ones_own_is_refused_for_ranking(tmp_path, model):
    rows = [("今天", "好", 1), ("今天", "坏", 0)]
    config = PairConfig(str(tmp_path / "out"), **SETTINGS, target="ranking")
    with pytest.raises(InputError, match="get_train_dataloader: ranking draws the candidates of each query"):
        OwnLoader(model, config, rows, rows).train()


def test_a_loader_of_ones_own_is_trained_with_epoch_by_epoch(make):
    trainer = make(OwnLoader, max_steps=0, epochs=3, dropout=0.0)
    ready = [batch for _, batch in zip(range(2), trainer.get_train_dataloader())]
    trainer.loader = [ready[0], [paddle.to_tensor(ready[1][name]) for name in ready[1]]]
    trainer.train()
    assert trainer.state.global_step == 6
    first = make(OwnLoader, folder="first", max_steps=1, dropout=0.0)
    first.loader = trainer.loader
    first.train()
    assert losses_of(first)[0] == losses_of(trainer)[0][:1]


class Rows(paddle.io.Dataset):
    """The rows of batches, padded."""

    def __init__(self, batches):
        self.rows = [row for batch in batches for row in zip(*batch.values())]

    def __getitem__(self, index):
        ids, types, label = self.rows[index]
        return (*(np.pad(array, (0, 32 - len(array))) for array in (ids, types)), np.array([label]))

    def __len__(self):
        return len(self.rows)


def test_a_loader_of_paddle_is_trained_with_and_resumed(make):
    rows = Rows(make(folder="rows").get_train_dataloader())

    def run(folder, steps):
        trainer = make(OwnLoader, folder, own={"callbacks": [stop_at(steps)]}, max_steps=9)
        sampler = paddle.io.DistributedBatchSampler(rows, 16, num_replicas=1, rank=0, shuffle=True)
        trainer.loader = paddle.io.DataLoader(rows, batch_sampler=sampler, return_list=True)
        trainer.train()
        return losses_of(trainer)[0]

    whole = run("whole", 9)
    run("parts", 7)
    assert run("parts", 9) == whole and len(set(whole)) == 9


def test_a_pair_of_inputs_and_labels_is_a_batch(make):
    inputs = {"input_ids": [[1, 5, 2, 6, 2]], "token_type_ids": [[0, 0, 0, 1, 1]]}
    found = batch_of((inputs, paddle.to_tensor([1])), "loader", make().model.spec)
    assert found.token_type_ids.tolist() == inputs["token_type_ids"] and found.labels.tolist() == [1]


@pytest.mark.parametrize("batch, reason", [
    ({"input_ids": [[1, 2]], "labels": [0], "weights": [1]}, "a batch of input_ids, labels, weights; give"),
    ({"input_ids": [[1, 2]]}, "a batch of input_ids; give input_ids, token_type_ids, labels"),
    ([[[1, 2]], [[0]], [1]], r"input_ids \(1, 2\), token_type_ids \(1, 1\)"),
    ({"input_ids": [[1, 99]], "labels": [0]}, "input_ids that are no whole numbers from 0 to"),
    ({"input_ids": [[1, 2]], "labels": [2]}, "labels that are no whole numbers from 0 to 1"),
    ({"input_ids": [[1] * 200], "labels": [1]}, r"input_ids \(1, 200\).*S at most 128"),
])  # fmt: skip
def test_what_is_no_batch_is_refused(make, batch, reason):
    with pytest.raises(InputError, match=f"loader gave {reason}"):
        batch_of(batch, "loader", make().model.spec)


def test_evaluate_and_log_of_a_subclass_are_called(make):
    class Noting(PairTrainer):
        seen = []

        def evaluate(self, *given, **named):
            metrics = super().evaluate(*given, **named)
            return {**metrics, "mine": metrics["accuracy"] / 2}

        def log(self, logs):
            self.seen.append(logs["step"])

    trainer = make(Noting, best_metric="accuracy")
    trainer.train()
    evaluations = [entry for entry in trainer.state.log_history if "eval_accuracy" in entry]
    assert [entry["step"] for entry in evaluations] == [0, 3, 6] and Noting.seen == [1, 2, 3, 4, 5, 6]
    assert all(entry["eval_mine"] == entry["eval_accuracy"] / 2 for entry in evaluations)


@pytest.mark.parametrize("strategy, steps", [("steps", [0, 4, 8, 12]), ("epoch", [0, 6, 12]), ("no", [])])
def test_evaluation_by_steps_epochs_or_never(make, strategy, steps):
    trainer = make(evaluation_strategy=strategy, max_steps=0, epochs=2, eval_freq=4)
    result = trainer.train()
    assert [e["step"] for e in trainer.state.log_history if "eval_loss" in e] == steps
    assert (result.best_model is None) == (strategy == "no") and result.step == 12


@pytest.mark.parametrize("strategy, steps", [("epoch", [6, 12]), ("no", [12])])
def test_saving_by_steps_epochs_or_at_the_end_alone(make, strategy, steps):
    saved = []
    note = type("Note", (PairCallback,), {})
    note.on_save = lambda self, args, state, control, **kwargs: saved.append(state.global_step)
    make(save_strategy=strategy, max_steps=0, epochs=2, checkpoint_steps=5, own={"callbacks": [note]}).train()
    assert saved == steps


def test_the_command_without_evaluations_leaves_the_last_model(tmp_path):
    train_pair(train_config(tmp_path, max_steps=2, evaluation_strategy="no"))
    assert (tmp_path / "out" / "model_last" / "model.safetensors").is_file()
    assert not (tmp_path / "out" / "best").exists()
