"""The pair classifier: an encoder of PaddleNLP, one vector of its output, dropout, a linear layer.

Its parameters have the names of PaddleNLP's XForSequenceClassification, so a saved folder loads there and
theirs load here. With mean pooling, or an epsilon that PaddleNLP's class does not compute with, it is not a
PaddleNLP model: its config.json names a class that PaddleNLP does not have. Under mean pooling the encoder's
pooler is kept unchanged, frozen and unused. B batch, S sequence, D hidden, C
classes.
"""

from typing import Optional, Tuple, Type

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

from data_tools.files.errors import InputError
from ernie_pair.models.config_json import CONFIG, FAMILIES, NO_MODEL
from ernie_pair.models.labels import CLASSIFICATION, RANKING, SIGMOID
from ernie_pair.models.networks.encoder_model import EncoderModel
from ernie_pair.models.networks.encoders import (
    can_run_first_token,
    encoder_spec,
    hidden_states,
    own_head,
    own_head_class,
)
from ernie_pair.models.networks.model_class import path_of_class
from ernie_pair.models.source import ModelSource
from ernie_pair.models.spec import ModelSpec
from ernie_pair.runtime.paddle_patches.layers import init_like
from ernie_pair.runtime.processes.world import seed_of


@paddle.jit.not_to_static
def refuse_other_inputs(position_ids, attention_mask, input_ids, pad_id: int) -> None:
    """Raise InputError for positions, and for a mask that is not that of the padding of ids int64 [B, S]."""
    if position_ids is not None:
        raise InputError("position_ids: the model counts the positions itself; leave them out")
    if attention_mask is None:
        return
    is_token_BS = input_ids != pad_id
    is_same_shape = list(attention_mask.shape) == list(is_token_BS.shape)
    if not (is_same_shape and bool((attention_mask.astype("bool") == is_token_BS).all())):
        raise InputError(
            "attention_mask is not 1 on the tokens and 0 on the padding, [B, S]; the model masks its padding "
            "itself: leave it out"
        )


@paddle.jit.not_to_static
def output_with_loss(logits_BC, labels, return_dict: Optional[bool], target: str):
    """Return (loss, logits), or with ``return_dict`` PaddleNLP's object of both; without labels no loss.

    The loss is the mean cross entropy of classes [B], or the mean squared error of scores [B]. Raises
    InputError for labels of a model for ranking, whose loss is one of all candidates of a query.
    """
    from ernie_pair.runtime.paddle_patches.paddlenlp_import import import_transformers

    loss = None
    if labels is not None and target == RANKING:
        raise InputError(
            "labels: a model for ranking learns from all candidates of a query, which PairTrainer brings "
            "together; leave them out"
        )
    if labels is not None and target == CLASSIFICATION:
        loss = F.cross_entropy(logits_BC, labels.reshape([-1]).astype("int64"))
    elif labels is not None:
        loss = F.mse_loss(logits_BC.reshape([-1]), labels.reshape([-1]).astype(logits_BC.dtype))
    if not return_dict:
        return loss, logits_BC
    import_transformers()
    from paddlenlp.transformers.model_outputs import SequenceClassifierOutput

    return SequenceClassifierOutput(loss=loss, logits=logits_BC)


# Without a class in config.json PaddleNLP takes one by the name of the folder, and answers otherwise.
MEAN_CLASS = "MeanPooledPairClassifier"
EPSILON_CLASS, SIGMOID_CLASS = "OwnEpsilonPairClassifier", "SigmoidPairClassifier"


