"""Which options of training help, on the larger part of LCQMC and from the best initial weights?"""

from dataclasses import replace
from functools import partial
from typing import Dict, List, Optional, Tuple

from proof.experiment import Run, Words, words_of, yaml_of
from proof.figures import classifier_figures
from proof.groups.pair_data import (
    BEST_START,
    ask,
    cut_command,
    cut_of,
    predictions,
    test_of,
    train_and_ask,
    trained,
    training_flags,
)
from proof.scale import Scale

TITLE = "Which options help?"
GROUP, PLAIN = "options", "plain"
OPTIONS: Dict[str, Tuple[str, Dict[str, object]]] = {
    "rdrop": ("R-Drop, alpha 1", {"rdrop_alpha": 1}),
    "fgm": ("FGM, epsilon 1", {"fgm_epsilon": 1}),
    "mean_pooling": ("mean pooling", {"pooling": "mean"}),
    "layer_decay": ("layer decay 0.8", {"layer_decay": 0.8}),
    "symmetric": ("symmetric: learns and answers by the mean of both orders", {"symmetric": "average"}),
    "consistency": ("symmetric: the divergence of both orders", {"symmetric": "consistency"}),
    "no_dropout": ("no dropout", {"dropout": 0}),
}

MINED: Dict[str, Tuple[str, Optional[str]]] = {  # kinds of pairs; None: all
    "mined": ("mined pairs beside the labelled ones", None),
    "implied": ("pairs that the labels imply beside the labelled ones", "transitive implied"),
}


def runs(scale: Scale) -> List[Run]:
    """Return a run of the plain training and one of each option; a run holds all seeds."""
    found = [_trained(PLAIN, "plain", {}, scale)]
    found += [_trained(name, title, flags, scale) for name, (title, flags) in OPTIONS.items()]
    mined = [_mined(name, title, kinds, scale) for name, (title, kinds) in MINED.items()]
    return [*found, _scored_symmetric(scale), *mined, *_distilled(scale)]


def answers_of(name: str, scale: Scale) -> List[str]:
    """Return the files of predictions of a run, of every seed."""
    return [predictions(f"{GROUP}/{name}", seed) for seed in scale.seed_list]


def _trained(name: str, title: str, flags: Dict[str, object], scale: Scale) -> Run:
    merged = {**_flags(scale), **flags}
    commands = [words for seed in scale.seed_list for words in train_and_ask(f"{GROUP}/{name}", seed, merged)]
    return _run(name, title, commands, scale)


def _run(name: str, title: str, commands: List[Words], scale: Scale, is_trained: bool = True) -> Run:
    read = partial(
        classifier_figures,
        predictions={each: answers_of(each, scale) for each in dict.fromkeys((name, PLAIN))},
        test=test_of("lcqmc"),
        bootstrap=scale.bootstrap,
    )
    needs = [BEST_START, *([] if name == PLAIN else answers_of(PLAIN, scale))]
    curve = f"{trained(f'{GROUP}/{name}', scale.seed_list[0])}/metrics.jsonl" if is_trained else ""
    words = (cut_command("lcqmc", scale), *commands)
    return Run(name, title, words, read, scale.seed_list, {}, tuple(needs), curve)


def _flags(scale: Scale) -> Dict[str, object]:
    return training_flags("lcqmc", str(scale.large_rows), scale)


def _scored_symmetric(scale: Scale) -> Run:
    """Score pairs in both orders with the plain models: nothing is trained."""
    name = "symmetric_scoring"
    commands = [
        ask(trained(f"{GROUP}/{PLAIN}", seed), predictions(f"{GROUP}/{name}", seed), symmetric="average")
        for seed in scale.seed_list
    ]
    run = _run(name, "symmetric scoring of the plain models", commands, scale, is_trained=False)
    return replace(run, files={"$RUN/plain.yaml": yaml_of(_flags(scale))})  # as it changes with these models


def _mined(name: str, title: str, kinds: Optional[str], scale: Scale) -> Run:
    """Train on the labelled pairs and those mined from them, for as many steps as without."""
    mined = f"$WORK/{GROUP}/{name}/train.jsonl"
    mine = words_of(
        "mine",
        f"{cut_of('lcqmc', scale)}/train_{scale.large_rows}.jsonl",
        output_file=mined,
        dev_file=f"{cut_of('lcqmc', scale)}/choose.jsonl",
        test_file=test_of("lcqmc"),
        include_labelled=True,
        kinds=kinds,
    )
    flags = {**_flags(scale), "train_file": mined, **_steps_of_plain(scale)}
    trainings = [words for seed in scale.seed_list for words in train_and_ask(f"{GROUP}/{name}", seed, flags)]
    return _run(name, title, [mine, *trainings], scale)


def _steps_of_plain(scale: Scale) -> Dict[str, object]:
    """Return the flags for as many steps and evaluations as the plain training has, on a larger file."""
    batch = int(str(_flags(scale)["batch_size"]))
    steps = -(-scale.large_rows * scale.epochs // batch)
    return {"max_steps": steps, "eval_freq": -(-steps // scale.epochs)}


def _distilled(scale: Scale) -> List[Run]:
    """Return distillation of the plain model of the same seed, without and with pairs that have no labels."""
    rest = {"unlabelled_file": f"{cut_of('lcqmc', scale)}/rest.jsonl", **_steps_of_plain(scale)}
    kinds: Dict[str, Tuple[str, Dict[str, object]]] = {
        "distilled": ("distilled from the plain model of the same seed", {}),
        "distilled_more": (f"distilled, {scale.rest:,} more pairs without labels", rest),
    }
    found = []
    for name, (title, more) in kinds.items():
        commands: List[Words] = []
        for seed in scale.seed_list:
            flags = {**_flags(scale), "teacher": trained(f"{GROUP}/{PLAIN}", seed), **more}
            layers = {"layers": scale.layers}
            commands += train_and_ask(f"{GROUP}/{name}", seed, {**flags, **layers}, command="distill")
        run = _run(name, title, commands, scale)
        teachers = tuple(trained(f"{GROUP}/{PLAIN}", seed) for seed in scale.seed_list)
        found.append(replace(run, needs=(*run.needs, *teachers)))
    return found
