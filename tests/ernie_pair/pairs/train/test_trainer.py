"""Training from Python gives the same runs as the command."""

import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, IterableDataset, Value
from pandas import DataFrame
from run_files import events, files_of
from tiny_pair import DEV, TRAIN, UNTRAINED, as_dicts, write_pairs

from ernie_pair import PairCallback, PairConfig, PairTrainer
from ernie_pair.checkpoint.checkpoint_folder import MANIFEST
from ernie_pair.core.errors import InputError
from ernie_pair.inference import token_rows as pair_rows
from ernie_pair.models.labels import Labels
from ernie_pair.models.networks.classifier import load_classifier
from ernie_pair.pairs.config.pair_config import TrainConfig
from ernie_pair.pairs.data import in_memory_pairs
from ernie_pair.pairs.data.in_memory_pairs import BEGINNING, GivenPairs
from ernie_pair.pairs.train import trainer as trainer_module
from ernie_pair.pairs.train.train_pair import train_pair

SETTINGS = {**UNTRAINED, "epochs": 2, "eval_freq": 5, "checkpoint_steps": 4}
TIMES = ("runtime", "samples_per_second")


@pytest.fixture
def files(tmp_path):
    sets = (("train", 90, 0), ("dev", 41, 1))
    return tuple(str(write_pairs(tmp_path / f"{name}.tsv", rows, seed)) for name, rows, seed in sets)


@pytest.fixture
def make(tmp_path, model):
    """A trainer on the pairs as tuples, unless the test says otherwise."""

    def trainer(*datasets, own=None, folder="out", **settings):
        config = PairConfig(str(tmp_path / folder), **{**SETTINGS, **settings})
        return PairTrainer(model, config, *(datasets or (TRAIN, DEV)), **(own or {}))

    return trainer


