"""The model card of converted weights."""

from pathlib import Path
from typing import Any, Dict, List

from data_tools.files.npy_stream import sha256_of_file
from ernie_pair.checkpoint.checkpoint_folder import MANIFEST, Checkpoint
from ernie_pair.checkpoint.fingerprint import flags_of
from ernie_pair.model_files.config_json import FAMILIES
from ernie_pair.model_files.model_card import DataFile, ModelCard
from ernie_pair.model_files.source import ModelSource

COMMANDS = """\
ernie-pair train --model_name_or_path . --train_file train.tsv --dev_file dev.tsv --output_dir output \\
    --max_seq_len {length}"""
PYTHON = """\
from paddlenlp.transformers import {name}Model, {name}Tokenizer

model, tokenizer = {name}Model.from_pretrained("."), {name}Tokenizer.from_pretrained(".")
model.eval()
print(model(**tokenizer("怎么开户", return_tensors="pd"))[1].shape)"""


def card_of_converted(
    source: ModelSource, weights_file: Path, differences: Dict[str, Dict[str, float]]
) -> ModelCard:
    """Return the card of a dynamic model that was made from ``weights_file``.

    If the weights are in a checkpoint, the card has the flags and the corpus that its manifest records.
    ``differences``: {output: {batch: the largest difference from the static model}}.
    """
    run = _run_of(weights_file)
    family = source.spec.family or "ernie"
    largest = {name: max(of_batches.values()) for name, of_batches in differences.items()}
    sha256 = f"{sha256_of_file(weights_file)}" if weights_file.is_file() else "see conversion.json"
    return ModelCard(
        title=f"A pretrained {FAMILIES[family]} model",
        facts={
            "converted from": str(weights_file),
            "config and vocabulary of": source.name,
            **_trained(run),
            "largest difference from it": ", ".join(f"{name} {value:.3g}" for name, value in largest.items()),
        },
        data=[DataFile("static weights", weights_file.name, sha256, None), *_corpora(run)],
        flags=_flags(run),
        commands=COMMANDS.format(length=source.spec.inference_length),
        python=PYTHON.format(name=FAMILIES[family]),
    )


def _run_of(weights_file: Path) -> Dict[str, Any]:
    """Return the manifest of the checkpoint that holds the weights, {} if none does."""
    folder = weights_file.parent
    return Checkpoint(folder).manifest if (folder / MANIFEST).is_file() else {}


def _trained(run: Dict[str, Any]) -> Dict[str, str]:
    return {"trained": f"{run['step']} steps of pretraining"} if run else {}


def _corpora(run: Dict[str, Any]) -> List[DataFile]:
    """Return the corpora, identified by their hashes: the manifest records no folder."""
    known = run.get("fingerprint", {})
    corpora = [str(value) for key, value in known.items() if flags_of(key) == ["input_dir"]]
    return [DataFile("corpus", "of the pretraining", sha256, None) for sha256 in corpora]


def _flags(run: Dict[str, Any]) -> Dict[str, object]:
    """Return the flags in the fingerprint of the run, also those with default values."""
    return {key: value for key, value in run.get("fingerprint", {}).items() if key.isidentifier()}
