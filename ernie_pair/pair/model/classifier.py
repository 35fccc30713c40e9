"""The pair classifier: an encoder of PaddleNLP, one vector of its output, dropout, a linear layer.

Its parameters have the names of PaddleNLP's XForSequenceClassification, so a saved folder loads there and
theirs load here. Pooled by mean it is no model of PaddleNLP's: its config.json names a class that PaddleNLP
has not, and the encoder's pooler is kept as it came, frozen and unused. B batch, S sequence, D hidden, C
classes.
"""

import json
from pathlib import Path
from typing import Dict, List, Optional, Tuple, Type

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

from data_tools.base.errors import InputError
from ernie_pair.device.paddle_patches.paddlenlp_models import init_like
from ernie_pair.kernels.model_state import ModelState
from ernie_pair.model_files.config_checks import NO_MODEL
from ernie_pair.model_files.config_json import CONFIG, FAMILIES
from ernie_pair.model_files.hugging_face.folder import ModelParts, write_their_folder
from ernie_pair.model_files.hugging_face.settings import refuse_other_model
from ernie_pair.model_files.labels import RANKING
from ernie_pair.model_files.source import (
    VOCAB,
    ModelSource,
)
from ernie_pair.model_files.spec import ModelSpec
from ernie_pair.model_files.tokenizer_json import TOKENIZER, tokenizer_json
from ernie_pair.pair.model.encoders import (
    ENCODERS,
    encoder_spec,
    hidden_states,
    new_encoder,
    own_head,
    own_head_class,
)
from ernie_pair.pair.model.first_token import can_run_first_token
from ernie_pair.pair.model.model_class import path_of_class
from ernie_pair.processes.world import seed_of
from ernie_pair.weights.half_tensors import set_weight, widen_tensors
from ernie_pair.weights.weight_files import Arrays

MODEL_STATE, THEIRS = "model_state.pdparams", "hugging_face"
# Without a class in config.json PaddleNLP takes one by the name of the folder, and answers otherwise.
MEAN_CLASS = "MeanPooledPairClassifier"


