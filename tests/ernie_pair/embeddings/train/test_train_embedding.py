"""Training an embedding model, by command and from Python: learns, resumes, and writes a standard folder."""

import shutil

import numpy as np
import pandas as pd
import pytest
from levels import needs_bf16
from paddlenlp.datasets import IterDataset
from run_files import events, killed_after
from tiny_embedding import embedding_config, random_text, toy_matches, write_files, write_matches, write_texts

from ernie_pair import PairCallback
from ernie_pair.core.errors import InputError
from ernie_pair.embeddings.open_embedder import open_embedder
from ernie_pair.embeddings.train import embedding_trainer
from ernie_pair.embeddings.train.embedding_config import EmbeddingConfig
from ernie_pair.embeddings.train.embedding_data import read_any_texts
from ernie_pair.embeddings.train.embedding_trainer import EmbeddingTrainer
from ernie_pair.embeddings.train.train_embedding import train_embedding
from ernie_pair.inference.embedder import EmbedderOptions
from ernie_pair.kernels.encoder_layer import PackedWeights
from ernie_pair.models.embedding_json import EMBEDDING, read_embedding
from ernie_pair.models.networks.classifier import build_classifier, load_initial_weights
from ernie_pair.models.source import open_model
from ernie_pair.runtime.processes.world import World

RUN = {"epochs": 4, "eval_freq": 1000, "logging_freq": 5, "dims": "8,16", "best_metric": "mrr"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("train"))


def trainer_of(folder, output, *datasets, callbacks=(), negatives=None, **changes):
    flags = {"model_type": "ernie", "from_scratch": True, "batch_size": 16, "learning_rate": 5e-3}
    flags.update(device="cpu", max_seq_len=16, **changes)
    datasets = datasets or (str(folder / "train.tsv"), str(folder / "dev.tsv"))
    own = {"callbacks": callbacks, **({} if negatives is None else {"negatives": negatives})}
    return EmbeddingTrainer(folder / "model", EmbeddingConfig(str(output), **flags), *datasets, **own)


@pytest.fixture(scope="module")
def trained(folder):
    train_embedding(embedding_config(folder, **RUN))
    return folder / "out"


def test_training_improves_retrieval(trained):
    first, *_, last = events(trained, "valid")
    assert last["mrr"] > first["mrr"] + 0.2 and last["spearman"] > first["spearman"]


def test_a_trainer_shows_its_model_and_its_tokenizer(folder, tmp_path):
    trainer = trainer_of(folder, tmp_path / "out", max_steps=2, epochs=1)
    best = trainer.train().best_model
    assert trainer.tokenizer.vocab_file.parent == best
    assert len(trainer.tokenizer("今天" * 20)["input_ids"]) == 16
    found = trainer.model.encoder.embeddings.word_embeddings.weight.numpy()
    ours = open_model(str(best), model_type="", from_scratch=False).read_weights()
    assert np.array_equal(found, ours["ernie.embeddings.word_embeddings.weight"])


@needs_bf16
def test_weights_are_packed_once_until_the_model_is_shown(folder, tmp_path, monkeypatch):
    trainer = trainer_of(folder, tmp_path / "out", precision="bf16", eval_batch_size=2, max_steps=1)
    trainer.train()
    packed, made = [], PackedWeights.of

    def noted(self, call, epoch, parameters):
        packed.append((self, epoch))
        return made(self, call, epoch, parameters)

    monkeypatch.setattr(PackedWeights, "of", noted)
    texts = [random_text(np.random.default_rng(seed)) for seed in range(6)]
    before = trainer.embed(texts)
    assert np.array_equal(trainer.embed(texts), before)
    assert len(packed) == 2 * 3 * 2 and len(set(packed)) == 2  # calls, batches, layers
    weight = trainer.model.layers()[0].linear1.weight
    weight.set_value(weight.numpy() * 3)
    assert not np.array_equal(trainer.embed(texts), before)


