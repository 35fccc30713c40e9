"""The pair classifier: an encoder of PaddleNLP, a linear layer on a vector of its output; or a user's own.

    class WithMargin(PairClassifier):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.extra = nn.Linear(self.num_classes, self.num_classes)

        def forward(self, input_ids, token_type_ids):
            logits_BC = super(WithMargin, self).forward(input_ids, token_type_ids)  # export knows no super()
            return self.extra(logits_BC)

It is trained and loaded like any other, with --model_class package.module:WithMargin, and takes the
arguments of PairClassifier. Its own parameters are trained with the head, except those for which `is_unused`
returns True. A class that reads hidden states of other tokens than the first, for example in a hook, sets
`reads_first_token` to False. Its folder says `"model_class": "package.module:WithMargin"` in config.json.
This alone never runs any code: a folder may come from anywhere, and importing a module runs it. The class is
imported only if the user, by the flag or the argument, names the same class as the folder.

The parameters of PairClassifier have the names of PaddleNLP's XForSequenceClassification, so a saved folder
loads there and theirs load here. With mean pooling or the cosine of `text_cosine`, or an epsilon that
PaddleNLP's class does not compute with, it is not a PaddleNLP model: its config.json names a class that
PaddleNLP does not have. Then the encoder's pooler is kept unchanged, frozen and unused. B batch, S sequence,
D hidden, C classes.
"""

import json
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Dict, Optional, Tuple, Type, TypeVar

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

from ernie_pair.core.cli.options import import_named
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.models.families import FAMILIES
from ernie_pair.models.labels import CLASSIFICATION, RANKING, SIGMOID
from ernie_pair.models.networks.encoders import (
    EncoderModel,
    build_seeded,
    can_run_first_token,
    hidden_states,
    is_token_in,
    masked_mean,
    network_spec,
    own_head_class,
)
from ernie_pair.models.networks.match_embeddings import MatchHead, match_levels
from ernie_pair.models.networks.text_cosine import CosineHead, texts_apart
from ernie_pair.models.source import WRITE_FAMILY, ModelSource, open_model
from ernie_pair.models.spec import CONFIG, ModelSpec, TokenizerSettings, architecture_in, parse_spec
from ernie_pair.runtime.paddle_patches.layers import init_like
from ernie_pair.runtime.paddle_patches.paddlenlp_import import skipped_init, transformers
from ernie_pair.weights.parameter_names import MATCH_HEAD, fit_rows, match_parameters
from ernie_pair.weights.weight_files import Arrays, as_float32

FLAG = "--model_class"
Base = TypeVar("Base")
# Without a class in config.json PaddleNLP takes one by the name of the folder, and answers otherwise.
MEAN_CLASS, COSINE_CLASS = "MeanPooledPairClassifier", "CosinePairClassifier"
EPSILON_CLASS, SIGMOID_CLASS = "OwnEpsilonPairClassifier", "SigmoidPairClassifier"
MATCH_CLASS = "MatchPairClassifier"
HEADS = ("classifier.", "pre_classifier.", MATCH_HEAD)


def trusted_class(source: ModelSource, name: str, base: Type[Base], is_trained: bool) -> Type[Base]:
    """Return the class that makes the model of ``source``: the one that ``name`` names, imported by that.

    A folder that names none may be the start of any class, but ``is_trained`` it is a model of none. Raises
    InputError if ``name`` and the folder disagree; then nothing has been imported for the folder's sake.
    """
    own = source.spec.model_class
    if own and not name:
        raise InputError(
            f"{source.name}/{CONFIG} names the class {own}: code of somebody, which loading it would run; "
            f"pass {FLAG} {own} if you trust it"
        )
    if is_trained and name and not own:
        raise InputError(f"{source.name} is a model without a class of its own; leave {FLAG} {name} out")
    found = import_named(name, FLAG, "class") if name else base
    if not (isinstance(found, type) and issubclass(found, base)):
        raise InputError(f"{FLAG} {name} is not a subclass of {base.__name__}; derive it from that")
    path = path_of_class(found, base)  # refused here, rather than when the model is written
    if own and own not in (name, path):
        raise InputError(f"{source.name}/{CONFIG} names the class {own}, and {FLAG} {name}; pass {own}")
    return found


def path_of_class(model_class: type, base: type) -> str:
    """Return package.module:Class, '' of ``base``. Raises InputError for one inside a function or a class."""
    if model_class is base:
        return ""
    if "." in model_class.__qualname__:
        raise InputError(
            f"the class {model_class.__qualname__} cannot be found again by its name; define it at the top "
            "of a module"
        )
    return f"{model_class.__module__}:{model_class.__qualname__}"