@pytest.fixture(scope="module")
def whole(tmp_path_factory, model):
    """A run on the pairs as tuples: its trainer, what `train` returned, and its folder."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    trainer = PairTrainer(model, PairConfig(str(folder), **SETTINGS), TRAIN, DEV)
    return SimpleNamespace(trainer=trainer, result=trainer.train(), folder=folder)


def without_times(metrics):
    """The metrics of an evaluation, which took some time."""
    assert metrics["runtime"] > 0 and metrics["samples_per_second"] > 0
    return {name: value for name, value in metrics.items() if name not in TIMES}


def as_dataset(rows):
    features = Features(query=Value("string"), title=Value("string"), label=ClassLabel(names=["no", "yes"]))
    return Dataset.from_list(as_dicts(rows), features=features)


def test_importing_the_package_loads_paddle_only_for_trainer():
    text = "import sys, ernie_pair; from ernie_pair import PairCallback, PairConfig, notebook_launcher; "
    text += "print('paddle' in sys.modules, hasattr(ernie_pair, 'PairRun'), 'PairTrainer' in dir(ernie_pair))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "True"]


def test_a_run_from_python_equals_the_run_of_the_command(tmp_path, model, files, make):
    config = {**SETTINGS, "train_file": files[0], "dev_file": files[1]}
    theirs, ours = tmp_path / "command", tmp_path / "out"
    train_pair(TrainConfig(model_name_or_path=str(model), **config, output_dir=str(theirs)))
    before, result = events(theirs), make(*files).train()
    assert events(ours) == before
    for folder in ("checkpoints/step_00000012", result.best_model.name):
        assert files_of(ours / folder) == files_of(theirs / folder)
    assert result.step == 12 and result.is_done
    assert result.best_model.name == f"best-accuracy-{result.best_metric:.4f}"
    assert result.metrics in [{n: e[n] for n in result.metrics} for e in before if e["split"] == "valid"]
    again = make(*files, folder="command").train()  # what the command began goes on in Python
    assert again.metrics == result.metrics and events(theirs) == before


def test_after_training_the_model_is_the_best_one(make):
    trainer = make(epochs=8, match_embeddings=False)  # no pair of these tests matches
    result = trainer.train()
    metrics = without_times(trainer.evaluate())
    assert metrics["accuracy"] == pytest.approx(result.best_metric) and metrics == result.metrics
    assert metrics["accuracy"] > 0.85
    found = trainer.predict([row[:2] for row in DEV])
    assert found.classes.tolist() == found.predictions.argmax(axis=1).tolist()
    assert found.label_ids is None and without_times(found.metrics) == {}
    right = np.mean(found.classes == [label for *_, label in DEV])
    assert right == pytest.approx(metrics["accuracy"])


@pytest.mark.parametrize("labels, known", [([1, 0], True), ([-1, -1], False), ([None, None], False)])
def test_labels_are_used_only_if_they_are_classes(make, labels, known):
    rows = [{"text_a": "今天", "text_b": "明天", "label": label} for label in labels]
    found = make().predict(rows)
    assert (found.label_ids is not None) == known == bool(without_times(found.metrics))
    assert found.label_ids is None or found.label_ids.tolist() == labels


def test_files_can_be_predicted_and_evaluated(files, make):
    trainer = make()
    output = trainer.predict(files[1])
    by_name, by_file, of_dev = map(
        without_times, (output.metrics, trainer.evaluate(files[1]), trainer.evaluate())
    )
    assert by_name == by_file == of_dev
    assert output.label_ids.tolist() == [label for *_, label in DEV] and output.predictions.shape == (41, 2)
    predictions, labels, metrics = output  # as in transformers
    assert predictions is output[0] is output.predictions and predictions.dtype == np.float32
    assert labels is output[1] and metrics == output.metrics
    classes = np.argmax(output.predictions, axis=-1)
    assert (classes == output.label_ids).mean() == output.metrics["accuracy"]
    assert output.labels == [str(number) for number in output.classes.tolist()]
    assert output.probabilities.argmax(axis=1).tolist() == classes.tolist() == output.classes.tolist()
    again = pickle.loads(pickle.dumps(output))  # as a notebook hands it on
    assert again.predictions.tobytes() == predictions.tobytes() and again.labels == output.labels


def agreement(prediction):
    logits, labels = prediction
    assert prediction.predictions is logits and prediction.label_ids is labels
    return {"agreement": np.mean(logits.argmax(axis=1) == labels), "mcc": 7}


def test_custom_metrics_are_logged_and_select_the_best_model(tmp_path, make):
    trainer = make(own={"compute_metrics": agreement}, best_metric="agreement", max_steps=6)
    result = trainer.train()
    assert result.best_model.name.startswith("best-agreement-")
    for event in events(tmp_path / "out", "valid"):
        assert event["agreement"] == event["accuracy"] and event["mcc"] == 7
    assert result.metrics["agreement"] == result.best_metric == trainer.evaluate()["agreement"]


def test_a_custom_metric_can_be_lower_is_better(make):
    values = iter([0.5, 0.4, 0.6, 0.3, 0.2, 0.1, 0.1, 0.1])
    settings = {"best_metric": "error", "greater_is_better": False, "max_steps": 4, "eval_freq": 1}
    own = {"compute_metrics": lambda prediction: {"error": next(values)}}
    assert make(own=own, **settings).train().best_metric == 0.2


@pytest.mark.parametrize(
    "own, best_metric, reason",
    [
        (None, "kappa", "best_metric kappa is not one of loss, accuracy"),
        (lambda prediction: {"kappa": float("nan")}, "kappa", "returned kappa nan"),
        (lambda prediction: {"a": "b"}, "accuracy", "return a dictionary of numbers"),
    ],
)
def test_invalid_metrics_are_refused_before_the_first_update(tmp_path, make, own, best_metric, reason):
    with pytest.raises(InputError, match=reason):
        make(own={"compute_metrics": own}, best_metric=best_metric).train()
    assert not list(tmp_path.glob("out/checkpoints/*"))
    assert (tmp_path / "out").exists() == bool(own)


class Notes(PairCallback):
    """Records the events; requests a stop at ``stop_at``."""

    def __init__(self, stop_at=None):
        self.stop_at, self.heard = stop_at, []

    def note(self, event, state, control, *more):
        self.heard.append((event, state.global_step, *more))
        state.global_step = -1  # a copy: the run is not affected
        if self.stop_at == self.heard[-1][:2]:
            control.should_training_stop = True

    def on_log(self, args, state, control, logs=None, **kwargs):
        assert logs["loss"] > 0 and logs == state.log_history[-1]
        self.note("log", state, control)

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        assert 0 <= metrics["accuracy"] <= 1 and state.best_metric >= metrics["accuracy"]
        self.note("evaluate", state, control)

    def on_save(self, args, state, control, folder, **kwargs):
        self.note("save", state, control, folder.name, (folder / MANIFEST).is_file())

    def on_train_end(self, args, state, control, **kwargs):
        self.note("end", state, control)


@pytest.mark.parametrize("at", [("log", 3), ("evaluate", 5)])
def test_a_run_stopped_by_a_callback_resumes_unchanged(tmp_path, make, whole, at):
    notes = Notes(stop_at=at)
    trainer = make(own={"callbacks": [notes]})
    result = trainer.train()
    assert (result.step, result.is_done) == (at[1], False) and notes.heard[-1] == ("end", at[1])
    notes.stop_at = None
    assert trainer.train().is_done
    assert_same_run(tmp_path / "out", whole.folder)


def assert_same_run(ours, theirs):
    assert files_of(ours / "model_last") == files_of(theirs / "model_last") and events(ours) == events(theirs)


class Broken(PairCallback):
    """Raises an error, or sends a signal, at the second step."""

    def __init__(self, number=None):
        self.number = number

    def on_log(self, args, state, control, **kwargs):
        if state.global_step == 2:
            if self.number is None:
                raise LookupError("no such thing")
            os.kill(os.getpid(), self.number)


def test_a_callback_error_ends_the_run_and_is_raised_intact(tmp_path, make, whole):
    trainer = make(own={"callbacks": [Broken()]})
    with pytest.raises(LookupError, match="no such thing"):
        trainer.train()
    trainer.callbacks.clear()
    trainer.train()  # from the initial weights
    assert_same_run(tmp_path / "out", whole.folder)


def test_an_interrupt_saves_the_run_and_restores_the_handlers(tmp_path, make, whole):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt, match="stopped by SIGINT after step 3, saved"):
        make(own={"callbacks": [Broken(signal.SIGINT)]}).train()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert make().train().is_done
    assert_same_run(tmp_path / "out", whole.folder)


def test_a_model_in_memory_is_trained_in_place(tmp_path, whole):
    classifier, vocab_file = load_classifier(str(whole.result.best_model))
    config = PairConfig(str(tmp_path / "more"), best_metric="loss", **{**SETTINGS, "max_steps": 30})
    before = classifier.classifier.weight.numpy().copy()
    trainer = PairTrainer(classifier, config, TRAIN, DEV, vocab_file=vocab_file)
    trainer.train()
    assert trainer.model is classifier and not np.array_equal(classifier.classifier.weight.numpy(), before)
    with pytest.raises(InputError, match="give its vocab_file"):
        PairTrainer(classifier, config, TRAIN, DEV)


@pytest.mark.parametrize("pairs, reason", [
    (None, "there is no train_dataset; give it to PairTrainer"),
    (5, "train_dataset is a int; give a file, a list"),
    ([], "train_dataset: it holds no pairs"),
    (iter([]), "train_dataset: it holds no pairs; give at least one"),
    ({"train": [], "test": []}, r"train_dataset is a dictionary \(train, test\); give one of its parts"),
    ("absent.tsv", "absent.tsv: no such file"),
    ([("今", "天", 1), ("今", "天", 7)], r"train_dataset\[1\]: label 7 is not one of 0, 1"),
    ([("今", "天", 1), "今天"], r"train_dataset\[1\]: '今天' is not a pair"),
    (DataFrame([["今", "天"]], columns=["query", "query"]), "train_dataset has two columns of one name"),
])  # fmt: skip
def test_invalid_pairs_are_reported_and_nothing_is_written(tmp_path, make, pairs, reason):
    with pytest.raises(InputError, match=reason):
        make(pairs, DEV).train()
    assert not (tmp_path / "out").exists()


class EncodedPairs:
    """A custom dataset class, which can be read more than once."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def as_iterable_dataset(rows):
    return IterableDataset.from_generator(as_dicts, gen_kwargs={"rows": rows})


