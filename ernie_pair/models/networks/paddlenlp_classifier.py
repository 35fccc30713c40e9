"""A classifier of PaddleNLP that a caller has made, as a `PairClassifier` of the same parameters."""

import json
from dataclasses import replace
from typing import Optional

import paddle
from paddle import nn

from ernie_pair.models.config_json import FAMILIES
from ernie_pair.models.networks.classifier import PairClassifier
from ernie_pair.models.spec import ModelSpec, TokenizerSettings, parse_spec
from ernie_pair.runtime.paddle_patches.paddlenlp_import import transformers


def known_family(layer: nn.Layer) -> str:
    """Return the family of an object of PaddleNLP's XForSequenceClassification; empty: it is none of ours.

    A subclass is none: it may compute anything.
    """
    classes = {
        f: getattr(transformers, f"{begins}ForSequenceClassification", None) for f, begins in FAMILIES.items()
    }
    return next((family for family, kind in classes.items() if kind is type(layer)), "")


def spec_of(layer: nn.Layer, family: str, tokenizer: TokenizerSettings) -> ModelSpec:
    """Return the spec of a classifier of PaddleNLP, from the config.json that it would write."""
    config = json.loads(layer.config.to_json_string())
    sizes = {"vocab_size": layer.config.vocab_size, "num_labels": layer.config.num_labels}
    return replace(parse_spec({**config, **sizes, "model_type": family}), tokenizer=tokenizer)


def classifier_around(layer: nn.Layer, spec: ModelSpec) -> Optional[PairClassifier]:
    """Return the `PairClassifier` that has the parts of ``layer``, and so its weights, now and later.

    None where its parts are not those of such a classifier: somebody has changed them.
    """
    numbers = paddle.get_rng_state()
    model = PairClassifier(spec.family, spec)
    paddle.set_rng_state(numbers)
    parts = dict(layer.named_children())
    if not parts.keys() <= dict(model.named_children()).keys():
        return None
    for name, part in parts.items():
        setattr(model, name, part)
    ours, theirs = dict(model.named_parameters()), dict(layer.named_parameters())
    if ours.keys() != theirs.keys() or any(ours[name] is not theirs[name] for name in ours):
        return None
    return model