def test_the_best_folder_is_a_standard_model_with_settings(trained):
    settings = read_embedding(trained / "best")
    assert (settings.dims, settings.pooling, settings.max_seq_len) == ((8, 16, 32), "mean", 16)
    from paddlenlp.transformers import AutoModel

    model = AutoModel.from_pretrained(str(trained / "best"))
    ours = open_model(str(trained / "best"), model_type="", from_scratch=False).read_weights()
    table = model.state_dict()["embeddings.word_embeddings.weight"].numpy()
    assert np.array_equal(table, ours["ernie.embeddings.word_embeddings.weight"])
    card = (trained / "best" / "README.md").read_text(encoding="utf-8")
    assert "temperature" not in card and "ernie-pair embed --model_path ." in card and "mrr" in card


def test_a_pair_classifier_can_start_from_the_best_folder(trained):
    source = open_model(str(trained / "best"), model_type="", from_scratch=False)
    classifier = build_classifier(source, seed=1, dropout=0.1)
    assert "the classifier is new" in load_initial_weights(classifier, source)


def test_a_checkpoint_computes_vectors_with_its_own_settings(trained):
    newest = open_embedder(trained / "model_last")
    assert newest.settings == open_embedder(trained).settings
    assert newest.embed(["今天"]).shape == (1, 32)


def test_a_killed_run_resumes_to_identical_weights(folder, trained):
    config = embedding_config(folder, **RUN, output_dir=str(folder / "cut"), checkpoint_steps=7)
    with killed_after(17):
        train_embedding(config)
    train_embedding(config)
    for name in ("best/model_state.pdparams", "model_last/model.safetensors"):
        assert (folder / "cut" / name).read_bytes() == (trained / name).read_bytes()


def test_resuming_with_another_temperature_is_refused(folder, trained):
    with pytest.raises(InputError, match="temperature was 0.05 and is now 0.1"):
        train_embedding(embedding_config(folder, **RUN, temperature=0.1))


def test_simcse_training_lowers_the_loss(folder, tmp_path, capfd):
    texts = write_texts(tmp_path / "texts.txt", 80)
    flags = {"objective": "simcse", "train_file": str(texts), "output_dir": str(tmp_path / "out")}
    train_embedding(embedding_config(folder, **flags, epochs=3, eval_freq=1000, logging_freq=5))
    steps = events(tmp_path / "out", "train")
    assert steps[-1]["loss"] < steps[0]["loss"] and all(0 <= event["accuracy"] <= 1 for event in steps)
    assert "texts, each its own match" in capfd.readouterr().err


def test_a_callback_is_told_after_each_micro_batch_but_the_last(folder, tmp_path):
    told = []

    class Count(PairCallback):
        def on_substep_end(self, *given, **others):
            told.append("part")

        def on_step_end(self, *given, **others):
            told.append("step")

    flags = {"max_steps": 2, "gradient_accumulation_steps": 3, "evaluation_strategy": "no"}
    trainer_of(folder, tmp_path, callbacks=[Count()], **flags).train()
    assert told == ["part", "part", "step"] * 2


def test_one_process_does_not_end_with_whoever_started_it(folder, tmp_path, monkeypatch):
    told, calls = [], embedding_trainer.call_with_signals
    spy = lambda train, is_launched: told.append(is_launched) or calls(train, is_launched)  # noqa: E731
    monkeypatch.setattr(embedding_trainer, "call_with_signals", spy)
    trainer_of(folder, tmp_path, max_steps=1, evaluation_strategy="no").train()
    assert told == [False]


def test_rows_that_simcse_skips_are_logged(folder, tmp_path, caplog):
    config = embedding_config(folder, objective="simcse", on_bad_row="skip", output_dir=str(tmp_path / "out"))
    for name, content in (("gap.txt", "我\n\n你\n"), ("pairs.tsv", "我\t你\t1\n我\n")):
        (tmp_path / name).write_text(content, encoding="utf-8")
        assert read_any_texts(config, tmp_path / name, World())[0] == ["我", "你"]
    assert "gap.txt: left out: 1 line, the first: " in caplog.text
    assert "pairs.tsv: 1 of 2 rows" in caplog.text


