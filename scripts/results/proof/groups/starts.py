"""Does pretraining help? The same classifier from several starts, on little and on more labelled data."""

from functools import partial
from typing import Dict, List, Tuple

from proof.experiment import Run, hash_of, words_of, yaml_of
from proof.figures import compared_figures
from proof.groups.pair_data import WEIGHTS, cut_command, test_of, training_flags
from proof.scale import FIRST_SEED, Scale

TITLE = "Does pretraining on one's own text help?"
TWO = ("pretrained", "scratch")
FOUR = ("pretrained", "half", "characters", "scratch")
ALL_STARTS = "_four"  # ends the name of a comparison that a shorter one has begun
FAMILIES = {"": "ERNIE", "_gram": "ErnieGram"}


def runs(scale: Scale) -> List[Run]:
    """Return the comparisons: two starts first, then the same folder with all four."""
    small, large = str(scale.small_rows), str(scale.large_rows)
    sets = {
        "lcqmc_large": ("lcqmc", large),
        "lcqmc_small": ("lcqmc", small),
        "afqmc": ("afqmc", "all"),
    }
    found = [_run(name, part, TWO, scale) for name, part in sets.items()]
    found += [_run(f"{name}{ALL_STARTS}", part, FOUR, scale, folder=name) for name, part in sets.items()]
    found += [_run(f"{name}_gram", part, TWO, scale, family="_gram") for name, part in sets.items()]
    return [*found, _run("lcqmc_all", ("lcqmc", "all"), TWO, scale, seeds=1, epochs=1)]


def _run(
    name: str, part: Tuple[str, str], starts: Tuple[str, ...], scale: Scale, folder: str = "", **changes
) -> Run:
    family, seeds = changes.pop("family", ""), changes.pop("seeds", scale.seeds)
    data_set, rows = part
    flags: Dict[str, object] = {**training_flags(data_set, rows, scale), "seed": FIRST_SEED, **changes}
    pretrained = "gram" if family else "pretrained"  # no family takes the weights of another
    places = {start: f"{WEIGHTS}/{start}" for start in starts}
    places.update(pretrained=f"{WEIGHTS}/{pretrained}", scratch=f"random:{WEIGHTS}/{pretrained}")
    test = test_of(data_set)
    settings = hash_of([flags, test, seeds, scale.bootstrap])  # all that is not of the starts
    output = f"$WORK/compared/{folder or name}-{settings}"  # of no one run: two share it
    command = words_of(
        "compare-starts",
        starts=" ".join(f"{start}={place}" for start, place in places.items()),
        train_config="$RUN/train.yaml",
        test_file=test,
        output_dir=output,
        seeds=seeds,
        bootstrap=scale.bootstrap,
    )
    count = "all rows" if rows == "all" else f"{int(rows):,} rows"
    return Run(
        name,
        f"{data_set.upper()}, {count}, {FAMILIES[family]} classifier",
        (cut_command(data_set, scale), command),
        partial(compared_figures, folder=output, test=test),
        tuple(range(FIRST_SEED, FIRST_SEED + seeds)),
        {"$RUN/train.yaml": yaml_of(flags)},
        tuple(place for place in places.values() if not place.startswith("random:")),
        f"{output}/pretrained-seed-{FIRST_SEED}/metrics.jsonl",
    )
