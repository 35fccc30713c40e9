"""A fair chance for training from scratch: rate, epochs and warm-up are searched equally for either start."""

from functools import partial
from typing import Dict, List, Tuple

from proof.experiment import Run, Words, words_of
from proof.figures import search_figures
from proof.groups.pair_data import BEST_START, ask, cut_command, test_of, training_flags
from proof.scale import Scale

TITLE = "Training from scratch with its own best flags"
STARTS = ("continued", "scratch")
SEARCHED = ("learning_rate", "epochs", "warmup_rate")


def runs(scale: Scale) -> List[Run]:
    """Return one run: a search for each start, and all seeds with its best flags on the test pairs."""
    commands: List[Words] = [cut_command("lcqmc", scale)]
    for start in STARTS:
        folder = _folder(start)
        search = words_of(
            "search-params",
            model_name_or_path=BEST_START,
            from_scratch=start == "scratch",
            output_dir=folder,
            search=_space(scale),
            trials=scale.trials,
            evaluations=3,
            **_flags(scale),
        )
        commands += [search, *(words for seed in scale.seed_list for words in _train_and_ask(start, seed))]
    read = partial(
        search_figures,
        searched={start: _folder(start) for start in STARTS},
        predictions={start: [_answers(start, seed) for seed in scale.seed_list] for start in STARTS},
        test=test_of("lcqmc"),
        bootstrap=scale.bootstrap,
    )
    title = f"LCQMC, {scale.large_rows:,} rows, {scale.trials} trials for each start"
    return [Run("searched", title, tuple(commands), read, scale.seed_list, needs=(BEST_START,))]


def _space(scale: Scale) -> str:
    epochs = ",".join(str(times * scale.epochs) for times in (1, 2, 4))
    low, high = scale.learning_rate / 4, scale.learning_rate * 4
    return f"learning_rate={low:g}..{high:g}:log epochs={epochs} warmup_rate=0.02,0.1"


def _flags(scale: Scale) -> Dict[str, object]:
    """Return the flags of training but for those searched, and eval_freq, which --evaluations replaces."""
    flags = training_flags("lcqmc", str(scale.large_rows), scale)
    return {name: value for name, value in flags.items() if name not in (*SEARCHED, "eval_freq")}


def _train_and_ask(start: str, seed: int) -> Tuple[Words, Words]:
    """Return the commands of a training with the best flags, and of its answers to the test pairs."""
    folder = f"{_folder(start)}-seed-{seed}"
    best = f"{_folder(start)}/best.yaml"
    train = words_of("train", config=best, output_dir=folder, seed=seed)
    return train, ask(folder, _answers(start, seed))


def _answers(start: str, seed: int) -> str:
    return f"{_folder(start)}-predictions-{seed}.tsv"


def _folder(start: str) -> str:
    return f"$RUN/{start}"