def test_rows_that_an_evaluation_skips_are_logged(trained, folder, tmp_path, capfd):
    config = embedding_config(folder, on_bad_row="skip", output_dir=str(tmp_path / "out"))
    trainer = EmbeddingTrainer(trained / "best", config, folder / "train.tsv")
    dev = write_matches(tmp_path / "dev.tsv", 8)
    dev.write_text(f"{dev.read_text()}我\n", encoding="utf-8")
    assert trainer.evaluate(dev)["mrr"] > 0
    assert "dev.tsv: 1 of 13 rows" in capfd.readouterr().err


def test_the_python_trainer_trains_evaluates_and_embeds(folder, tmp_path):
    rows = list(toy_matches(80, seed=0))
    negatives = [(rows[0][0], random_text(np.random.default_rng(1)))]
    datasets, flags = (iter(rows), list(toy_matches(20, seed=1))), {"best_metric": "mrr", "eval_freq": 1000}
    trainer = trainer_of(folder, tmp_path, *datasets, negatives=negatives, epochs=2, **flags)
    result = trainer.train()
    assert result.is_done and result.best_model.is_dir() and result.best_metric == result.metrics["mrr"]
    assert trainer.evaluate()["mrr"] == pytest.approx(result.metrics["mrr"], abs=1e-6)
    vectors = trainer.embed(["今天", "明天"])
    assert vectors.shape == (2, 32) and np.allclose(np.linalg.norm(vectors, axis=1), 1)
    assert trainer.train().step == result.step  # there is nothing left to do


def test_a_start_without_settings_embeds_as_it_would_be_trained(folder, trained, tmp_path):
    start = shutil.copytree(trained / "best", tmp_path / "start")
    (start / EMBEDDING).unlink()
    vectors = {}
    for pooling in ("auto", "mean", "cls", "max"):
        config = EmbeddingConfig(str(tmp_path / "out"), device="cpu", pooling=pooling, max_seq_len=8)
        vectors[pooling] = EmbeddingTrainer(start, config).embed(["今天", "明天" * 9])
        options = EmbedderOptions(pooling={"auto": "mean"}.get(pooling, pooling), max_seq_len=8)
        np.testing.assert_array_equal(
            vectors[pooling], open_embedder(start, options=options).embed(["今天", "明天" * 9])
        )
    assert not np.allclose(vectors["cls"], vectors["mean"])
    usual = EmbeddingTrainer(start, EmbeddingConfig(str(tmp_path / "out"), device="cpu")).embedder
    assert usual.max_seq_len == 64


def test_without_evaluations_the_last_model_embeds(folder, tmp_path):
    trainer = trainer_of(folder, tmp_path, max_steps=3, evaluation_strategy="no")
    assert trainer.train().best_model is None
    last = open_embedder(tmp_path / "model_last").embed(["今天", "明天"])
    np.testing.assert_array_equal(trainer.embed(["今天", "明天"]), last)


def test_texts_come_from_any_set_but_not_from_a_dictionary(folder):
    config, pairs = embedding_config(folder, objective="simcse"), [("今天", "明天"), ("我", "你")]
    table = pd.DataFrame(pairs, columns=["sentence1", "sentence2"])
    for given in (["今天", "我", "明天", "你"], pairs, table):
        given = IterDataset(iter(given)) if isinstance(given, list) else given
        assert read_any_texts(config, given, World())[0] == ["今天", "我", "明天", "你"]
    with pytest.raises(InputError, match=r"train_dataset is a dictionary \(train, dev\); give one"):
        read_any_texts(config, {"train": ["今天"], "dev": ["明天"]}, World())


SIMCSE = {"objective": "simcse"}