@paddle.jit.not_to_static
def check_inputs(position_ids, attention_mask, input_ids, pad_id: int) -> None:
    """Raise InputError for positions, and for a mask that is not that of the padding of ids int64 [B, S]."""
    if position_ids is not None:
        raise InputError("position_ids: the model counts the positions itself; leave them out")
    if attention_mask is None:
        return
    is_token_BS = is_token_in(input_ids, pad_id)
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


class PairClassifier(EncoderModel):
    """A sentence-pair classifier. ``spec`` describes it; a ``dropout`` other than None replaces its rates.

    ``pooling``: cls is the input of PaddleNLP's classifier of this family, the pooled output or the state of
    the first token; mean is that of the last hidden states over all tokens but padding; cosine is that of the
    means of both texts, each read alone. Empty: ``spec``'s.
    """

    def __init__(self, family: str, spec: ModelSpec, dropout: Optional[float] = None, pooling: str = ""):
        spec = spec if spec.family == family else spec.replace(model_type=family)
        super().__init__(_classifier_spec(spec, dropout, pooling or spec.pooling, type(self)))
        self.pooling, self.num_classes = self.spec.pooling, self.spec.num_labels
        self.head = self.family_spec.head if self.pooling == "cls" else self.pooling
        rate, usual = self.spec.classifier_dropout, self.encoder.config.hidden_dropout_prob
        self.dropout = nn.Dropout(usual if rate is None else rate)
        self._add_head()
        if self.spec.has_match:  # random weights begin without a difference too
            table = self.encoder.embeddings.token_type_embeddings.weight
            rows = table.numpy()[: self.spec.token_types]
            table.set_value(fit_rows(rows, self.spec.token_types, True, self.family))
            self.match_head = MatchHead(self.spec.vocab_size, self.num_classes)
        self.reads_all_tokens = False  # somebody reads the last hidden states, by a hook
        labels, bias = self.spec.labels, dict(self.named_parameters()).get(self._output_bias())
        if self.num_classes == 1 and labels.label_range and not labels.activation and bias is not None:
            # A new regression model starts in the middle of its range instead of at 0.
            bias.set_value(np.array([sum(labels.label_range) / 2], np.float32))
        self.freeze_unused()

    def _add_head(self) -> None:
        made_of = self.encoder.config
        width = made_of.hidden_size
        if self.head == "cosine":
            self.classifier = CosineHead(self.num_classes)
            return
        if self.head in ("pooled", "mean"):
            weights = nn.initializer.Normal(std=getattr(made_of, "initializer_range", 0.02))
            zeros = nn.initializer.Constant(0.0)
            self.classifier = nn.Linear(width, self.num_classes, weight_attr=weights, bias_attr=zeros)
            return
        if self.head == "dense":
            self.pre_classifier = nn.Linear(width, width)
            init_like(self.encoder, self.pre_classifier)
        if self.head == "own":
            self.classifier = own_head_class(self.family, self.encoder)(made_of)
        else:
            self.classifier = nn.Linear(width, self.num_classes)
        init_like(self.encoder, self.classifier)

    def _output_bias(self) -> str:
        """Return the name of the number that is added to a model's one output; '' for none."""
        named = (f"classifier.{name}" for name, p in self.classifier.named_parameters() if p.shape == [1])
        return next((name for name in named if name.endswith("bias")), "")

    def is_unused(self, name: str) -> bool:
        """Return whether the parameter of this name is not trained: no logit, or no order, depends on it.

        What a token tells is counted. A constant added to all scores of a query has a gradient of pure
        rounding, which AdamW would amplify.
        """
        if self.spec.target == RANKING and name == self._output_bias():
            return True
        if name.startswith(f"{MATCH_HEAD}information"):
            return True
        return super().is_unused(name)

    def unused_parts(self) -> Tuple[str, ...]:
        """Return the name prefixes of the encoder's parameters that no logit depends on."""
        return self.family_spec.unused + (("pooler.",) if self.pooling != "cls" else ())

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
            check_inputs(position_ids, attention_mask, input_ids, self.pad_id)
        token_type_ids = paddle.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        layers = self.layers()
        last = layers[-1] if self.reads_first_token else None
        unpadded = layers if self.reads_no_padding else None
        spec, levels_BS = self.spec, None
        if self.head == "cosine":
            input_ids = texts_apart(input_ids, token_type_ids, self.pad_id)
            token_type_ids = paddle.zeros_like(input_ids)
        if spec.has_match:
            levels_BS = match_levels(input_ids, token_type_ids, spec.unmatched_ids, spec.token_types)
        states_BSD, pooled_BD = hidden_states(
            spec, self.encoder, input_ids, token_type_ids, last, unpadded, levels_BS
        )
        if self.head == "own":
            logits_BC = self.classifier(states_BSD)
        elif self.head == "cosine":
            logits_BC = self.classifier(self._pooled(states_BSD, pooled_BD, input_ids))
        else:
            logits_BC = self.classifier(self.dropout(self._pooled(states_BSD, pooled_BD, input_ids)))
        if levels_BS is not None:
            more_BC = self.match_head(input_ids, levels_BS, spec.unmatched_ids, spec.token_types)
            logits_BC = logits_BC + more_BC.astype(logits_BC.dtype)
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
        if self.reads_all_tokens or self.pooling != "cls" or not self._has_usual("_pooled"):
            return False
        if self.head == "own" and type(self.classifier) is not own_head_class(self.family, self.encoder):
            return False
        return can_run_first_token(self.layers()[-1])

    @property
    def reads_no_padding(self) -> bool:
        """Return whether `forward` reads no last hidden states of padding, so that they may be left out.

        A subclass that overrides `_pooled` or `reads_first_token` gets them.
        """
        is_usual = self._has_usual("_pooled") and self._has_usual("reads_first_token")
        return (self.pooling != "cls" and is_usual) or self.reads_first_token

    def _has_usual(self, name: str) -> bool:
        return getattr(type(self), name) is getattr(PairClassifier, name)

    def _pooled(self, states_BSD, pooled_BD, input_ids):
        if self.pooling != "cls":
            is_text_BS1 = is_token_in(input_ids, self.pad_id).astype(states_BSD.dtype).unsqueeze(-1)
            return masked_mean(states_BSD, is_text_BS1)
        if self.head == "dense":
            return F.relu(self.pre_classifier(states_BSD[:, 0]))
        return pooled_BD