class PairClassifier(nn.Layer):
    """A sentence-pair classifier. ``spec`` describes it; a number in ``dropout`` replaces its rates.

    ``pooling``: cls is what PaddleNLP's classifier of this family takes, the pooled output or the state of
    the first token; mean is the mean of the last hidden states over what is no padding. Empty: as ``spec``
    says.
    """

    def __init__(self, family: str, spec: ModelSpec, dropout: Optional[float] = None, pooling: str = ""):
        super().__init__()
        self.family, self.way = family, ENCODERS[family]
        self.spec = _classifier_spec(family, spec, dropout, pooling or spec.pooling, type(self))
        self.pooling = self.spec.pooling
        self.num_classes, self.pad_id = self.spec.num_labels, self.spec.pad_id
        self.head = self.way.head if self.pooling == "cls" else "mean"
        self.attribute = self.way.attribute or family
        self.add_sublayer(self.attribute, new_encoder(self.spec))
        self.dropout = nn.Dropout(_head_dropout(self.spec, self.encoder.config))
        self._add_head()
        self._centre_scores()
        for name, parameter in self.named_parameters():
            parameter.stop_gradient = self.is_unused(name)
        self.frozen_modules: List[nn.Layer] = []  # what stays in evaluation mode
        self.fused_state: Optional[ModelState] = None  # of the fused kernels, where they compute the encoder

    @property
    def encoder(self):
        """Return the encoder, a model of PaddleNLP."""
        return getattr(self, self.attribute)

    def _add_head(self) -> None:
        made_of = self.encoder.config
        if self.head in ("pooled", "relu", "mean"):
            self.classifier = nn.Linear(
                made_of.hidden_size,
                self.num_classes,
                weight_attr=nn.initializer.Normal(std=getattr(made_of, "initializer_range", 0.02)),
                bias_attr=nn.initializer.Constant(0.0),
            )
            return
        if self.head == "dense":
            self.pre_classifier = nn.Linear(made_of.hidden_size, made_of.hidden_size)
            init_like(self.encoder, self.pre_classifier)
        is_own = self.head == "own"
        linear = (
            own_head(self.family, self.encoder)
            if is_own
            else nn.Linear(made_of.hidden_size, self.num_classes)
        )
        init_like(self.encoder, linear)
        self.classifier = linear

    def _centre_scores(self) -> None:
        """Let a new model for regression begin in the middle of its range, rather than at 0."""
        limits = self.spec.labels.label_range if self.num_classes == 1 else None
        bias = dict(self.named_parameters()).get(self._output_bias())
        if limits is not None and bias is not None:
            bias.set_value(np.array([sum(limits) / 2], np.float32))

    def _output_bias(self) -> str:
        """Return the name of the number that is added to a model's one output; '' for none."""
        named = (f"classifier.{name}" for name, p in self.classifier.named_parameters() if p.shape == [1])
        return next((name for name in named if name.endswith("bias")), "")

    def head_names(self) -> Tuple[str, ...]:
        """Return the names of the parameters beside the encoder: the head, and what a subclass adds."""
        names = (name for name, _ in self.named_parameters())
        return tuple(name for name in names if not name.startswith(f"{self.attribute}."))

    def is_unused(self, name: str) -> bool:
        """Return whether the parameter of this name is unused: no logit, or no order, depends on it.

        What is added to all scores of a query has a gradient of rounding alone, which AdamW would enlarge.
        """
        if self.spec.target == RANKING and name == self._output_bias():
            return True
        unused = self.way.idle + (("pooler.",) if self.pooling == "mean" else ())
        return name.startswith(tuple(f"{self.attribute}.{part}" for part in unused))

    def forward(self, input_ids, token_type_ids):
        """Return the logits [B, C] of ids and token types int64 [B, S]. Padding is masked by its id."""
        last = self.layers()[-1] if self.reads_first_token else None
        states_BSD, pooled_BD = hidden_states(
            self.family, self.encoder, input_ids, token_type_ids, self.pad_id, last
        )
        if self.head == "own":
            return self.classifier(states_BSD)
        return self.classifier(self.dropout(self._pooled(states_BSD, pooled_BD, input_ids)))

    @property
    def reads_first_token(self) -> bool:
        """Return whether `forward` needs the last hidden states of the first token alone.

        The last layer then runs for that token only, where it can. A subclass that reads the others, by a
        hook for example, overrides this; one that overrides `_pooled` gets all of them, and so does whoever
        calls ``encoder``.
        """
        pools = next(kind for kind in type(self).__mro__ if "_pooled" in vars(kind))
        if self.head == "mean" or pools is not PairClassifier:
            return False
        if self.head == "own" and type(self.classifier) is not own_head_class(self.family, self.encoder):
            return False
        return can_run_first_token(self.layers()[-1])

    def _pooled(self, states_BSD, pooled_BD, input_ids):
        if self.head == "mean":
            is_text_BS1 = (input_ids != self.pad_id).astype(states_BSD.dtype).unsqueeze(-1)
            return (states_BSD * is_text_BS1).sum(axis=1) / is_text_BS1.sum(axis=1)
        if self.head == "first":
            return states_BSD[:, 0]
        if self.head == "dense":
            return F.relu(self.pre_classifier(states_BSD[:, 0]))
        return F.relu(pooled_BD) if self.head == "relu" else pooled_BD

    def train(self) -> None:
        """Set training mode, except for what is frozen."""
        super().train()
        for layer in self.frozen_modules:
            layer.eval()

    def layers(self) -> List[nn.Layer]:
        """Return the layers of the encoder, from the embeddings up; shared ones stand once."""
        found = self.encoder
        for name in self.way.layers.split("."):
            found = getattr(found, name)
        return list(found)

    def embeddings(self) -> List[nn.Layer]:
        """Return the parts of the encoder that make the input of its first layer."""
        return [part for name, part in self.encoder.named_children() if name not in ("encoder", "pooler")]

    def depth_of(self, name: str) -> int:
        """Return 0 for a parameter of the embeddings, 1 to L of a layer, L + 1 of the head and the pooler."""
        num_layers, prefix = len(self.layers()), f"{self.attribute}."
        inside = name[len(prefix) :]
        if not name.startswith(prefix) or inside.startswith("pooler."):
            return num_layers + 1
        if inside.startswith(f"{self.way.layers}."):
            return 1 + int(inside[len(self.way.layers) + 1 :].split(".")[0])
        is_last_norm = inside.startswith("encoder.") and "embedding" not in inside
        return num_layers if is_last_norm else 0

    def set(self, arrays: Arrays) -> None:
        """Set the parameters to the values of {parameter.name: array}; others stay as they are."""
        for parameter in self.parameters():
            if parameter.name in arrays:
                set_weight(parameter, arrays[parameter.name])

    def write(
        self, folder: Path, vocab_file: Path, max_seq_len: int = 0, save_format: str = "paddle"
    ) -> None:
        """Fill ``folder`` so that from_pretrained, and ``load_classifier``, read it.

        ``max_seq_len``: tokens per pair in training, which the tokenizer's configuration remembers.
        ``save_format``: paddle is for PaddleNLP, hf for transformers; both is for PaddleNLP with a folder
        hugging_face inside. Raises InputError for hf where transformers has no such model.
        """
        if save_format != "hf":
            self._write_own(folder, vocab_file, max_seq_len)
        if save_format != "paddle":
            theirs = folder / THEIRS if save_format == "both" else folder
            theirs.mkdir(exist_ok=True)
            spec, arrays = self.spec, widen_tensors(self.state_dict())
            parts = (self.family, spec.config, arrays, vocab_file, spec.lower_case, max_seq_len)
            write_their_folder(theirs, ModelParts(*parts, where="the model"))

    def refuse_other_than_theirs(self) -> None:
        """Raise InputError when transformers has no model that computes the same."""
        refuse_other_model(self.spec.config, self.family, "--save_format hf")

    def _write_own(self, folder: Path, vocab_file: Path, max_seq_len: int) -> None:
        # As plain arrays: tensors would carry along names that differ from process to process.
        paddle.save(widen_tensors(self.state_dict()), str(folder / MODEL_STATE))
        for name, content in self.files_beside(vocab_file, max_seq_len).items():
            (folder / name).write_bytes(content)

    def files_beside(self, vocab_file: Path, max_seq_len: int = 0) -> Dict[str, bytes]:
        """Return {name: content} of what a folder holds beside the weights; see `write`."""
        tokenizer = tokenizer_json(self.family, self.spec.lower_case, max_seq_len)
        settings = {CONFIG: self.spec.to_config(), TOKENIZER: tokenizer}
        texts = {name: json.dumps(value, indent=2, ensure_ascii=False) for name, value in settings.items()}
        encoded = {name: f"{text}\n".encode() for name, text in texts.items()}
        return {VOCAB: vocab_file.read_bytes(), **encoded}


