"""Which rate and how many epochs? The same few for either start, judged by the pairs that choose."""

from functools import partial
from typing import Dict, List

from proof.experiment import Run, Words, words_of
from proof.figures import trial_figures
from proof.groups.pair_data import BEST_START, cut_command, training_flags
from proof.scale import FIRST_SEED, Scale

TITLE = "Which rate, and how many epochs?"
GROUP, CHOOSING = "rates", "pretrained"  # the run whose choice the other groups train by
STARTS = {CHOOSING: "from the pretrained weights", "scratch": "from random weights"}


def runs(scale: Scale) -> List[Run]:
    """Return a run of each start: as many trainings, of the same rates and epochs."""
    return [_run(name, scale) for name in STARTS]


def _run(name: str, scale: Scale) -> Run:
    commands: List[Words] = [cut_command("lcqmc", scale)]
    trials = _trials(scale)
    for folder, changes in trials.items():
        flags = {**training_flags("lcqmc", str(scale.large_rows), scale), **changes}
        train = words_of(
            "train",
            model_name_or_path=BEST_START,
            from_scratch=name != CHOOSING,
            output_dir=folder,
            seed=FIRST_SEED,
            **flags,
        )
        commands.append(train)
    title = f"{STARTS[name]}, {scale.large_rows:,} rows of LCQMC, {scale.choose:,} pairs that choose"
    return Run(name, title, tuple(commands), partial(trial_figures, trials=trials), needs=(BEST_START,))


def _trials(scale: Scale) -> Dict[str, Dict[str, float]]:
    """Return {folder: rate and epochs}: half of them have the epochs of ``scale``, half twice as many."""
    rates = [scale.pair_rate / 2**halvings for halvings in range(max(1, scale.trials // 2))]
    epochs = (scale.pair_epochs, 2 * scale.pair_epochs)
    return {
        f"$RUN/rate-{rate:g}-epochs-{each}": {"learning_rate": rate, "epochs": each}
        for rate in rates
        for each in epochs
    }
