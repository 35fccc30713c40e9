"""Does pretraining help? The same classifier from several starts, on little and on more labelled data."""

from functools import partial
from typing import Dict, List, Tuple

from data_tools.files.errors import counted
from proof.experiment import Run, hash_of, words_of, yaml_of
from proof.figures import compared_figures
from proof.groups.pair_data import CHOSEN_BY, WEIGHTS, continued_on, cut_command, test_of, training_flags
from proof.scale import FIRST_SEED, Scale

TITLE = "Does pretraining on your own text help?"
TWO = ("pretrained", "scratch")
THREE = ("continued", *TWO)
RECIPES = ("pretrained", "half", "characters")
OF_RECIPES = ": the pretraining at half its steps, and one without whole words"
FAMILIES = {"": "ERNIE", "_gram": "ErnieGram"}


def runs(scale: Scale) -> List[Run]:
    """Return the comparisons: with and without pretraining first, then of recipes of pretraining."""
    small, large = str(scale.small_rows), str(scale.large_rows)
    sets = {
        "lcqmc_large": ("lcqmc", large),
        "lcqmc_small": ("lcqmc", small),
        "afqmc": ("afqmc", "all"),
    }
    found = [_run(name, part, THREE, scale) for name, part in sets.items()]
    found += [_run(f"{name}_recipes", part, RECIPES, scale, about=OF_RECIPES) for name, part in sets.items()]
    found += [_run(f"{name}_gram", part, TWO, scale, family="_gram") for name, part in sets.items()]
    return [*found, _run("lcqmc_all", ("lcqmc", "all"), THREE, scale, seeds=1, epochs=1)]


def _run(
    name: str,
    part: Tuple[str, str],
    starts: Tuple[str, ...],
    scale: Scale,
    family: str = "",
    about: str = "",
    seeds: int = 0,  # 0: those of the scale
    **changes: int,
) -> Run:
    data_set, rows = part
    seeds = seeds or scale.seeds
    flags: Dict[str, object] = {**training_flags(data_set, rows, scale), "seed": FIRST_SEED, **changes}
    pretrained = "gram" if family else "pretrained"  # no family takes the weights of another
    named = {
        "continued": continued_on(data_set),
        "pretrained": f"{WEIGHTS}/{pretrained}",
        "scratch": f"random:{WEIGHTS}/{pretrained}",
    }
    places = {start: named.get(start, f"{WEIGHTS}/{start}") for start in starts}
    test, metric = test_of(data_set), CHOSEN_BY[data_set]
    settings = hash_of([flags, test, seeds, scale.bootstrap])  # all that is not of the starts
    output = f"$WORK/compared/{name}-{settings}"
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
    count += f", {counted(changes['epochs'], 'epoch')}" if "epochs" in changes else ""
    return Run(
        name,
        f"{data_set.upper()}, {count}, {FAMILIES[family]} classifier{about}",
        (cut_command(data_set, scale), command),
        partial(compared_figures, folder=output, train=str(flags["train_file"]), test=test, metric=metric),
        tuple(range(FIRST_SEED, FIRST_SEED + seeds)),
        {"$RUN/train.yaml": yaml_of(flags)},
        tuple(place for place in places.values() if not place.startswith("random:")),
        f"{output}/{starts[0]}-seed-{FIRST_SEED}/metrics.jsonl",
    )