def build_classifier(
    source: ModelSource,
    seed: int,
    dropout: float,
    pooling: str = "",
    model_class: Type[PairClassifier] = PairClassifier,
) -> PairClassifier:
    """Return a classifier of the family of ``source`` with random weights, the same for the same ``seed``.

    Raises InputError when ``source`` makes no model, and whatever a ``model_class`` of the user's own raises.
    """
    family = source.spec.family
    paddle.seed(seed_of(seed))
    try:
        return model_class(family, source.spec, dropout, pooling)
    except NO_MODEL as error:
        if model_class is not PairClassifier:
            raise
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{source.name}: {CONFIG} makes no {family} model ({reason}); correct it") from None


def _classifier_spec(
    family: str, spec: ModelSpec, dropout: Optional[float], pooling: str, model_class: type
) -> ModelSpec:
    """Return the spec of the classifier that is made of ``spec``, as its config.json is to say."""
    settings = spec.to_config(
        model_type=family,
        num_labels=spec.num_labels,
        architectures=[MEAN_CLASS if pooling == "mean" else f"{FAMILIES[family]}ForSequenceClassification"],
    )
    for key in ("num_classes", "pooling", "model_class"):
        settings.pop(key, None)
    own_class = path_of_class(model_class, PairClassifier)
    if own_class:  # which PaddleNLP has not: under another name it would load the rest, and answer otherwise
        settings.update(architectures=[model_class.__name__], model_class=own_class)
    if pooling == "mean":
        settings["pooling"] = pooling
    if dropout is not None:
        rates = ["hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"]
        rates += ["classifier_dropout_prob"] if family == "albert" else []
        settings.update(dict.fromkeys(rates, dropout))
    return encoder_spec(spec.with_config(settings))


def _head_dropout(spec: ModelSpec, made_of) -> float:
    return made_of.hidden_dropout_prob if spec.classifier_dropout is None else spec.classifier_dropout
