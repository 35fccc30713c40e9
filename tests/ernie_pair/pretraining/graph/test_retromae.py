"""RetroMAE: its losses beside numpy, resumed runs, fused kernels, and who takes the encoder afterwards."""

import numpy as np
import paddle
import pytest
from children import command
from pretrain_runs import NO_DROPOUT, STATE, arrays, assert_close, assert_same_files, cut_after, run
from reference_loss import cross_entropies
from safetensors.numpy import load_file
from scipy.special import erf, softmax
from tiny_embedding import toy_matches
from tiny_pretrain import SIZES, events, flags, has_bf16, needs_kernels, opened, write_corpus, write_model

from ernie_pair import MaskFiller
from ernie_pair.core.errors import InputError
from ernie_pair.models.source import open_model
from ernie_pair.pretraining.graph.model import build_padded, ernie_config, run_ernie, sum_losses
from ernie_pair.pretraining.mlm.fill_mask import load_pretrained

PART = "cls.retromae."
RETRO = {"decoder_masked_prob": 0.5, "masked_lm_prob": 0.3}
MERGED = {**RETRO, "global_batch_size": 8, "decay_steps": 6}


@pytest.fixture(scope="module")
def world(module_path):
    model = write_model(module_path / "model", hidden_act="relu")
    write_model(module_path / "gram", model_type="ernie_gram")
    write_model(module_path / "bert", model_type="bert")
    write_corpus(module_path / "a", model)
    return module_path


def pretrain(world, output, model="model", **changes):
    run(flags(world / model, world / "a", world / output, **changes), "dynamic")
    return world / output


@pytest.fixture(scope="module")
def whole(world):
    return pretrain(world, "whole", **MERGED)


def norm(states, weights, name):
    states = states - states.mean(-1, keepdims=True)
    states = states / np.sqrt(states.var(-1, keepdims=True) + (1e-5 if "layer.norm" in name else 1e-12))
    return states * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(states, weights, name):
    return states @ weights[f"{name}.weight"] + weights[f"{name}.bias"]


def gelu(values):
    return values * 0.5 * (1 + erf(values / np.sqrt(2)))


def decoder_losses(weights, first, tokens, mask):
    """The losses [S] of all tokens of one text, by loops over positions and heads, in float64.

    ``first``: the state [D] of [CLS]; ``tokens``: [S]; ``mask``: bool [S, S].
    """
    words, places = (weights[f"ernie.embeddings.{k}_embeddings.weight"] for k in ("word", "position"))
    inputs = "ernie.embeddings.layer_norm"
    context = norm(words[tokens] + places[: len(tokens)], weights, inputs)
    context[0] = first
    queries = norm(first + places[: len(tokens)], weights, inputs)
    layer, heads = f"{PART}layer", SIZES["num_attention_heads"]
    asked, keys, values = (
        linear(of, weights, f"{layer}.self_attn.{name}_proj").reshape(len(tokens), heads, -1)
        for of, name in ((queries, "q"), (context, "k"), (context, "v"))
    )
    found = np.zeros_like(queries)
    for row in range(len(tokens)):
        seen = np.flatnonzero(mask[row])
        scores = np.einsum("hd,khd->hk", asked[row], keys[seen]) / np.sqrt(asked.shape[-1])
        found[row] = np.einsum("hk,khd->hd", softmax(scores, axis=-1), values[seen]).ravel()
    states = norm(queries + linear(found, weights, f"{layer}.self_attn.out_proj"), weights, f"{layer}.norm1")
    inner = linear(gelu(linear(states, weights, f"{layer}.linear1")), weights, f"{layer}.linear2")
    states = norm(states + inner, weights, f"{layer}.norm2")
    states = np.maximum(linear(states, weights, "cls.predictions.transform"), 0)
    states = norm(states, weights, "cls.predictions.layer_norm")
    return cross_entropies(states @ words.T + weights["cls.predictions.decoder_bias"], tokens)


def test_losses_match_a_numpy_reference(world):
    """Of a validation, to 1e-5: the decoder written out by hand, behind PaddleNLP's encoder."""
    start = pretrain(world, "start", max_steps=1, kernels="plain", **RETRO, **NO_DROPOUT)
    weights = {name: array.astype(np.float64) for name, array in arrays(start).items()}
    model = load_pretrained(open_model(str(start / "model_last"), model_type="", from_scratch=False))
    sums, count, data = np.zeros(2), np.zeros(2), opened(world, binary_head="false", **RETRO)
    for batch in data.evaluation("valid"):
        ids, labels = batch["input_ids"], batch["decoder_labels"]
        states = model.ernie(*map(paddle.to_tensor, (ids, batch["token_type_ids"])))[0].numpy()
        masked = states.astype(np.float64).reshape(-1, states.shape[-1])[batch["masked_positions"]]
        masked = np.maximum(linear(masked, weights, "cls.predictions.transform"), 0)
        masked = norm(masked, weights, "cls.predictions.layer_norm")
        logits = masked @ weights["ernie.embeddings.word_embeddings.weight"].T
        is_masked = batch["masked_lm_labels"] >= 0
        logits = (logits + weights["cls.predictions.decoder_bias"])[is_masked]
        sums[0] += cross_entropies(logits, batch["masked_lm_labels"][is_masked]).sum()
        count[0] += is_masked.sum()
        for row, length in enumerate((ids != 0).sum(axis=1)):
            tokens = np.where(labels[row, :length] < 0, ids[row, :length], labels[row, :length])
            losses = decoder_losses(weights, states[row, 0], tokens, batch["decoder_mask"][row])
            sums[1] += losses[1:-1].sum()  # not of [CLS] and [SEP]
            count[1] += length - 2
            assert (labels[row] >= 0).sum() == length - 2
    found = [event for event in events(start) if event["split"] == "valid"][-1]
    lm_loss, decoder_loss = sums / count
    expected = {"lm_loss": lm_loss, "decoder_loss": decoder_loss, "loss": lm_loss + decoder_loss}
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert "sop_loss" not in found