KINDS = {
    "list of tuples": list,
    "tuple of tuples": tuple,
    "list of lists": lambda rows: [list(row) for row in rows],
    "list of dictionaries": as_dicts,
    "iterator": iter,
    "generator": lambda rows: (row for row in rows),
    "generator of dictionaries": lambda rows: (row for row in as_dicts(rows)),
    "map": lambda rows: map(tuple, rows),
    "own class": EncodedPairs,
    "Dataset": as_dataset,
    "IterableDataset": as_iterable_dataset,
    "iterator of a Dataset": lambda rows: iter(as_dataset(rows)),
    "DataFrame": lambda rows: DataFrame(rows, columns=["query", "title", "label"]),
    "DataFrame with floats": lambda rows: DataFrame(rows, columns=["s1", "s2", "label"]).astype(
        {"label": float}
    ),
    "DataFrame without names": DataFrame,
}
STREAMED = [kind for kind in KINDS if "iterator" not in kind and "generator" not in kind and kind != "map"]


@pytest.fixture(scope="module")
def by_list(tmp_path_factory, model):
    """What a list of tuples gives: the events of a run, the metrics of DEV, its predictions."""
    folder = tmp_path_factory.mktemp("by_list")
    config = PairConfig(str(folder / "out"), **{**SETTINGS, "max_steps": 3})
    trainer = PairTrainer(model, config, TRAIN, DEV)
    trainer.train()
    metrics = without_times(trainer.evaluate(DEV))
    return events(folder / "out"), metrics, trainer.predict(DEV)


