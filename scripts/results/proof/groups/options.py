"""Which options of training help, on the larger cut of LCQMC and from the pretrained weights?"""

from dataclasses import replace
from functools import partial
from typing import Dict, List, Tuple

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


def runs(scale: Scale) -> List[Run]:
    """Return a run of the plain training and one of each option; a run holds all seeds."""
    found = [_trained(PLAIN, "plain", {}, scale)]
    found += [_trained(name, title, flags, scale) for name, (title, flags) in OPTIONS.items()]
    return [*found, _scored_symmetric(scale), _mined(scale), *_distilled(scale)]


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
    """Ask the plain models both orders: nothing is trained."""
    name = "symmetric_scoring"
    commands = [
        ask(trained(f"{GROUP}/{PLAIN}", seed), predictions(f"{GROUP}/{name}", seed), symmetric="average")
        for seed in scale.seed_list
    ]
    run = _run(name, "symmetric scoring of the plain models", commands, scale, is_trained=False)
    return replace(run, files={"$RUN/plain.yaml": yaml_of(_flags(scale))})  # as it changes with these models


def _mined(scale: Scale) -> Run:
    """Train on the labelled pairs and those that are mined of them, as many epochs."""
    mined = "$WORK/options/mined/train.jsonl"
    mine = words_of(
        "mine",
        f"{cut_of('lcqmc', scale)}/train_{scale.large_rows}.jsonl",
        output_file=mined,
        dev_file=f"{cut_of('lcqmc', scale)}/choose.jsonl",
        test_file=test_of("lcqmc"),
        include_labelled=True,
    )
    flags = {**_flags(scale), "train_file": mined}
    trainings = [words for seed in scale.seed_list for words in train_and_ask(f"{GROUP}/mined", seed, flags)]
    return _run("mined", "mined pairs beside the labelled ones", [mine, *trainings], scale)


def _distilled(scale: Scale) -> List[Run]:
    """Return distillation of the plain model of the same seed, without and with pairs that have no labels."""
    rest = {"unlabelled_file": f"{cut_of('lcqmc', scale)}/rest.jsonl"}
    kinds: Dict[str, Tuple[str, Dict[str, str]]] = {
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
        found.append(_run(name, title, commands, scale))
    return found
