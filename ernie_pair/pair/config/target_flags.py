"""The flags that select the target of a model, and the checks of what they can be combined with.

A trained model keeps it in its config.json: whoever asks it, or trains it on, says it no more.
"""

from dataclasses import dataclass
from typing import Any, Dict, Literal, Tuple

from data_tools.files.errors import InputError
from data_tools.options.options import Options, option
from ernie_pair.models.labels import (
    CLASSIFICATION,
    RANKING,
    Labels,
    parse_label_map,
    parse_label_range,
)
from ernie_pair.models.spec import ModelSpec

DEFAULTS: Dict[str, Any] = {"ranking_loss": "listwise", "margin": 1.0, "most_candidates": 16, "query": ""}
# {flag: (its value that asks for nothing, why a model without classes has no use of it)}.
OF_CLASSES: Dict[str, Tuple[Any, str]] = {
    "label_map": ("", "names classes"),
    "class_weights": ("", "weighs classes"),
    "rdrop_alpha": (0.0, "compares the probabilities of classes"),
    "threshold": (None, "decides between two classes"),
    "scores": (False, "adds the probability of each class"),
    "at_precision": (0.95, "asks for a threshold between two classes"),
    "calibrate_on": ("", "fits the temperature of probabilities"),
    "tune_on": ("", "chooses a threshold between two classes"),
    "save_temperature": (False, "saves the temperature of probabilities"),
    "robustness": ("", "counts classes that change"),
    "save_threshold": (False, "saves a threshold between two classes"),
}


@dataclass(frozen=True)
class TargetFlags(Options):
    """What a model of pairs learns."""

    target: Literal["auto", "classification", "regression", "ranking"] = option(
        "auto",
        help="regression: the label is a score; ranking: label 1 marks the candidates that answer a query; "
        "auto: as in the model's config.json",
        group="model",
    )
    ranking_loss: Literal["listwise", "margin"] = option(
        "listwise",
        help="for ranking: softmax over the candidates of a query, or a --margin between two of them",
        group="optimisation",
        resume="same",
    )
    margin: float = option(
        1.0,
        help="for --ranking_loss margin: how much higher the score of a relevant candidate must be",
        group="optimisation",
        above=0,
        resume="same",
    )
    most_candidates: int = option(
        16,
        help="for ranking: maximum candidates per query in a batch of --batch_size queries; the others take "
        "turns",
        group="optimisation",
        unit="pairs",
        at_least=2,
        resume="same",
    )
    query: str = option(
        "",
        help="for ranking: the column that identifies the query of a row; empty: the first text",
        group="data",
        resume="same",
    )
    label_range: str = option(
        "",
        help="for regression: lowest and highest label, for example 0,5; empty: as in the model, or no "
        "limits",
        group="data",
    )

    def __post_init__(self):
        super().__post_init__()
        parse_label_range(self.label_range)


def chosen_labels(config, spec: ModelSpec) -> Labels:
    """Return what the model is to learn: as the flags of ``config`` say, otherwise as ``spec`` does.

    Raises InputError for flags that contradict each other.
    """
    target = spec.target if config.target == "auto" else config.target
    if target == CLASSIFICATION:
        if config.label_range:
            raise InputError(
                f"--label_range {config.label_range} is for scores, and this model has classes; pass "
                "--target regression as well, or leave it out"
            )
        if config.label_map:
            return parse_label_map(config.label_map)
        return spec.labels if spec.target == CLASSIFICATION else Labels.numbered(2)
    if target == RANKING:
        return Labels.of_candidates()
    limits = parse_label_range(config.label_range)
    if limits is None and spec.target == target:
        return spec.labels
    return Labels.scores(limits)


def refuse_unfit_flags(config, labels: Labels) -> None:
    """Raise InputError for a flag of training that a model for ``labels`` has no use of."""
    refuse_class_flags(config, labels, "this")
    if config.symmetric != "none" and not labels.has_classes:
        raise InputError(
            f"--symmetric {config.symmetric} compares the logits of classes, and this is a model for "
            f"{labels.target}; leave it out, and score both orders when you predict"
        )
    if labels.target == RANKING:
        if config.streaming:
            raise InputError(
                "--streaming true never has all candidates of a query, and --target ranking takes them "
                "together; leave it out"
            )
        if config.label_range:
            raise InputError(f"--label_range {config.label_range} is for regression; leave it out")
        if config.ranking_loss == "listwise" and config.margin != DEFAULTS["margin"]:
            raise InputError(f"--margin {config.margin} needs --ranking_loss margin; pass that as well")
        return
    for name, usual in DEFAULTS.items():
        value = getattr(config, name)
        if value != usual:
            raise InputError(f"--{name} {value} is for --target ranking, not {labels.target}; leave it out")


def refuse_query(query: str, labels: Labels) -> None:
    """Raise InputError for a column of queries where nothing is ranked."""
    if query and labels.target != RANKING:
        raise InputError(f"--query {query} is for a ranking model, not one for {labels.target}; leave it out")


def refuse_class_flags(config, labels: Labels, where: str) -> None:
    """Raise InputError for a flag of ``config`` that a model for ``labels`` has no use of."""
    if labels.has_classes:
        return
    for name, (nothing, reason) in OF_CLASSES.items():
        value = getattr(config, name, nothing)
        if value != nothing:
            shown = str(value).lower() if isinstance(value, bool) else value
            raise InputError(
                f"--{name} {shown} {reason}, and {where} is a model for {labels.target}; leave it out"
            )