def build_classifier(
    source: ModelSource,
    seed: int,
    dropout: float,
    pooling: str = "",
    model_class: Type[PairClassifier] = PairClassifier,
) -> PairClassifier:
    """Return a classifier of the family of ``source``; see `build_seeded`, whose errors it raises."""
    build = partial(model_class, source.spec.family, source.spec, dropout, pooling)
    return build_seeded(source, seed, build, is_ours=model_class is PairClassifier)


def _classifier_spec(spec: ModelSpec, dropout: Optional[float], pooling: str, model_class: type) -> ModelSpec:
    more: Dict[str, object] = {"num_labels": spec.num_labels}
    architecture = f"{FAMILIES[spec.family].class_start}ForSequenceClassification"
    if spec.own_epsilon is not None:
        architecture = EPSILON_CLASS
    if spec.labels.activation == SIGMOID:
        architecture = SIGMOID_CLASS
    if spec.has_match:
        architecture = MATCH_CLASS
    if pooling != "cls":
        architecture, more["pooling"] = COSINE_CLASS if pooling == "cosine" else MEAN_CLASS, pooling
    own_class = path_of_class(model_class, PairClassifier)
    if own_class:  # which PaddleNLP has not: under another name it would load the rest, and answer otherwise
        architecture, more["model_class"] = model_class.__name__, own_class
    rates = ("classifier_dropout", *FAMILIES[spec.family].dropouts)
    without = ("num_classes", "pooling", "model_class")
    return network_spec(spec, architecture, dropout, without=without, rates=rates, **more)


def load_initial_weights(model: PairClassifier, source: ModelSource, is_other_task: bool = False) -> str:
    """Load the weights of ``source``, if any, into ``model``, and return a description of its start.

    A file without classifier leaves the classifier as it is, and so does one whose classifier was given
    another pooling, is of another class or ``is_other_task``, for another target; the heads of pretraining
    are passed over; anything else must fit name by name. Raises CheckpointError otherwise.
    """
    if source.weights is None:
        return "start from random weights (--from_scratch true)"
    found = with_prefix(source.read_weights(), model)
    if is_other_task:  # its head has another number of outputs, or means something else by them
        found = {name: array for name, array in found.items() if not name.startswith(HEADS)}
    theirs, ours = (source.spec.pooling, source.spec.model_class), (model.pooling, model.spec.model_class)
    is_other_head = is_other_task or theirs != ours
    if is_other_head:
        found = {name: array for name, array in found.items() if not name.startswith(HEADS[:2])}
    headless = is_other_head or not any(name.startswith(HEADS[0]) for name in found)
    # The head, and the parameters of a subclass.
    outside = [name for name, _ in model.named_parameters() if not name.startswith(f"{model.attribute}.")]
    may_miss: Tuple[str, ...] = (*HEADS, *outside) if headless else ()
    may_miss += () if source.has_match_in_file else (MATCH_HEAD,)
    masked_lm = architecture_in(source.spec.config).endswith("ForMaskedLM")  # transformers' has no pooler
    if source.is_hugging_face or masked_lm:  # and no model of transformers what is idle here
        idle = tuple(f"{model.attribute}.{part}" for part in model.family_spec.unused)
        may_miss += _absent_pooler(found, model) + idle
    unused = (
        model.family_spec.pretraining_heads + (HEADS if is_other_head else ()) + unused_parts(model, source)
    )
    set_matching(model, found, source.weights, may_miss=may_miss, may_have=unused)
    passed_over = sum(name.startswith(model.family_spec.pretraining_heads) for name in found)
    new = "is new and begins with the labels" if model.head == "cosine" else "is new and random"
    notes = [f"the classifier {new}" if headless else "with its classifier"]
    notes += ["the pooler is new and random"] if _absent_pooler(found, model) else []
    if source.has_match_in_file and not model.spec.has_match:
        notes += ["its match embeddings are left out, which changes its answers"]
    notes += [f"{passed_over} weights of the pretraining heads are ignored"] if passed_over else []
    return f"start from the weights {source.weights}: {', '.join(notes)}"


