"""The same weights in transformers' Trainer: the same data, rates and lengths, judged by the same code."""

from functools import partial
from typing import Dict, List, Tuple

from proof.experiment import PEER_PYTHON, Run, Words, script_words, words_of
from proof.figures import sided_figures
from proof.groups.pair_data import (
    BEST_START,
    cut_command,
    predictions,
    test_of,
    train_and_ask,
    trained,
    training_flags,
)
from proof.scale import Scale

TITLE = "The same weights in transformers"
GROUP, OURS, THEIRS = "peer", "ours", "transformers"
# {run: (title, whether it is of the peer, precision)}; a difference is to `ours`.
SIDES: Dict[str, Tuple[str, bool, str]] = {
    OURS: ("this package, float32", False, "fp32"),
    THEIRS: ("Trainer of transformers, float32", True, "fp32"),
    f"{OURS}_bf16": ("this package, products in bfloat16", False, "bf16"),
    f"{THEIRS}_bf16": ("Trainer of transformers, autocast to bfloat16", True, "bf16"),
}
# Passed to both sides, though it is the default of this package.
SAME: Dict[str, object] = {"dropout": 0.1, "weight_decay": 0.01, "warmup_rate": 0.1, "bucket": True}
OF_OURS = ("eval_freq", "checkpoint_steps", "keep_checkpoints")  # Trainer does both at the end of an epoch
MODEL = "$RUN/model"  # as transformers loads it


def runs(scale: Scale) -> List[Run]:
    """Return a run of each side and precision; a run holds all seeds."""
    return [_run(name, scale) for name in SIDES]


def _run(name: str, scale: Scale) -> Run:
    title, is_peer, precision = SIDES[name]
    flags = {**training_flags("lcqmc", str(scale.large_rows), scale), **SAME, "precision": precision}
    commands = [
        cut_command("lcqmc", scale),
        *(_theirs(name, flags, scale) if is_peer else _ours(name, flags, scale)),
    ]
    folders = [trained(f"{GROUP}/{name}", seed) for seed in scale.seed_list]
    read = partial(
        sided_figures,
        predictions={each: _answers(each, scale) for each in dict.fromkeys((name, OURS))},
        test=test_of("lcqmc"),
        bootstrap=scale.bootstrap,
        folders=folders,
        precision=precision,
    )
    needs = (BEST_START, *(() if name == OURS else _answers(OURS, scale)))
    curve = f"{folders[0]}/metrics.jsonl"
    title = f"{title}, {scale.large_rows:,} rows of LCQMC"
    return Run(name, title, tuple(commands), read, scale.seed_list, {}, needs, curve)


def _answers(name: str, scale: Scale) -> List[str]:
    return [predictions(f"{GROUP}/{name}", seed) for seed in scale.seed_list]


def _ours(name: str, flags: Dict[str, object], scale: Scale) -> List[Words]:
    return [words for seed in scale.seed_list for words in train_and_ask(f"{GROUP}/{name}", seed, flags)]


def _theirs(name: str, flags: Dict[str, object], scale: Scale) -> List[Words]:
    """Return the conversion of the weights, and a training of each seed, which asks the test pairs itself."""
    same = {flag: value for flag, value in flags.items() if flag not in OF_OURS}
    convert = words_of("convert", to="hf", model_path=BEST_START, output_dir=MODEL)
    return [convert, *(_train_peer(name, seed, same) for seed in scale.seed_list)]


def _train_peer(name: str, seed: int, flags: Dict[str, object]) -> Words:
    run = f"{GROUP}/{name}"
    return script_words(
        "scripts/train_peer.py",
        peer_python=PEER_PYTHON,
        model_path=MODEL,
        test_file=test_of("lcqmc"),
        output_dir=trained(run, seed),
        output_file=predictions(run, seed),
        seed=seed,
        **flags,
    )
