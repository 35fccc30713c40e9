"""ERNIE-Gram's objective: losses in numpy and in both graphs, resumed runs, and who ignores the head."""

import json
import math

import numpy as np
import paddle
import pytest
from children import command
from pretrain_runs import (
    NO_DROPOUT,
    STATE,
    WEIGHTS,
    arrays,
    assert_same_files,
    assert_same_losses,
    cut_after,
    run,
)
from safetensors.numpy import load_file
from tiny_pretrain import VOCAB, events, flags, opened, write_corpus, write_model

from data_tools.build_ngrams import NgramsConfig, build_ngrams
from ernie_pair import MaskFiller
from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.errors import InputError
from ernie_pair.models.source import open_model
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.pretraining.mlm.fill_mask import load_pretrained
from ernie_pair.pretraining.pretrain import pretrain as pretrain_here

HEAD = "cls.ngrams.weight"
OF_WHOLE = {"from_scratch": "false", "model": "start", "kernels": "plain", "max_lr": 1e-3, **NO_DROPOUT}
SIZES = {"ngrams.txt": "12 8", "other.txt": "10 10"}


@pytest.fixture(scope="module")
def world(module_path):
    model = write_model(module_path / "model", hidden_act="relu")
    write_corpus(module_path / "a", model)
    for name, sizes in SIZES.items():
        paths = {
            "input_path": module_path / "a",
            "vocab_file": model / "vocab.txt",
            "output_file": module_path / name,
        }
        build_ngrams(NgramsConfig(**{key: str(path) for key, path in paths.items()}, sizes=sizes))
    return module_path


def words_of(world, output, lexicon="ngrams.txt", model="model", **changes):
    settings = {"ngram_lexicon": world / lexicon, **changes} if lexicon else changes
    return flags(world / model, world / "a", world / output, **settings)


def pretrain(world, output, **changes):
    return run(words_of(world, output, **changes), changes.get("graph", "static"))


@pytest.fixture(scope="module")
def start(world):
    """A one-step run: weights with an n-gram head, with its lexicon in the same folder."""
    pretrain(world, "start", max_steps=1, graph="dynamic", **NO_DROPOUT)
    return world / "start" / "model_last"


@pytest.fixture(scope="module")
def whole(world, start):
    told = pretrain(world, "whole", **OF_WHOLE)
    assert "20 n-grams" in told and "ignored" not in told and "start random" not in told
    return world / "whole"


def expected_losses(world, start):
    """Validation losses before the first step, by hand: one softmax over tokens and n-grams together."""
    weights = load_file(start / WEIGHTS)
    model = load_pretrained(open_model(str(start), model_type="", from_scratch=False))
    data = opened(world, ngram_lexicon=world / "ngrams.txt")
    sums = {kind: np.zeros(3) for kind in ("lm", "ngram", "sop")}  # loss, hits, labels
    for batch in data.evaluation("valid"):
        fed = {name: paddle.to_tensor(batch[name]) for name in ("input_ids", "token_type_ids")}
        sequence, pooled = (output.numpy().astype(np.float64) for output in model.ernie(**fed))
        states = sequence.reshape(-1, sequence.shape[-1])[batch["masked_positions"]]
        transform = "cls.predictions.transform"
        states = np.maximum(states @ weights[f"{transform}.weight"] + weights[f"{transform}.bias"], 0)
        states -= states.mean(-1, keepdims=True)
        states /= np.sqrt(states.var(-1, keepdims=True) + 1e-12)
        norm = "cls.predictions.layer_norm"
        states = states * weights[f"{norm}.weight"] + weights[f"{norm}.bias"]
        tokens = states @ weights["ernie.embeddings.word_embeddings.weight"].T
        ngrams = states @ weights[HEAD].T + weights["cls.ngrams.bias"]
        logits = np.hstack([tokens + weights["cls.predictions.decoder_bias"], ngrams])
        order = pooled @ weights["cls.seq_relationship.weight"] + weights["cls.seq_relationship.bias"]
        ngrams = batch["ngram_labels"]
        sums["lm"] += cross_entropy(logits, batch["masked_lm_labels"])
        sums["ngram"] += cross_entropy(logits, np.where(ngrams < 0, -1, ngrams + len(VOCAB)))
        sums["sop"] += cross_entropy(order, batch["next_sentence_labels"])
    means = {f"{kind}_loss": loss / labels for kind, (loss, _, labels) in sums.items()}
    means.update({f"{kind}_accuracy": hits / labels for kind, (_, hits, labels) in sums.items()})
    masked = sums["lm"] + sums["ngram"]
    assert min(sums["lm"][2], sums["ngram"][2]) >= 5
    return {**means, "loss": masked[0] / masked[2] + means["sop_loss"]}


def cross_entropy(logits, labels):
    """Loss, hits and labels: sums over the rows with a label."""
    rows = np.flatnonzero(labels >= 0)
    logits, labels = logits[rows], labels[rows]
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return np.array(
        [-np.log(shares[np.arange(len(rows)), labels]).sum(), (logits.argmax(-1) == labels).sum(), len(rows)]
    )