def load_classifier(model_path: str, model_class: str = "") -> Tuple[PairClassifier, Path]:
    """Load a trained classifier, in evaluation mode, and return it with the path of its vocabulary.

    Every weight must be in the file. ``model_class``: the package.module:Class that the folder names, of a
    person's own; see `model_class`. Raises InputError when ``model_path`` is no folder of a model or names
    another class, CheckpointError when the weights do not fit.
    """
    source = open_model(model_path, flag="model_path", no_family=WRITE_FAMILY)
    chosen = trusted_class(source, model_class, PairClassifier, is_trained=True)
    # A class of a person's own may draw what is in no file.
    with skipped_init() if chosen is PairClassifier else nullcontext():
        model = build_classifier(source, seed=0, dropout=0.0, model_class=chosen)
    assert source.weights is not None  # a model that is not from scratch has some
    found = source.read_weights()
    if any(name.startswith(HEADS[0]) for name, _ in model.named_parameters()):  # an own class may have none
        check_has_classifier(found, source.name)
    set_matching(model, found, source.weights, may_have=unused_parts(model, source))
    model.eval()
    return model, source.vocab_file


def unused_parts(model: EncoderModel, source: ModelSource) -> Tuple[str, ...]:
    """Return what the names of weights begin with that the classes of the library of ``source`` pass over.

    A classifier of RoBERTa has no pooler, and transformers' ERNIE no task embedding without use_task_id.
    """
    parts: Tuple[str, ...] = ("pooler.",) if model.family_spec.head == "own" else ()
    if source.is_hugging_face and not source.spec.config.get("use_task_id"):
        parts += ("embeddings.task_type_embeddings.",)
    return tuple(f"{model.attribute}.{part}" for part in parts)


def check_has_classifier(found: Arrays, where: str) -> None:
    """Raise CheckpointError when the weights ``found`` are of an encoder, or an embedding model, alone."""
    if not any(name.startswith(HEADS[0]) for name in found):
        raise CheckpointError(
            f"{where} holds no classifier, only an encoder; train one with ernie-pair train"
        )


def with_prefix(found: Arrays, model: EncoderModel) -> Arrays:
    """Return ``found`` with full names: an encoder saved on its own names its weights without the family."""
    if "embeddings.word_embeddings.weight" not in found:
        return found
    whole = HEADS + model.family_spec.pretraining_heads
    return {
        name if name.startswith(whole) else f"{model.attribute}.{name}": array
        for name, array in found.items()
    }


def _absent_pooler(found: Arrays, model: PairClassifier) -> Tuple[str, ...]:
    """Return the beginning of the pooler's names where the model has one and the file has none of it."""
    pooler = f"{model.attribute}.pooler."
    has_one = any(name.startswith(pooler) for name, _ in model.named_parameters())
    return (pooler,) if has_one and not any(name.startswith(pooler) for name in found) else ()


def set_matching(
    model: EncoderModel, found: Arrays, where: Path, may_miss: tuple = (), may_have: tuple = ()
) -> None:
    """Give ``model`` the weights ``found`` in ``where``; see `match_parameters`, whose error it raises."""
    parameters = dict(model.named_parameters())
    tables = {name for name, _ in model.named_buffers()}  # of positions: the same in every model
    found = as_float32({name: array for name, array in found.items() if name not in tables}, str(where))
    model.set(match_parameters(parameters, found, str(where), may_miss=may_miss, may_have=may_have))


def find_layer_family(layer: nn.Layer) -> str:
    """Return the family of an object of PaddleNLP's XForSequenceClassification; '' of a subclass or other."""
    kind = type(layer)
    ending = "ForSequenceClassification"
    names = {one.class_start + ending: family for family, one in reversed(FAMILIES.items())}
    family = names.get(kind.__name__, "")
    return family if family and getattr(transformers, kind.__name__, None) is kind else ""


def read_layer_spec(layer: nn.Layer, family: str, tokenizer: TokenizerSettings) -> ModelSpec:
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
