"""Train a pair classifier with transformers' Trainer, and write its answers as `ernie-pair predict` does.

ernie-pair convert --to hf --model_path pretrained --output_dir for_transformers
python scripts/train_peer.py --peer_python peer/bin/python --model_path for_transformers \
    --train_file train.tsv --dev_file dev.tsv --test_file test.tsv --output_dir output/peer \
    --output_file predictions.tsv

The flags have the names, the meaning and the defaults of `ernie-pair train`; what is not a flag is also
as in this package, see `scripts/side_by_side/peer/trainer.py`.
"""

import json
import os
from collections import deque
from dataclasses import asdict, dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Any, Dict, Literal

import numpy as np
from other_libraries.client import OF_TRAINER, environment_of_peer, open_peer

from ernie_pair.core.cli.cli import run_command
from ernie_pair.core.cli.options import (
    Options,
    OverwriteFlag,
    checkpoints_option,
    data_option,
    model_option,
    optimisation_option,
    option,
    precision_option,
)
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.atomic_files import make_folder
from ernie_pair.core.files.atomic_folder import list_content
from ernie_pair.core.files.json_file import write_json
from ernie_pair.core.files.results import Results, settings_of
from ernie_pair.core.run_module import RUN_MODULE
from ernie_pair.evaluation.predict_pair import prediction_lines
from ernie_pair.models.labels import parse_label_map
from ernie_pair.pairs.config.pair_config import TrainConfig
from ernie_pair.pairs.data.pair_records import Columns
from ernie_pair.pairs.data.pair_source import PairSource
from ernie_pair.runtime.cpu import cpu_threads
from ernie_pair.runtime.processes.child_command import ChildCommand
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.runtime.processes.world import World

LABELS = parse_label_map("0=0,1=1")
PARTS = ("train", "dev", "test")
SPEC, LOG, LOGITS = "spec.json", "peer.log", "logits.npy"
FILES = ("model_path", *(f"{part}_file" for part in PARTS))
# The flags that do not affect the weights: paths.
PLACES = ("peer_python", "output_dir", "output_file", *FILES)
# Flags of `ernie-pair train`; omitted they mean the same on both sides.
SAME = ("max_seq_len", "bucket", "dropout", "epochs", "max_steps", "batch_size", "learning_rate")
SAME += ("weight_decay", "logging_freq", "seed")


@dataclass(frozen=True)
class Places(Options):
    """The files and folders."""

    peer_python: str = option(help="a Python that has torch, transformers and accelerate")
    model_path: str = model_option(help="a folder of transformers; ernie-pair convert --to hf", reads="PATH")
    train_file: str = data_option(help="labelled pairs", reads="FILE")
    dev_file: str = data_option(help="labelled pairs by which the best epoch is chosen", reads="FILE")
    test_file: str = data_option(help="pairs to predict", reads="FILE")
    output_dir: str = checkpoints_option(help="checkpoints and logs go here", writes="FOLDER")
    output_file: str = data_option(help="the probabilities of the test pairs go here", writes="FILE")


OF_TRAIN = [item for item in fields(TrainConfig) if item.name in SAME]
ALIKE = [(of.name, of.type, field(default=of.default, metadata=of.metadata)) for of in OF_TRAIN]
Same = make_dataclass("Same", ALIKE, bases=(Options,), frozen=True)


@dataclass(frozen=True)
class TrainPeerConfig(OverwriteFlag, Same, Places):
    """Train a pair classifier with transformers' Trainer on the CPU."""

    EXAMPLE = (
        "--peer_python peer/bin/python --model_path for_transformers --train_file train.tsv "
        "--dev_file dev.tsv --test_file test.tsv --output_dir output/peer --output_file predictions.tsv"
    )

    in_order: bool = data_option(
        False,
        help="train on the pairs in the order of the file, as train does with --streaming true "
        "--shuffle_buffer 1 --bucket false",
    )
    warmup_rate: float = optimisation_option(
        TrainConfig.USUAL_RATE, help="share of warm-up steps", at_least=0, below=1
    )
    precision: Literal["fp32", "bf16"] = precision_option(
        "fp32", help="bf16: autocast, what Trainer calls bf16"
    )


def train_peer(config: TrainPeerConfig) -> None:
    """Train and write the predictions, unless they exist; the peer's lines go into peer.log."""
    start_console(World())
    if not Path(config.model_path).is_dir():
        raise InputError(
            f"--model_path {config.model_path} is not a folder; make one with ernie-pair convert --to hf"
        )
    inputs = {flag: list_content(getattr(config, flag)) for flag in FILES}
    settings = settings_of(config, *PLACES)
    results = Results("train-peer", [config.output_file], inputs, settings, config.overwrite)
    if results.are_done():
        return
    open_peer(config.peer_python, OF_TRAINER)
    spec = _write_spec(config)
    environment = environment_of_peer(cpu_threads())
    python = os.path.abspath(config.peer_python) if os.sep in config.peer_python else config.peer_python
    program = [python, RUN_MODULE, "-m", "side_by_side.peer.trainer"]
    words, log = [str(spec)], spec.with_name(LOG)
    with StopSignals(), ChildCommand(words, "the peer's Trainer", log, environment, program) as child:
        child.finish()
    logits = np.load(spec.with_name(LOGITS))
    with results.published() as (draft,):
        lines = prediction_lines(logits, LABELS.names, deque())
        draft.write_text("".join(lines), encoding="utf-8")
    print(f"wrote {config.output_file}: {len(logits)} rows")


def _write_spec(config: TrainPeerConfig) -> Path:
    """Write the rows and the spec of the peer, and return its path."""
    folder, left_out = Path(config.output_dir), (*PLACES, "overwrite")
    spec: Dict[str, Any] = {name: value for name, value in asdict(config).items() if name not in left_out}
    spec["model"], spec["threads"] = str(Path(config.model_path).resolve()), cpu_threads()
    make_folder(folder / "rows")
    for part in PARTS:
        pairs = PairSource(f"{part}_file", getattr(config, f"{part}_file"), part, LABELS, Columns()).read()
        rows = zip(pairs.left, pairs.right, pairs.known_labels.tolist())
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        (folder / "rows" / f"{part}.jsonl").write_text(text, encoding="utf-8")
    write_json(folder / SPEC, spec)
    return folder / SPEC


if __name__ == "__main__":
    run_command(train_peer, TrainPeerConfig)
