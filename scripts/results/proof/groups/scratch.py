"""A fair chance for training from scratch: rate, epochs and warm-up searched, as often for either start."""

from functools import partial
from typing import List

from proof.experiment import Run, Words, words_of
from proof.figures import search_figures
from proof.groups.pair_data import BEST_START, ask, cut_command, test_of, training_flags
from proof.scale import Scale

TITLE = "A fair chance for training from scratch"
STARTS = ("pretrained", "scratch")
SEARCHED = ("learning_rate", "epochs", "warmup_rate")


def runs(scale: Scale) -> List[Run]:
    """Return one run: a search for each start, and the best model of each on the test pairs."""
    epochs = ",".join(str(times * scale.pair_epochs) for times in (1, 2, 4))
    low, high = scale.pair_rate / 4, scale.pair_rate * 4
    space = f"learning_rate={low:g}..{high:g}:log epochs={epochs} warmup_rate=0.02,0.1,0.3"
    flags = training_flags("lcqmc", str(scale.large_rows), scale)
    for name in (*SEARCHED, "eval_freq"):
        flags.pop(name, None)
    commands: List[Words] = [cut_command("lcqmc", scale)]
    for start in STARTS:
        folder = _folder(start)
        search = words_of(
            "search-params",
            model_name_or_path=BEST_START,
            from_scratch=start == "scratch",
            output_dir=folder,
            search=space,
            trials=scale.trials,
            evaluations=3,
            **flags,
        )
        commands += [search, ask(f"{folder}/best", f"{folder}-predictions.tsv")]
    read = partial(
        search_figures,
        searched={start: _folder(start) for start in STARTS},
        test=test_of("lcqmc"),
        bootstrap=scale.bootstrap,
    )
    title = f"LCQMC, {scale.large_rows:,} rows, {scale.trials} trials for each start"
    return [Run("searched", title, tuple(commands), read, needs=(BEST_START,))]


def _folder(start: str) -> str:
    return f"$RUN/{start}"
