"""Callbacks, the state that they are given and the control that they have; and save_model."""

import json
import os
import signal

import numpy as np
import paddle
import pytest
from fake_ranks import on_ranks
from paddlenlp.transformers import ErnieForSequenceClassification
from run_files import files_of
from tiny_pair import DEV, TRAIN, UNTRAINED

from ernie_pair import PairCallback, PairConfig, PairTrainer, TrainerControl, TrainerState
from ernie_pair.core.errors import InputError, MachineError
from ernie_pair.models.temperature import CALIBRATION
from ernie_pair.training.callbacks import EVENTS, CallbackCaller

SETTINGS = {**UNTRAINED, "epochs": 2, "eval_freq": 5, "logging_freq": 4, "checkpoint_steps": 4}


@pytest.fixture
def make(tmp_path, model):
    def trainer(*callbacks, folder="out", **settings):
        config = PairConfig(str(tmp_path / folder), **{**SETTINGS, **settings})
        return PairTrainer(model, config, TRAIN, DEV, callbacks=callbacks)

    return trainer


class Diary(PairCallback):
    """Records every event, and sets the control as ``asked`` says: {(event, step): {name: value}}."""

    def __init__(self, asked=None):
        self.asked, self.events, self.states = asked or {}, [], []

    def note(self, event, state, control):
        self.events.append((event, state.global_step))
        self.states.append(state)
        for name, value in self.asked.get(self.events[-1], {}).items():
            setattr(control, name, value)


def _noting(event):
    def method(self, args, state, control, **kwargs):
        assert isinstance(args, PairConfig) and kwargs["model"].training in (True, False)
        self.note(event, state, control)

    return method


for name in EVENTS:
    setattr(Diary, name, _noting(name))


class MyCallback(PairCallback):
    "A callback that prints a message at the beginning of training"

    def on_train_begin(self, args, state, control, **kwargs):
        print("Starting training")


def test_all_events_occur_in_the_same_order_as_in_transformers(make):
    diary = Diary()
    make(diary, max_steps=7, eval_freq=7).train()

    def step(number):
        within = ("on_step_begin", "on_pre_optimizer_step", "on_optimizer_step")
        return [*((name, number - 1) for name in within), ("on_step_end", number)]

    def evaluation(number):
        return [*[("on_prediction_step", number)] * 3, ("on_evaluate", number)]  # 41 pairs

    begin, end = ("on_epoch_begin", 0), ("on_train_end", 7)  # 90 pairs are 5.6 batches
    assert diary.events == [
        ("on_init_end", 0), ("on_train_begin", 0), *evaluation(0),
        begin, *step(1), *step(2), *step(3), *step(4), ("on_log", 4), ("on_save", 4),
        *step(5), *step(6), ("on_epoch_end", 6), *evaluation(6),
        ("on_epoch_begin", 6), *step(7), ("on_log", 7), *evaluation(7), ("on_save", 7), end,
    ]  # fmt: skip


def test_micro_batches_and_predictions_have_their_events(make):
    diary = Diary()
    trainer = make(diary, max_steps=1, gradient_accumulation_steps=3)
    trainer.train()
    within = ["on_step_begin", "on_substep_end", "on_substep_end", "on_pre_optimizer_step"]
    names = [event for event, _ in diary.events]
    assert names[names.index("on_step_begin") :][:4] == within
    diary.events.clear()
    trainer.predict(DEV[:20])
    assert diary.events == [("on_prediction_step", 1), ("on_prediction_step", 1), ("on_predict", 1)]


def test_the_log_history_is_complete_after_a_resume(make):
    trainer = make(folder="whole")
    trainer.train()
    history = trainer.state.log_history
    assert [(entry["step"], "eval_accuracy" in entry) for entry in history] == [
        (0, True), (4, False), (5, True), (6, True), (8, False), (10, True), (12, False), (12, True)
    ]  # fmt: skip
    assert history[1]["loss"] > 0 and history[1]["learning_rate"] > 0 and history[1]["epoch"] == 64 / 90
    stopping = make(Diary({("on_evaluate", 6): {"should_training_stop": True}}))
    assert stopping.train().step == 6
    assert stopping.state.log_history == history[:4]
    resumed = make()
    resumed.train()
    assert resumed.state.log_history == history
    assert make().state.log_history == []


def test_a_callback_can_request_an_extra_log_eval_and_save(tmp_path, make):
    asked = {"should_evaluate": True, "should_save": True, "should_log": True}
    diary = Diary({("on_step_end", 3): asked})
    make(diary, max_steps=4, eval_freq=4, folder="asked").train()
    events = [event for event, step in diary.events if step == 3 and event != "on_prediction_step"]
    assert events[:4] == ["on_step_end", "on_log", "on_evaluate", "on_save"]
    make(max_steps=4, eval_freq=4).train()
    ours, theirs = (tmp_path / folder / "model_last" for folder in ("asked", "out"))
    assert (tmp_path / "asked" / "checkpoints" / "step_00000003").is_dir()
    assert files_of(ours)["model.safetensors"] == files_of(theirs)["model.safetensors"]  # the same steps


