"""The flags that say what a model is trained for, and what goes with neither the one nor the other.

A trained model keeps it in its config.json: whoever asks it, or trains it on, says it no more.
"""

from dataclasses import dataclass
from typing import Any, Dict, Literal, Tuple

from data_tools.base.errors import InputError
from data_tools.base.options import Options, option
from ernie_pair.model_files.labels import (
    CLASSIFICATION,
    Labels,
    Scores,
    parse_label_map,
    parse_label_range,
)
from ernie_pair.model_files.spec import ModelSpec

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
    "save_threshold": (False, "saves a threshold between two classes"),
}


@dataclass(frozen=True)
class TargetFlags(Options):
    """A part of `PairConfig`."""

    target: Literal["auto", "classification", "regression"] = option(
        "auto",
        help="regression: the label is a number, a score; auto: as the model's config.json says",
        group="model",
    )
    label_range: str = option(
        "",
        help="of regression: lowest and highest label, 0,5 for example; empty: as the model says, or any",
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
                f"--label_range {config.label_range} is of scores, and this model has classes; pass --target "
                "regression as well, or leave it out"
            )
        if config.label_map:
            return parse_label_map(config.label_map)
        return spec.labels if spec.target == CLASSIFICATION else Labels.numbered(2)
    limits = parse_label_range(config.label_range)
    if limits is None and spec.target == target:
        limits = spec.labels.label_range
    return Scores.within(limits)


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