def test_losses_match_a_numpy_reference(world, start, whole):
    first = events(whole)[0]
    assert (first["split"], first["step"]) == ("valid", 0)
    expected = expected_losses(world, start)
    assert {name: first[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert abs(expected["ngram_loss"] - math.log(len(VOCAB) + 20)) < 1  # nothing is learned yet


def test_losses_match_the_dynamic_graph(world, start, whole):
    """Over steps whose micro-batches differ in n-gram count, with recompute, and over the evaluations."""
    settings = {**OF_WHOLE, "global_batch_size": 8}
    pretrain(world, "static", use_recompute="true", **settings)
    pretrain(world, "dynamic", graph="dynamic", **settings)
    assert_same_losses(world / "static", world / "dynamic")
    first, last = (events(world / "static")[place]["ngram_loss"] for place in (1, -2))
    assert first != last


def test_resuming_a_run_with_ngrams_is_bit_identical(world, whole):
    cut_after(whole, world / "cut", 2)
    pretrain(world, "cut", **OF_WHOLE)
    assert_same_files(whole, world / "cut", "ngrams.txt")
    assert events(whole) == events(world / "cut")
    assert f"{HEAD}/moment1_0" in arrays(world / "cut", STATE)


@pytest.mark.parametrize("allowed", ["", "ngram_lexicon"])
def test_resuming_with_another_lexicon_is_refused(world, whole, allowed):
    changes = {**OF_WHOLE, "graph": "dynamic", "kernels": "auto", "allow_change": allowed}
    with pytest.raises(InputError, match="ngram_lexicon") as caught:
        pretrain(world, "whole", lexicon="other.txt", **changes)
    assert "another run" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("lexicon", ["other.txt", ""])
def test_an_ngram_head_of_another_lexicon_is_ignored(world, start, lexicon, capsys):
    """The n-gram count is the same: only their names show that the ids stand for other n-grams."""
    changes = {"from_scratch": "false", "model": "start", "max_steps": 1, "graph": "dynamic"}
    pretrain(world, f"with {lexicon}", lexicon=lexicon, **changes)
    told = capsys.readouterr().err
    assert "cls.ngrams.* of" in told and "belong to another n-gram lexicon" in told
    assert ("start random: cls.ngrams.bias, cls.ngrams.weight" in told) == bool(lexicon)
    assert (HEAD in arrays(world / f"with {lexicon}")) == bool(lexicon)


def test_conversion_and_export_omit_the_ngram_head(world, start, whole, tmp_path):
    """For convert, export and fill-mask."""
    done = command("convert", "--static_model_path", whole / "model_last", "--output_dir", tmp_path / "made")
    assert done.code == 0 and "holds cls.ngrams.*: the n-gram head" in done.told
    proved = json.loads((tmp_path / "made" / "conversion.json").read_text())["largest_difference"]
    assert max(proved["lm_logits"].values()) < 1e-5
    loaded = paddle.load(str(tmp_path / "made" / "model_state.pdparams"))
    assert "cls.predictions.decoder.bias" in loaded and not any("ngrams" in name for name in loaded)
    pretrain(world, tmp_path / "more", graph="dynamic", max_steps=2, save_steps=2)
    exported = paddle.load(str(tmp_path / "more" / "model_2" / "model_state.pdparams"))
    assert not any("ngrams" in name for name in exported)
    for folder in (whole, tmp_path / "more" / "model_2"):
        (slot,) = MaskFiller(str(folder), "cpu").fill("天地[MASK]黄")
        assert len(slot.fillings) == 5


def test_averaging_and_hf_conversion_omit_the_ngram_head(world, whole, tmp_path):
    kept = sorted((whole / "checkpoints").iterdir())[-1]
    for words in (
        ("convert", "--to", "hf", "--model_path", whole, "--output_dir", tmp_path / "hf"),
        ("checkpoint", "average", kept, kept, "--output_dir", tmp_path / "mean"),
    ):
        done = command(*words)
        assert done.code == 0, done.told
    theirs = load_file(tmp_path / "hf" / "model.safetensors")
    mean = paddle.load(str(tmp_path / "mean" / "model_state.pdparams"))
    for found in (theirs, mean):
        assert len(found) > 10 and not any("ngrams" in name for name in found)


def test_a_lexicon_of_another_vocabulary_is_refused(world, tmp_path):
    model = write_model(tmp_path / "model", vocab_size=len(VOCAB) + 1)
    (model / "vocab.txt").write_text("".join(f"{token}\n" for token in [*VOCAB, "新"]), encoding="utf-8")
    data = write_corpus(tmp_path / "data", model)
    words = flags(model, data, tmp_path / "out", ngram_lexicon=world / "ngrams.txt")
    with pytest.raises(InputError, match="ngrams.txt:1: it was made with another vocabulary"):
        pretrain_here(parse_config(PretrainConfig, words))
    assert not (tmp_path / "out" / "checkpoints").exists()