@pytest.mark.parametrize("kind", ["generator", "Dataset"])
def test_every_kind_of_dataset_gives_the_same_results(tmp_path, make, by_list, kind):
    its_events, metrics, expected = by_list
    kind = KINDS[kind]
    trainer = make(kind(TRAIN), kind(DEV), max_steps=3)
    trainer.train()
    assert events(tmp_path / "out") == its_events
    assert trainer.train().step == 3 and without_times(trainer.evaluate()) == metrics  # read again
    assert without_times(trainer.evaluate(kind(DEV))) == metrics
    found = trainer.predict(kind(DEV))
    assert without_times(found.metrics) == without_times(expected.metrics) == metrics
    for ours, theirs in zip((*found[:2], found.classes), (*expected[:2], expected.classes)):
        assert ours.tobytes() == theirs.tobytes() and ours.dtype == theirs.dtype
    texts = [row[:2] for row in DEV]
    assert trainer.predict(kind([(*row, None) for row in texts])).label_ids is None


def test_equal_pairs_have_equal_hashes():
    hashes = {GivenPairs("x", kind(TRAIN), Labels.numbered(2)).sha256() for kind in KINDS.values()}
    ends = {GivenPairs("x", KINDS[kind](TRAIN), Labels.numbered(2)).sha256_of_ends() for kind in STREAMED}
    assert len(hashes) == len(ends) == 1
    for other in ([("今", "天", 1), *TRAIN[1:]], [*TRAIN[:-1], ("今", "天", 1)]):
        assert GivenPairs("x", other, Labels.numbered(2)).sha256() not in hashes