class PairClassifier(EncoderModel):
    """A sentence-pair classifier. ``spec`` describes it; a ``dropout`` other than None replaces its rates.

    ``pooling``: cls is the input of PaddleNLP's classifier of this family, the pooled output or the state of
    the first token; mean is the mean of the last hidden states over all tokens except padding. Empty: as in
    ``spec``.
    """

    def __init__(self, family: str, spec: ModelSpec, dropout: Optional[float] = None, pooling: str = ""):
        super().__init__(_classifier_spec(family, spec, dropout, pooling or spec.pooling, type(self)))
        self.pooling, self.num_classes = self.spec.pooling, self.spec.num_labels
        self.head = self.way.head if self.pooling == "cls" else "mean"
        self.dropout = nn.Dropout(_head_dropout(self.spec, self.encoder.config))
        self._add_head()
        self.reads_all_tokens = False  # somebody reads the last hidden states, by a hook
        self._centre_scores()
        self.fix_unused()

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
        """Start a new regression model in the middle of its range instead of at 0."""
        labels = self.spec.labels
        limits = labels.label_range if self.num_classes == 1 and not labels.activation else None
        bias = dict(self.named_parameters()).get(self._output_bias())
        if limits is not None and bias is not None:
            bias.set_value(np.array([sum(limits) / 2], np.float32))

    def _output_bias(self) -> str:
        """Return the name of the number that is added to a model's one output; '' for none."""
        named = (f"classifier.{name}" for name, p in self.classifier.named_parameters() if p.shape == [1])
        return next((name for name in named if name.endswith("bias")), "")

    def is_unused(self, name: str) -> bool:
        """Return whether no logit, or no order of candidates, depends on the parameter of this name.

        A constant added to all scores of a query has a gradient of pure rounding, which AdamW would amplify.
        """
        if self.spec.target == RANKING and name == self._output_bias():
            return True
        return super().is_unused(name)

    def unused_parts(self) -> Tuple[str, ...]:
        """Return the name prefixes of the encoder's parameters that no logit depends on."""
        return self.way.idle + (("pooler.",) if self.pooling == "mean" else ())

    def forward(
        self,
        input_ids,
        token_type_ids=None,
        position_ids=None,
        attention_mask=None,
        labels=None,
        return_dict=None,
    ):
        """Return the logits, float32 [B, C], of ids and token types, int64 [B, S]; padding ids are masked.

        A published reranker returns its scores, the sigmoid of its one logit. Without ``token_type_ids`` all
        are 0. With ``labels``, classes [B] or [B, 1], or scores of a model for regression, return (loss,
        logits) as PaddleNLP's classifiers do, and with ``return_dict`` their SequenceClassifierOutput.
        Raises InputError for ``position_ids``, for an ``attention_mask`` [B, S] that is not 1 on the tokens
        and 0 on the padding, and for ``labels`` of a model for ranking.
        """
        if position_ids is not None or attention_mask is not None:
            refuse_other_inputs(position_ids, attention_mask, input_ids, self.pad_id)
        token_type_ids = paddle.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        last = self.layers()[-1] if self.reads_first_token else None
        states_BSD, pooled_BD = hidden_states(
            self.family, self.encoder, input_ids, token_type_ids, self.pad_id, last
        )
        if self.head == "own":
            logits_BC = self.classifier(states_BSD)
        else:
            logits_BC = self.classifier(self.dropout(self._pooled(states_BSD, pooled_BD, input_ids)))
        logits_BC = F.sigmoid(logits_BC) if self.spec.labels.activation == SIGMOID else logits_BC
        is_plain = labels is None and not return_dict
        return logits_BC if is_plain else output_with_loss(logits_BC, labels, return_dict, self.spec.target)

    @property
    def reads_first_token(self) -> bool:
        """Return whether `forward` needs the last hidden states of the first token only.

        If so, the last layer is computed for that token only where possible. A subclass that reads the other
        tokens, for example in a hook, must override this; one that overrides `_pooled`, and any caller of
        ``encoder``, gets all tokens.
        """
        pools = next(kind for kind in type(self).__mro__ if "_pooled" in vars(kind))
        if self.reads_all_tokens or self.head == "mean" or pools is not PairClassifier:
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


def build_classifier(
    source: ModelSource,
    seed: int,
    dropout: float,
    pooling: str = "",
    model_class: Type[PairClassifier] = PairClassifier,
) -> PairClassifier:
    """Return a classifier of the family of ``source`` with random weights, the same for the same ``seed``.

    Raises InputError if ``source`` does not describe a valid model, and what a user's ``model_class`` raises.
    """
    family = source.spec.family
    paddle.seed(seed_of(seed))
    try:
        return model_class(family, source.spec, dropout, pooling)
    except NO_MODEL as error:
        if model_class is not PairClassifier:
            raise
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{source.name}: {CONFIG} describes no valid {family} model ({reason}); correct it"
        ) from None


def _classifier_spec(
    family: str, spec: ModelSpec, dropout: Optional[float], pooling: str, model_class: type
) -> ModelSpec:
    """Return the spec of the classifier built from ``spec``, as written to its config.json."""
    settings = spec.to_config(
        model_type=family,
        num_labels=spec.num_labels,
        architectures=[f"{FAMILIES[family]}ForSequenceClassification"],
    )
    if spec.own_epsilon is not None:
        settings["architectures"] = [EPSILON_CLASS]
    if spec.labels.activation == SIGMOID:
        settings["architectures"] = [SIGMOID_CLASS]
    if pooling == "mean":
        settings["architectures"] = [MEAN_CLASS]
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
