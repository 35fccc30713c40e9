"""The pair classifier: an ErnieGram or ERNIE encoder, its pooled output, dropout, a linear layer.

Its parameters have the names of PaddleNLP's Ernie(Gram)ForSequenceClassification, so a saved folder
loads there and theirs load here. B batch, S sequence, D hidden, C classes.
"""

import json
import shutil
from pathlib import Path
from typing import Dict, Optional, Tuple

import paddle
from paddle import nn
from paddlenlp import transformers

from data_tools.errors import InputError
from ernie_pair.model_config import CONFIG, FAMILIES, family_of
from ernie_pair.model_folder import VOCAB, ModelSource, match_parameters, open_model, refuse_other_family
from ernie_pair.pair.labels import num_classes_of
from ernie_pair.weights import Arrays, as_float32, read_weights
from ernie_pair.world import seed_of

WEIGHTS, TOKENIZER = "model_state.pdparams", "tokenizer_config.json"
HEAD, PRETRAINING_HEADS = "classifier.", "cls."


class PairClassifier(nn.Layer):
    """``config`` is the dictionary of a config.json; a number in ``dropout`` replaces its three rates."""

    def __init__(self, family: str, config: Dict[str, object], dropout: Optional[float] = None):
        super().__init__()
        self.family, self.config = family, _settings_of(family, config, dropout)
        self.num_classes, self.pad_id = self.config["num_labels"], self.config.get("pad_token_id", 0)
        self.add_sublayer(family, _new_encoder(family, self.config))
        made_of = self.encoder.config
        self.dropout = nn.Dropout(_dropout_of_head(self.config, made_of))
        self.classifier = nn.Linear(
            made_of.hidden_size,
            self.num_classes,
            weight_attr=nn.initializer.Normal(std=made_of.initializer_range),
            bias_attr=nn.initializer.Constant(0.0),
        )

    @property
    def encoder(self):
        return getattr(self, self.family)

    def forward(self, input_ids, token_type_ids):
        """int64 [B, S] twice -> logits [B, C]. Padding is masked by its id."""
        pooled_BD = self.encoder(input_ids, token_type_ids=token_type_ids)[1]
        return self.classifier(self.dropout(pooled_BD))

    def set(self, arrays: Arrays) -> None:
        """Take the values of {parameter.name: array}."""
        for parameter in self.parameters():
            if parameter.name in arrays:
                parameter.set_value(arrays[parameter.name].astype(parameter.numpy().dtype))

    def write(self, folder: Path, vocab_file: Path) -> None:
        """Fill ``folder`` so that PaddleNLP's from_pretrained, and ``load_trained``, read it."""
        names = FAMILIES[self.family]
        tokenizer = {"tokenizer_class": f"{names}Tokenizer", "do_lower_case": True}
        # As plain arrays: tensors would carry along names that differ from process to process.
        arrays = {name: value.numpy() for name, value in self.state_dict().items()}
        paddle.save(arrays, str(folder / WEIGHTS))
        shutil.copyfile(vocab_file, folder / VOCAB)
        for name, value in ((CONFIG, self.config), (TOKENIZER, tokenizer)):
            (folder / name).write_text(
                json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
            )


def new_model(source: ModelSource, family: str, seed: int, dropout: float) -> PairClassifier:
    """Random weights, the same for the same ``seed``."""
    paddle.seed(seed_of(seed))
    try:
        return PairClassifier(family, source.config, dropout)
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{source.name}: {CONFIG} makes no {family} model ({error}); mend it") from None


def load_start(model: PairClassifier, source: ModelSource) -> str:
    """Give ``model`` the weights of ``source`` where there are any, and say what it starts from.

    A file without classifier leaves the classifier as it is; the heads of pretraining are passed
    over; anything else must fit name by name. Raises CheckpointError otherwise.
    """
    if source.weights is None:
        return "start from random weights (--from_scratch true)"
    refuse_other_family(source, model.family)
    found = _with_prefix(read_weights(source.weights), model.family)
    headless = not any(name.startswith(HEAD) for name in found)
    _set_matching(model, found, source.weights, may_miss=HEAD if headless else "", may_have=PRETRAINING_HEADS)
    passed_over = sum(name.startswith(PRETRAINING_HEADS) for name in found)
    notes = ["the classifier is new" if headless else "with its classifier"]
    notes += [f"{passed_over} weights of the pretraining heads are passed over"] if passed_over else []
    return f"start from the weights {source.weights}: {', '.join(notes)}"


def load_trained(model_path: str) -> Tuple[PairClassifier, Path]:
    """A trained classifier, ready to be asked, and its vocabulary. Every weight must be in the file."""
    if not Path(model_path).is_dir():
        raise InputError(
            f"--model_path {model_path} is not a folder; give OUT/best-accuracy-... of a training run"
        )
    source = open_model(model_path, model_type="", from_scratch=False)
    family = family_of(source.config)
    if family is None:
        raise InputError(
            f"{model_path}/{CONFIG}: neither model_type nor architectures names ernie or ernie_gram"
        )
    model = new_model(source, family, seed=0, dropout=0.0)
    _set_matching(model, read_weights(source.weights), source.weights)
    model.eval()
    return model, source.vocab_file


def _settings_of(family: str, config: Dict[str, object], dropout: Optional[float]) -> Dict[str, object]:
    settings = {key: value for key, value in config.items() if key != "num_classes"}
    settings["num_labels"] = num_classes_of(config)
    settings["architectures"] = [f"{FAMILIES[family]}ForSequenceClassification"]
    settings["model_type"] = family
    if family == "ernie_gram":
        settings.setdefault("embedding_size", settings.get("hidden_size", 768))
    if dropout is not None:
        for key in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"):
            settings[key] = dropout
    return settings


def _new_encoder(family: str, settings: Dict[str, object]):
    config_class = getattr(transformers, f"{FAMILIES[family]}Config")
    return getattr(transformers, f"{FAMILIES[family]}Model")(config_class.from_dict(settings))


def _dropout_of_head(settings: Dict[str, object], made_of) -> float:
    chosen = settings.get("classifier_dropout")
    return made_of.hidden_dropout_prob if chosen is None else chosen


def _with_prefix(found: Arrays, family: str) -> Arrays:
    """An encoder saved by itself names its weights without the family; give them their full names."""
    if "embeddings.word_embeddings.weight" not in found:
        return found
    whole = (HEAD, PRETRAINING_HEADS)
    return {name if name.startswith(whole) else f"{family}.{name}": array for name, array in found.items()}


def _set_matching(
    model: PairClassifier, found: Arrays, where: Path, may_miss: str = "", may_have: str = ""
) -> None:
    parameters = dict(model.named_parameters())
    found = as_float32(found, str(where))
    model.set(match_parameters(parameters, found, str(where), may_miss=may_miss, may_have=may_have))