@pytest.mark.parametrize("kind", [KINDS["own class"], as_iterable_dataset], ids=["own class", "dataset"])
def test_rereadable_data_streams_from_memory_as_from_a_file(tmp_path, make, files, kind):
    settings = {"streaming": True, "max_steps": 8, "shuffle_buffer": 32}  # into the second epoch
    make(*files, folder="file", **settings).train()
    make(kind(TRAIN), kind(DEV), **settings).train()
    assert events(tmp_path / "out") == events(tmp_path / "file")


def test_a_streamed_dataset_is_not_read_ahead(tmp_path, make):
    read = []

    class Endless:
        def __iter__(self):
            for number in count():
                read.append(number)
                yield TRAIN[number % len(TRAIN)]

    make(Endless(), DEV, streaming=True, max_steps=2, shuffle_buffer=32, bucket=False).train()
    assert len(read) < 2 * BEGINNING  # the rows that identify it, and those that were trained on


def test_windowed_predictions_give_the_same_answers(make, monkeypatch):
    trainer, waiting = make(), []
    expected = trainer.predict(DEV)
    for module in (pair_rows, trainer_module):
        monkeypatch.setattr(module, "WINDOW", 16)
    monkeypatch.setattr(in_memory_pairs, "LOOKED_AT", 16)  # rows whose keys are read before the first pair
    by_window = trainer.predict(DEV)
    logits_of = PairTrainer._logits_of

    def counted(self, pairs, symmetric):
        assert len(waiting) <= 16 and len(pairs) <= 16
        waiting.clear()
        return logits_of(self, pairs, symmetric)

    monkeypatch.setattr(PairTrainer, "_logits_of", counted)
    rows = (waiting.append(row) or row for row in DEV)
    assert trainer.predict(rows).predictions.tobytes() == by_window.predictions.tobytes()
    np.testing.assert_allclose(by_window.predictions, expected.predictions, atol=1e-6)


def test_skipped_rows_are_not_trained_on_but_keep_their_index(tmp_path, make, capfd):
    bad, places = [TRAIN[0], ("今", " ", 1), *TRAIN[1:], ("今", "天", 7), "x"], [1, 91, 92]
    with pytest.raises(InputError, match=r"train_dataset\[1\]: sentence2 is empty"):
        make(bad, DEV, max_steps=3).train()
    trainer = make(bad, DEV, max_steps=3, on_bad_row="skip")
    trainer.train()
    make(folder="good", max_steps=3).train()
    assert events(tmp_path / "out", "valid") == events(tmp_path / "good", "valid")
    assert "train_dataset: 3 of 93 rows are not pairs and are left out" in capfd.readouterr().err
    notes = [json.loads(line) for line in (tmp_path / "out" / "train.rejected.jsonl").open()]
    assert [(note["file"], note["line"]) for note in notes] == [("train_dataset", n) for n in places]
    found, expected = trainer.predict(bad), trainer.predict(TRAIN)
    assert np.flatnonzero(found.classes == -1).tolist() == places
    assert np.flatnonzero(np.isnan(found.predictions).any(axis=1)).tolist() == places
    assert np.delete(found.predictions, places, axis=0).tobytes() == expected.predictions.tobytes()
    metrics = without_times(expected.metrics)
    assert without_times(found.metrics) == metrics == without_times(trainer.evaluate(bad))


def test_the_docstring_example_runs(tmp_path, model, files, monkeypatch, capsys):
    example = textwrap.dedent(PairTrainer.__doc__.split("\n\n", 1)[1].split("``model``")[0])
    settings = 'PairConfig("output", model_type="ernie", from_scratch=True, device="cpu", max_steps=1, '
    monkeypatch.chdir(tmp_path)
    exec(example.replace('PairConfig("output", ', settings).replace("ernie-gram-zh", str(model)), {})
    metrics, predictions = capsys.readouterr().out.splitlines()
    assert (
        "'accuracy'" in metrics and "'runtime'" not in metrics and len(predictions.strip("[]").split()) == 2
    )