def test_a_callback_can_skip_due_actions_except_the_final_save(make):
    off = {"should_evaluate": False, "should_save": False, "should_log": False}
    diary = Diary({("on_step_end", step): off for step in (4, 5, 6)})
    make(diary, max_steps=6).train()
    assert diary.events[-3:] == [("on_epoch_end", 6), ("on_save", 6), ("on_train_end", 6)]
    happened = [event for event, step in diary.events if step in (4, 5)]
    assert {"on_log", "on_evaluate", "on_save"}.isdisjoint(happened) and happened.count("on_step_end") == 2


def test_an_interrupted_evaluation_request_is_run_on_resume(make):
    class Interrupted(Diary):
        def note(self, event, state, control):
            super().note(event, state, control)
            if self.events[-1] == ("on_step_end", 1):
                os.kill(os.getpid(), signal.SIGINT)  # is handled in step 2

    asked = {("on_step_end", 2): {"should_evaluate": True}}
    with pytest.raises(KeyboardInterrupt, match="after step 2"):
        make(Interrupted(asked), max_steps=4).train()
    diary = Diary(asked)
    make(diary, max_steps=4).train()
    events = [event for event in diary.events if event[0] in ("on_train_begin", "on_evaluate", "on_step_end")]
    assert events[:3] == [("on_train_begin", 2), ("on_evaluate", 2), ("on_step_end", 3)]


def test_a_returned_control_is_applied_as_in_transformers(make):
    class Returning(PairCallback):
        def on_step_end(self, args, state, control, **kwargs):
            return TrainerControl(should_training_stop=state.global_step == 2)

    assert make(Returning()).train().step == 2


Late = type("Late", (PairCallback,), {"on_epoch_start": print})


@pytest.mark.parametrize("callback, reason", [
    (print, "builtin_function_or_method is not a PairCallback; derive it from ernie_pair.PairCallback"),
    (type("Own", (), {}), "Own is not a PairCallback"),
    (Late, "nothing calls Late.on_epoch_start; use one of on_init_end, on_train_begin"),
])  # fmt: skip
def test_a_callback_that_is_never_called_is_refused(make, callback, reason):
    with pytest.raises(InputError, match=f"^callbacks: {reason}"):
        make(callback)
    with pytest.raises(InputError, match=f"^callbacks: {reason}"):
        make().add_callback(callback)


class Evens(PairCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_save = state.global_step % 2 == 0


def called(world, all_reduce, callbacks=(Evens,)):
    """Return (control, collectives of two events) of a rank; the callbacks are those of rank 0."""
    sums = []

    def counted(values):
        sums.append(len(values))
        return all_reduce(values)

    state = TrainerState(global_step=4)
    given = [callback() for callback in callbacks] if world.is_first else ()
    calls = CallbackCaller(given, PairConfig("out", device="cpu"), state, world, counted)
    sums.clear()
    control = TrainerControl(should_log=True)
    calls("on_step_end", control)
    calls("on_epoch_end", control)
    return control, len(sums)


def test_all_ranks_follow_the_control_of_the_first_rank():
    expected = TrainerControl(should_log=True, should_save=True)
    assert on_ranks(3, called) == [(expected, 2)] * 3  # one event has a listener, which costs two sums
    unheard = on_ranks(2, lambda *rank: called(*rank, callbacks=[MyCallback]))
    assert unheard == [(TrainerControl(should_log=True), 0)] * 2


def test_a_saved_model_predicts_as_the_trainer_does(tmp_path, make):
    trainer = make(max_steps=6, match_embeddings=False)  # which PaddleNLP has not
    trainer.train()
    final = tmp_path / "mine" / "final"
    trainer.save_model(final)
    trainer.save_model(final)  # replaces its own output
    loaded = PairTrainer(final, PairConfig("out", model_type="ernie", batch_size=16, device="cpu"))
    np.testing.assert_array_equal(loaded.predict(DEV).predictions, trainer.predict(DEV).predictions)
    theirs = ErnieForSequenceClassification.from_pretrained(str(final))
    ids, types = map(paddle.to_tensor, ([[1, 5, 6, 2, 7, 8, 2]], [[0, 0, 0, 0, 1, 1, 1]]))
    for model in (theirs, trainer.model):
        model.eval()
    np.testing.assert_allclose(theirs(ids, types).numpy(), trainer.model(ids, types).numpy(), atol=1e-6)
    (tmp_path / "empty").mkdir()
    (final / CALIBRATION).write_text(json.dumps({"temperature": 2.0}))
    loaded.save_model(tmp_path / "empty")
    assert json.loads((tmp_path / "empty" / CALIBRATION).read_text()) == {"temperature": 2.0}
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["final"]


def test_save_model_overwrites_only_its_own_output(tmp_path, make):
    trainer = make(max_steps=1)
    best = trainer.train().best_model
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("dear to me")
    trainer.save_model(tmp_path / "added")
    (tmp_path / "added" / "notes.txt").write_text("dear to me")
    (tmp_path / "file").write_text("dear to me")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    for name in ("mine", "added", "file", "link", f"out/{best.name}", "out"):
        before = sorted(path.name for path in tmp_path.rglob("*"))
        with pytest.raises(InputError, match="save_model: .* holds what save_model did not write"):
            trainer.save_model(tmp_path / name)
        assert sorted(path.name for path in tmp_path.rglob("*")) == before
    with pytest.raises(MachineError):
        trainer.save_model(tmp_path / "file" / "below")
