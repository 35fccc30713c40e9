"""Tiny models of transformers with random weights, one of each family that is exchanged.

What imports this is skipped without torch and transformers, which sh scripts/test_peer.sh installs.
"""

import json
from pathlib import Path

import numpy as np
import paddle
import pytest
from tiny_pair import VOCAB

from ernie_pair.models.commands import (
    FromHuggingFaceConfig,
    ToHuggingFaceConfig,
    convert_from_hugging_face,
    convert_to_hugging_face,
)
from ernie_pair.models.families import get_counterpart, with_counterpart
from ernie_pair.models.networks.classifier import load_classifier
from ernie_pair.runtime.device import quiet_libraries

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
quiet_libraries()
transformers.logging.set_verbosity_error()
MOST = 1e-5
IDS = np.array([[1, 5, 6, 2, 7, 8, 2], [1, 9, 2, 4, 2, 0, 0], [1, 12, 13, 14, 2, 15, 2]])
TYPES = np.array([[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1, 1]])
IS_TEXT = IDS != 0

FAMILIES = [family for family in with_counterpart() if family != "ernie_gram"]  # which is a BERT there
SIZES = {
    "vocab_size": len(VOCAB), "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": 64, "type_vocab_size": 2, "pad_token_id": 0,
    "initializer_range": 0.5, "id2label": {0: "other", 1: "same", 2: "unsure"},
}  # fmt: skip
OF_FAMILY = {
    "electra": {"embedding_size": 12},
    "albert": {"embedding_size": 12, "hidden_act": "gelu"},
    "xlm_roberta": {"type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5},
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24},
}  # fmt: skip
OF_DISTILBERT = ("hidden_size", "num_hidden_layers", "num_attention_heads", "type_vocab_size")


def class_there(family, kind="ForSequenceClassification"):
    """The class of transformers; skips where there is none: transformers 5 has no NeZha."""
    name = f"{get_counterpart(family).class_start}{kind}"
    if not hasattr(transformers, name):
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    return getattr(transformers, name)


def their_model(family, kind="ForSequenceClassification", seed=0, **changes):
    """A model in evaluation mode whose biases and norms differ clearly from 0 and 1."""
    made = class_there(family, kind)
    settings = {**SIZES, **OF_FAMILY.get(family, {}), **changes}
    if family == "distilbert":
        settings = {key: value for key, value in settings.items() if key not in OF_DISTILBERT}
    torch.manual_seed(seed)
    model = made(made.config_class(**settings)).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 0.5, 0.3)
    return model


def save(model, folder: Path, **options) -> Path:
    model.save_pretrained(folder, **options)
    tokens, pad_id = list(VOCAB), model.config.pad_token_id
    tokens[0], tokens[pad_id] = tokens[pad_id], tokens[0]
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    if "bert" in model.config.model_type:  # as Chinese ones have it; their own class has no vocab.txt
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    return folder


def padded_as(ids, pad_id):
    """Ids that are padded with 0, for a model whose padding is ``pad_id``: the two change places."""
    return np.where(ids == 0, pad_id, np.where(ids == pad_id, 0, ids))


def ask(model, ids, types, **options):
    """What a model says of int64 [B, S] ids, padded with 0, and types; one token type is that of all."""
    is_text = torch.tensor((ids != 0).astype("int64"))
    asked = {"input_ids": torch.tensor(padded_as(ids, model.config.pad_token_id)), "attention_mask": is_text}
    if model.config.model_type != "distilbert":
        is_one = model.config.type_vocab_size == 1
        asked["token_type_ids"] = torch.tensor(types * 0 if is_one else types)
    with torch.no_grad():
        return model(**asked, **options)


def logits_there(model):
    return ask(model, IDS, TYPES).logits.numpy()


def logits_of(model):
    with paddle.no_grad():
        return model(paddle.to_tensor(padded_as(IDS, model.pad_id)), paddle.to_tensor(TYPES)).numpy()


def logits_in(folder):
    return logits_of(load_classifier(str(folder))[0])


def write_theirs(folder, out):
    convert_to_hugging_face(ToHuggingFaceConfig(str(folder), str(out)))


def write_ours(folder, out):
    convert_from_hugging_face(FromHuggingFaceConfig(str(folder), str(out)))


def load_there(folder, kind="AutoModelForSequenceClassification"):
    """A transformers model, loaded without missing or unexpected weights."""
    model, about = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
    assert not any(about.values()), about
    return model.eval()


def shapes_of(model):
    return {name: list(value.shape) for name, value in model.state_dict().items()}


def write_names(path: Path) -> None:
    names = {family: shapes_of(their_model(family)) for family in FAMILIES}
    path.write_text(json.dumps(names, indent=1) + "\n")
