"""The model card of a model that pretraining has exported: its corpora, its flags, its last validation."""

from dataclasses import MISSING, asdict, fields
from typing import Dict, List, Mapping

from ernie_pair.model_files.config_json import FAMILIES
from ernie_pair.model_files.model_card import DataFile, Measured, ModelCard, changed_flags
from ernie_pair.model_files.source import ModelSource
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
from ernie_pair.pretrain.convert.conversion_card import COMMANDS, PYTHON
from ernie_pair.pretrain.data import PretrainData

# Shown elsewhere in the card, or without effect on the model.
NOT_SHOWN = ("model_name_or_path", "input_dir", "output_dir", "fresh_start", "num_workers", "dry_run")


def card_of_pretrained(
    config: PretrainConfig, source: ModelSource, data: PretrainData, step: int, metrics: Mapping[str, float]
) -> ModelCard:
    """Return the card of the model of ``step``; ``metrics``: of its validation, {} without one."""
    defaults = {item.name: item.default for item in fields(config) if item.default is not MISSING}
    told_elsewhere = {name: getattr(config, name) for name in NOT_SHOWN}
    family = source.spec.family or "ernie"
    corpora, num_judged = data.corpora, config.iters_of("valid") * config.samples_per_step
    return ModelCard(
        title=f"A pretrained {FAMILIES[family]} model",
        facts={
            "base model": source.name,
            "initial weights": _initial_weights_of(config, source),
            "learned": f"{step} of {config.max_steps} steps of {config.samples_per_step} samples",
            "text": "{} documents, {} sentences, {} tokens".format(
                *(sum(sizes) for sizes in zip(*((c.num_documents, len(c), len(c.ids)) for c in corpora)))
            ),
            "tokens per sample": str(config.max_seq_len),
        },
        data=_files_of(data),
        flags=changed_flags(asdict(config), {**defaults, **told_elsewhere}),
        metrics=_measured(metrics),
        measured_on=f"On {num_judged} samples of the validation share of the documents.",
        commands=COMMANDS.format(length=source.spec.inference_length),
        python=PYTHON.format(name=FAMILIES[family]),
    )


def _initial_weights_of(config: PretrainConfig, source: ModelSource) -> str:
    if source.weights is None:
        return f"random, seed {config.seed}"
    return str(source.weights)


def _files_of(data: PretrainData) -> List[DataFile]:
    return [
        DataFile("corpus", str(corpus.prefix), corpus.fingerprint, corpus.num_documents)
        for corpus in data.corpora
    ]


def _measured(metrics: Mapping[str, float]) -> Dict[str, Measured]:
    return {name: Measured(value) for name, value in metrics.items()}
