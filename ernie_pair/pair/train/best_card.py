"""The model card of a best model: its run, its data, its metrics on the pairs that chose it."""

from dataclasses import MISSING, asdict, fields
from typing import Dict, Optional

import numpy as np

from ernie_pair.model_files.labels import RANKING, Labels
from ernie_pair.model_files.model_card import Measured, ModelCard, changed_flags
from ernie_pair.pair.config.pair_config import PairConfig
from ernie_pair.pair.evaluation.intervals import intervals
from ernie_pair.pair.model.plain_model import PlainModel
from ernie_pair.pair.targets.bootstrap import bootstrap_intervals
from ernie_pair.pair.targets.ranking_metrics import CountedQueries
from ernie_pair.pair.targets.regression_metrics import CountedScores
from ernie_pair.pair.targets.target_metrics import OF_TARGET
from ernie_pair.pair.train.datasets import PairData
from ernie_pair.pair.train.initial_model import InitialModel
from ernie_pair.pair.train.pair_job import Evaluated

RESAMPLES = 200
# Told elsewhere in the card, or of no effect on the model.
NOT_SHOWN = (
    *("model_name_or_path", "train_file", "dev_file", "output_dir", "cache_dir", "fresh_start"),
    *("teacher", "unlabelled_file", "teacher_logits"),
)
COMMANDS = """\
ernie-pair evaluate --model_path . --input_file pairs.tsv --output_file metrics.json
ernie-pair predict --model_path . --input_file pairs.tsv --output_file predictions.tsv"""
PYTHON = """\
from ernie_pair import PairConfig, PairTrainer

trainer = PairTrainer(".", PairConfig("output", max_seq_len={length}))
answer = trainer.predict([("怎么注销信用卡", "如何注销信用卡")])
print({shown})"""
OF_A_LAYER = """\
from ernie_pair import PairConfig, PairTrainer

layer = {name}(...)  # as it was made for this run
trainer = PairTrainer(layer, PairConfig("output", max_seq_len={length}), weights=".")
answer = trainer.predict([("怎么注销信用卡", "如何注销信用卡")])
print({shown})"""
TITLES = {
    True: "{} sentence-pair classifier",
    False: "{} model that scores sentence pairs",
}
SHOWN = {True: "answer.names, answer.probabilities", False: "answer.scores"}


def card_of_best(
    config: PairConfig,
    start: InitialModel,
    data: PairData,
    kernels: str,
    step: int,
    metrics: Dict[str, float],
    evaluated: Optional[Evaluated],
) -> ModelCard:
    """Return the card of the model of ``step``, whose evaluation gave ``metrics``, computed by ``kernels``.

    ``evaluated``: the logits and labels of that evaluation; None: there are no intervals.
    """
    spec, is_layer = start.model.spec, isinstance(start.model, PlainModel)
    python = OF_A_LAYER if is_layer else PYTHON
    found = {} if evaluated is None else _intervals(evaluated, spec.labels, config.seed)
    return ModelCard(
        title=TITLES[spec.labels.has_classes].format(start.model.family),
        facts={
            "base model": start.source.name,
            "initial weights": start.beginning.removeprefix("start from ").removeprefix("the weights "),
            **start.facts,
            **_meaning_of(spec.labels),
            "tokens per pair": str(config.max_seq_len),
            "computed by": kernels,
            "chosen": f"step {step}, the best {config.best_metric} so far",
        },
        data=data.files,
        flags=changed_flags({**asdict(config), "model_type": spec.family or None}, _defaults_of(config)),
        metrics={name: Measured(value, found.get(name)) for name, value in metrics.items()},
        measured_on=f"On the dev pairs that chose the model. Intervals: bootstrap, {RESAMPLES} resamples.",
        commands="" if is_layer else COMMANDS,
        python=python.format(
            name=start.model.family, length=config.max_seq_len, shown=SHOWN[spec.labels.has_classes]
        ),
    )


def _meaning_of(labels: Labels) -> Dict[str, str]:
    """Return what the answers of the model are, in words."""
    if labels.has_classes:
        return {"classes": ", ".join(labels.names)}
    if labels.target == RANKING:
        return {"scores": "of the candidates of a query: the higher, the better"}
    limits = labels.label_range
    return {"scores": "any number" if limits is None else "from {:g} to {:g}".format(*limits)}


def _intervals(evaluated: Evaluated, labels: Labels, seed: int) -> Dict[str, list]:
    if not labels.has_classes:
        names = OF_TARGET[labels.target].names
        if labels.target == RANKING:
            assert evaluated.groups is not None  # the dev pairs are read with their queries
            queries = CountedQueries(evaluated.logits, evaluated.labels, evaluated.groups)
            return bootstrap_intervals(queries.measure, names, queries.num_queries, RESAMPLES, seed)
        scores = CountedScores(evaluated.logits, evaluated.labels, labels.label_range)
        return bootstrap_intervals(scores.measure, names, len(evaluated.labels), RESAMPLES, seed)
    return intervals(np.asarray(evaluated.logits), evaluated.labels, RESAMPLES, seed)


def _defaults_of(config: PairConfig) -> Dict[str, object]:
    """Return the defaults of the flags; those that are not shown have the value that they have."""
    defaults = {item.name: item.default for item in fields(config) if item.default is not MISSING}
    return {**defaults, **{name: getattr(config, name, None) for name in NOT_SHOWN}}
