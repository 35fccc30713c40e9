"""Pretraining that continues from a model of transformers: the first loss, and what comes back to it.

Skipped without torch and transformers; sh scripts/test_peer.sh creates an environment with them.
"""

import numpy as np
import paddle
import pytest
from children import command
from tiny_pretrain import CHARACTERS, SIZES, VOCAB, events, flags, write_corpus

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from data_tools.samples.masking import NO_LABEL  # noqa: E402
from ernie_pair import EvaluateMlmConfig, MaskFiller, evaluate_mlm  # noqa: E402
from ernie_pair.core.cli.cli import parse_config  # noqa: E402
from ernie_pair.models.source import open_model  # noqa: E402
from ernie_pair.models.tokenizers import read_tokenizer  # noqa: E402
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig  # noqa: E402
from ernie_pair.pretraining.convert.warm_start import with_order_head  # noqa: E402
from ernie_pair.pretraining.data import open_pretrain_data  # noqa: E402
from ernie_pair.pretraining.mlm.fill_mask import load_pretrained  # noqa: E402
from ernie_pair.pretraining.pretrain import pretrain as pretrain_here  # noqa: E402
from ernie_pair.runtime.processes.world import World  # noqa: E402

transformers.logging.set_verbosity_error()
MOST = 1e-5
# Each epsilon is far from the one that PaddleNLP's class computes with, 1e-12.
STARTS = {
    "masked": ("BertForMaskedLM", {"layer_norm_eps": 1e-3}),
    "both": ("BertForPreTraining", {}),
    "gelu_new": ("BertForMaskedLM", {"hidden_act": "gelu_new"}),
    "ernie": ("ErnieForMaskedLM", {"layer_norm_eps": 1e-3}),
    "ernie 3": ("ErnieForPreTraining", {"layer_norm_eps": 1e-5, "use_task_id": True}),
}
NO_DROPOUT = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}


@pytest.fixture(scope="module", params=STARTS)
def place(request, tmp_path_factory):
    """A folder with a model that transformers saved, start, its corpus, data, and the name of its class."""
    (kind, changes), folder = STARTS[request.param], tmp_path_factory.mktemp("pretraining")
    made = getattr(transformers, kind)
    torch.manual_seed(0)
    sizes = {**SIZES, "vocab_size": len(VOCAB), "pad_token_id": 0, "initializer_range": 0.3}
    model = made(made.config_class(**sizes, **changes)).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 0.5, 0.3)
    model.save_pretrained(folder / "start")
    (folder / "start" / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCAB), encoding="utf-8")
    source = open_model(str(folder / "start"), model_type="")
    tokenizer = read_tokenizer(source.vocab_file, source.spec).without_control_tokens()
    write_corpus(folder / "data", folder / "start", tokenizer=tokenizer)
    return folder, kind


def words_of(folder, output, **changes):
    given = {"from_scratch": "false", "max_lr": 1e-3, **NO_DROPOUT, **changes}
    return flags(folder / "start", folder / "data", folder / output, **given)


def masked_loss_there(model, batches):
    """The mean of transformers' own losses over all masked tokens of ``batches``, as collate makes them."""
    total, count = 0.0, 0
    for batch in batches:
        ids, flat = batch["input_ids"], np.full(batch["input_ids"].size, -100)
        flat[batch["masked_positions"]] = np.where(
            batch["masked_lm_labels"] == NO_LABEL, -100, batch["masked_lm_labels"]
        )
        asked = {
            "input_ids": ids,
            "token_type_ids": batch["token_type_ids"],
            "attention_mask": (ids != 0).astype(np.int64),
        }
        with torch.no_grad():
            said = model(**{name: torch.tensor(array) for name, array in asked.items()})
            logits = said.logits if "logits" in said else said.prediction_logits
            labels = torch.tensor(flat)
            total += float(
                torch.nn.functional.cross_entropy(
                    logits.reshape(len(flat), -1), labels, ignore_index=-100, reduction="sum"
                )
            )
        count += int((flat != -100).sum())
    return total / count