@pytest.mark.parametrize("kernels", ["plain", pytest.param("fused", marks=needs_kernels)])
def test_resuming_is_bit_identical(world, whole, kernels):
    """With dropout in the encoder and in the decoder, and two micro-batches a step."""
    settings = {**MERGED, "kernels": kernels, "use_recompute": "true"}
    if kernels == "fused" and has_bf16():
        settings["precision"] = "bf16"
    run_whole = pretrain(world, f"whole {kernels}", **settings)
    cut_after(run_whole, world / f"cut {kernels}", 2)
    cut = pretrain(world, f"cut {kernels}", **settings)
    assert_same_files(run_whole, cut)
    assert events(cut) == events(run_whole)
    assert f"{PART}layer.linear1.weight/moment1_0" in arrays(cut, STATE)


@pytest.mark.parametrize("model", ["model", "gram", "bert"])
def test_passes_and_kernels_change_nothing(world, model):
    """One pass a step or two, fused kernels or plain ones, in every family."""
    alike = {**RETRO, **NO_DROPOUT, "adam_epsilon": 1e-6, "max_lr": 1e-3, "max_steps": 3}
    ways = {"one": {"micro_batch_size": 8, "kernels": "plain"}, "two": {"global_batch_size": 8}}
    one, two = (pretrain(world, f"{model} {name}", model, **alike, **way) for name, way in ways.items())
    assert_close(one, two)
    for first, second in zip(events(one), events(two)):
        assert second["decoder_loss"] == pytest.approx(first["decoder_loss"], rel=1e-5)


@pytest.mark.parametrize("model", ["model", "gram", "bert"])
def test_the_decoder_alone_teaches_every_encoder_layer(world, model):
    source = open_model(str(world / model), model_type="", from_scratch=True)
    network = build_padded(ernie_config(source.spec, has_decoder=True, **NO_DROPOUT))
    batch = next(opened(world, binary_head="false", **RETRO).evaluation("valid"))
    feeds = {name: paddle.to_tensor(array) for name, array in batch.items()}
    sum_losses(run_ernie(network, feeds), feeds).decoder_loss.backward()
    for name, parameter in network.named_parameters():
        if ".encoder.layers." in name and "k_proj.bias" not in name or name.startswith(f"{PART}layer.linear"):
            assert np.abs(parameter.grad.numpy()).max() > 1e-7, name


def test_the_encoder_is_taken_everywhere_without_the_decoder(world, tmp_path):
    out = pretrain(world, tmp_path / "out", save_steps=6, **RETRO)
    assert any(name.startswith(PART) for name in arrays(out))
    exported = paddle.load(str(out / "model_6" / "model_state.pdparams"))
    assert not any("retromae" in name for name in exported)
    rows = "".join("\t".join(map(str, row)) + "\n" for row in toy_matches(30, seed=0))
    (tmp_path / "pairs.tsv").write_text(rows, encoding="utf-8")
    (tmp_path / "texts.txt").write_text("天地玄黄\n宇宙\n", encoding="utf-8")
    for place, name in enumerate((out, out / "model_6")):
        (slot,) = MaskFiller(str(name), "cpu").fill("天地[MASK]黄")
        assert len(slot.fillings) == 5
        made = tmp_path / str(place)
        words = {"model_name_or_path": name, "output_dir": made / "encoder", "max_steps": 1, "batch_size": 8}
        words["max_seq_len"] = 16
        words.update(train_file=tmp_path / "pairs.tsv", dev_file=tmp_path / "pairs.tsv", device="cpu")
        texts = tmp_path / "texts.txt"
        for line in (
            ("train-embedding", *(word for key, value in words.items() for word in (f"--{key}", value))),
            ("embed", "--model_path", made / "encoder", "--input_file", texts, "--output_dir", made / "v"),
            ("convert", "--to", "hf", "--model_path", name, "--output_dir", made / "hf"),
        ):
            done = command(*line)
            assert done.code == 0, done.told
        assert not any("retromae" in name for name in load_file(made / "hf" / "model.safetensors"))
    done = command("convert", "--static_model_path", out / "model_last", "--output_dir", tmp_path / "dynamic")
    assert done.code == 0 and f"holds {PART}*: RetroMAE's decoder" in done.told


def test_a_start_without_a_decoder_and_one_with(world, whole, capsys):
    """From a model of masked tokens the decoder starts random; the next run with it goes on with it."""
    pretrain(world, "plain start", max_steps=1, graph="dynamic")
    settings = {**RETRO, "from_scratch": "false", "max_steps": 1}
    pretrain(world, "new", "plain start/model_last", **settings)
    assert f"start random: {PART}layer." in capsys.readouterr().err
    pretrain(world, "more", "whole/model_last", **{**settings, "max_lr": 1e-9, "min_lr": 0})
    told = capsys.readouterr().err
    assert "start random" not in told and "sentence order: not learned (--decoder_masked_prob)" in told
    name = f"{PART}layer.linear1.weight"
    np.testing.assert_allclose(arrays(world / "more")[name], arrays(whole)[name], atol=1e-6)
    pretrain(world, "without", "whole/model_last", from_scratch="false", max_steps=1, graph="dynamic")
    assert "not used here and ignored" in capsys.readouterr().err
    assert name not in arrays(world / "without")


def test_another_share_of_the_decoder_is_another_run(world, whole):
    with pytest.raises(InputError, match="decoder_masked_prob was 0.5 and is now 0.7"):
        pretrain(world, "whole", **{**MERGED, "decoder_masked_prob": 0.7})