@pytest.mark.parametrize("rows, flags, reason", [
    ("我\t你\t1\n我\t他\t2\n", {}, "train.tsv:2: label"),
    ("我\t\t1\n", {}, "train.tsv:1"),
    ("我\t你\t1\n", {"train_file": "texts.txt"}, "pass --objective simcse to train on texts alone"),
    ("", {**SIMCSE, "train_file": "gap.txt"}, "gap.txt:2: an empty text"),
    ("", {**SIMCSE, "train_file": "one.txt"}, "has 1 text"),
    ("", {"train_file": "absent.tsv"}, "absent.tsv"),
    ("我\t你\t1\n", {"dims": "64"}, "--dims 64: the vectors of this model have 32 numbers"),
    ("", {**SIMCSE, "dropout": 0.0}, "--objective simcse compares two passes"),
    ("", {"dims": "8,x"}, "--dims 8,x contains something that is not a length"),
    ("", {"batch_size": 1}, "--batch_size 1 leaves a pair no negatives"),
    ("", {"label_map": "a,b,c"}, "does not name two classes"),
    ("", {"best_metric": "accuracy"}, "accuracy"),
    ("", {"use_amp": True, "amp_dtype": "float16"}, "needs a GPU"),
])  # fmt: skip
def test_bad_rows_and_flags_are_reported_and_nothing_is_saved(folder, tmp_path, rows, flags, reason):
    for name, text in (("train.tsv", rows), ("texts.txt", "我\n你\n"), ("gap.txt", "我\n\n你\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "one.txt").write_text("我\n", encoding="utf-8")
    train_file = str(tmp_path / flags.get("train_file", "train.tsv"))
    flags = {**flags, "train_file": train_file, "output_dir": str(tmp_path / "out")}
    with pytest.raises(InputError) as found:
        train_embedding(embedding_config(folder, **flags))
    assert reason in found.value.message and "\n" not in found.value.message
    assert not (tmp_path / "out" / "checkpoints").exists()


@pytest.mark.parametrize("strategy", ["steps", "no"])
def test_steps_without_any_negative_are_said_once(folder, tmp_path, strategy, capfd):
    """All pairs have the same first text, whose only negative is left out by a flag."""
    rows = [f"我\t{random_text(np.random.default_rng(seed))}\t1\n" for seed in range(20)]
    (tmp_path / "train.tsv").write_text("".join([*rows, "我\t天\t0\n"]), encoding="utf-8")
    flags = {"train_file": str(tmp_path / "train.tsv"), "output_dir": str(tmp_path / "out"), "max_steps": 4}
    flags.update(evaluation_strategy=strategy, hard_negatives=0, eval_freq=2, batch_size=4)
    train_embedding(embedding_config(folder, **flags))
    said = capfd.readouterr().err
    assert said.count("steps held no negative, and taught nothing") == 1
    assert ("2 of 2 steps" if strategy == "steps" else "1 of 1 steps") in said
    train_embedding(embedding_config(folder, **{**flags, "hard_negatives": 1, "output_dir": f"{tmp_path}/2"}))
    assert "held no negative" not in capfd.readouterr().err


class Noting(PairCallback):
    """Records the events, and stops the run after the evaluation at step 8."""

    def __init__(self):
        self.told, self.metrics = [], {}

    def on_train_begin(self, args, state, control, *, model, **kwargs):
        self.told.append(("begin", state.global_step, len(state.log_history)))

    def on_log(self, args, state, control, *, logs, **kwargs):
        self.told.append(("log", state.global_step, "loss" in logs))

    def on_evaluate(self, args, state, control, *, metrics, **kwargs):
        self.metrics[state.global_step] = metrics
        control.should_training_stop = state.global_step == 8

    def on_train_end(self, args, state, control, **kwargs):
        self.told.append(("end", state.global_step, state.best_model_checkpoint is not None))


def test_callbacks_receive_events_and_can_stop_the_run(folder, tmp_path):
    flags, noting = {"max_steps": 12, "eval_freq": 4, "logging_freq": 4}, Noting()
    stopped = trainer_of(folder, tmp_path / "cut", callbacks=[noting], **flags)
    ended = stopped.train()
    assert ended.step == 8 and not ended.is_done and stopped.state.global_step == 8
    assert noting.told[0] == ("begin", 0, 0) and ("log", 4, True) in noting.told
    assert ("end", 8, True) in noting.told and list(noting.metrics)[:3] == [0, 4, 8]
    whole, again = (trainer_of(folder, tmp_path / name, **flags).train() for name in ("whole", "cut"))
    assert whole.is_done and again.metrics == whole.metrics
    for name in ("model.safetensors", "optimizer.safetensors"):
        one, other = (tmp_path / of / "model_last" / name for of in ("cut", "whole"))
        assert one.read_bytes() == other.read_bytes(), name
    with pytest.raises(InputError, match="callbacks: object is not a PairCallback"):
        trainer_of(folder, tmp_path / "none", callbacks=[object()])