@pytest.mark.parametrize("graph", ["static", "dynamic"])
def test_the_first_validation_has_transformers_loss(place, graph):
    """Step 0 of a run is the untouched model; its batches are computed here again."""
    folder, kind = place
    words = words_of(folder, graph, graph=graph, max_steps=1)
    if graph == "dynamic":
        pretrain_here(parse_config(PretrainConfig, words))
    else:
        done = command("pretrain", *words)
        assert done.code == 0, done.told
    first = events(folder / graph)[0]
    source = open_model(str(folder / "start"), model_type="")
    config = with_order_head(parse_config(PretrainConfig, words_of(folder, "again", max_steps=1)), source)
    tokenizer = read_tokenizer(source.vocab_file, source.spec).without_control_tokens()
    data = open_pretrain_data(config, World(0, 1), tokenizer, source.spec)
    peer = getattr(transformers, kind).from_pretrained(folder / "start").eval()
    assert first["lm_loss"] == pytest.approx(masked_loss_there(peer, data.evaluation("valid")), abs=MOST)
    assert ("sop_loss" in first) == kind.endswith("PreTraining")


def test_the_result_comes_back_with_equal_logits(place):
    folder, kind = place
    pretrain_here(parse_config(PretrainConfig, words_of(folder, "run", graph="dynamic", max_steps=3)))
    done = command("convert", "--to", "hf", "--model_path", folder / "run", "--output_dir", folder / "hf")
    assert done.code == 0, done.told
    masked_lm = getattr(transformers, f"{kind.split('For')[0]}ForMaskedLM")
    peer, found = masked_lm.from_pretrained(folder / "hf", output_loading_info=True)
    _, of_start = masked_lm.from_pretrained(folder / "start", output_loading_info=True)
    assert {key: sorted(names) for key, names in found.items()} == {
        key: sorted(names) for key, names in of_start.items()
    }
    ids = np.random.default_rng(0).integers(4, len(VOCAB) - 1, (3, 12))
    ids[1, 8:] = 0
    with torch.no_grad():
        there = peer.eval()(torch.tensor(ids), attention_mask=torch.tensor((ids != 0).astype("int64"))).logits
    ours = load_pretrained(open_model(str(folder / "run"), model_type=""))
    with paddle.no_grad():
        here = ours(paddle.to_tensor(ids))[0].numpy()
    assert np.abs(here - there.numpy())[ids != 0].max() < MOST


def test_fill_mask_agrees_with_transformers(place):
    folder, kind = place
    text = f"{CHARACTERS[0]}[MASK]{CHARACTERS[2:5]}"
    (slot,) = MaskFiller(str(folder / "start"), "cpu").fill(text, top_k=5)
    ids = [1, VOCAB.index(CHARACTERS[0]), 3, *(VOCAB.index(c) for c in CHARACTERS[2:5]), 2]
    peer = getattr(transformers, kind).from_pretrained(folder / "start").eval()
    with torch.no_grad():
        said = peer(torch.tensor([ids]))
    logits = (said.logits if "logits" in said else said.prediction_logits)[0, 2]
    shares = torch.softmax(logits.double(), dim=-1)
    shares[[0, 1, 2, 3]] = 0  # [PAD], [CLS], [SEP] and [MASK] are never predicted
    best = torch.topk(shares, 5)
    assert [filling.ids[0] for filling in slot.fillings] == best.indices.tolist()
    assert [filling.probability for filling in slot.fillings] == pytest.approx(best.values.tolist(), rel=1e-4)


def test_evaluate_mlm_agrees_with_transformers(place, monkeypatch):
    folder, kind = place
    from ernie_pair.pretraining.mlm import evaluate_mlm as masked_loss

    batches, sums_of = [], masked_loss._sum_samples
    monkeypatch.setattr(
        masked_loss, "_sum_samples", lambda model, batch: batches.append(batch) or sums_of(model, batch)
    )
    asked = {"part": "all", "num_samples": 20, "max_seq_len": 32, "bootstrap": 5, "device": "cpu"}
    places = {"model_path": str(folder / "start"), "input_dir": str(folder / "data")}
    found = evaluate_mlm(EvaluateMlmConfig(**places, **asked, output_file=str(folder / "mlm.json")))
    peer = getattr(transformers, kind).from_pretrained(folder / "start").eval()
    assert found["lm_loss"] == pytest.approx(masked_loss_there(peer, batches), abs=MOST)
    assert ("sop_loss" in found) == kind.endswith("PreTraining")
