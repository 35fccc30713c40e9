"""The model card of an exported model."""

from typing import Dict

from ernie_pair.inference.exported_model import ExportedModel
from ernie_pair.model_files.model_card import ModelCard

COMMANDS = """\
ernie-pair run --model . --input_file pairs.tsv --output_file predictions.tsv --scores true
ernie-pair serve --model . --port 8000"""
PYTHON = """\
from ernie_pair import PairPredictor

answer = PairPredictor(".").predict([("怎么注销信用卡", "如何注销信用卡")])
print(answer.labels, answer.probabilities)"""
PYTHON_OF_SCORES = """\
from ernie_pair import PairPredictor

print(PairPredictor(".").score([("怎么注销信用卡", "如何注销信用卡")]))"""


def card_of_exported(
    exported: ExportedModel, model: str, family: str, differences: Dict[str, float]
) -> ModelCard:
    """Return the card; ``differences``: {format: the largest difference from the trained model}."""
    if not exported.has_classes:
        return _card_of_scores(exported, model, family, differences)
    threshold = (
        "the likeliest class" if exported.threshold is None else f"class 1 from {exported.threshold:.4f} on"
    )
    return ModelCard(
        title=f"{family} sentence-pair classifier, exported",
        facts={
            "exported from": model,
            "classes": ", ".join(exported.labels),
            "tokens per pair": str(exported.max_seq_len),
            "temperature": f"{exported.temperature:.4g}",
            "decision": f"{threshold}, pairs scored with --symmetric {exported.symmetric}",
            "largest difference": ", ".join(f"{name} {value:.3g}" for name, value in differences.items()),
        },
        commands=COMMANDS,
        python=PYTHON,
    )


def _card_of_scores(
    exported: ExportedModel, model: str, family: str, differences: Dict[str, float]
) -> ModelCard:
    limits = exported.label_range
    return ModelCard(
        title=f"A model of the family {family} that scores sentence pairs, exported",
        facts={
            "exported from": model,
            "made for": exported.target,
            "scores": "any number" if limits is None else "from {:g} to {:g}".format(*limits),
            "tokens per pair": str(exported.max_seq_len),
            "pairs scored": f"with --symmetric {exported.symmetric}",
            "largest difference": ", ".join(f"{name} {value:.3g}" for name, value in differences.items()),
        },
        commands=COMMANDS.replace(" --scores true", ""),
        python=PYTHON_OF_SCORES,
    )
