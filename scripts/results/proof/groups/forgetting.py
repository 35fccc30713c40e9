"""What a model forgets that goes on with the text of one domain, and what a share of all text keeps."""

from functools import partial
from typing import Dict, List

from proof.experiment import Run, Words, words_of
from proof.figures import mlm_figures, pretraining_figures
from proof.groups.pair_data import BEST_START
from proof.groups.pretraining import (
    CORPUS,
    corpus_commands,
    evaluate_commands,
    evaluated,
    pretrain_flags,
)
from proof.scale import Scale

TITLE = "What is forgotten"
MIXTURES = {"half": 0.5, "tenth": 0.1}  # shares of all text


def runs(scale: Scale) -> List[Run]:
    """Return the measurement before, and the runs that go on: with the domain alone, and with mixtures."""
    before = [*_corpora(scale), *evaluate_commands(BEST_START, _asked(scale), scale)]
    read = partial(mlm_figures, measured=evaluated(_asked(scale)))
    found = [Run("before", "before", tuple(before), read, needs=(BEST_START,))]
    found.append(_going_on("alone", f"{scale.domain} alone", _folder(scale.domain), scale))
    for name, share in MIXTURES.items():
        mixture = f"{1 - share:g} {_folder(scale.domain)} {share:g} {CORPUS}"
        title = f"{1 - share:.0%} {scale.domain}, {share:.0%} all text"
        found.append(_going_on(name, title, mixture, scale))
    return found


def _folder(text: str) -> str:
    return f"$WORK/domains/{text}"


def _asked(scale: Scale) -> Dict[str, str]:
    return {"corpus": CORPUS, scale.domain: _folder(scale.domain), scale.other: _folder(scale.other)}


def _corpora(scale: Scale) -> List[Words]:
    texts = [words for name in (scale.domain, scale.other) for words in _corpus_of(name)]
    return [*corpus_commands("$DATA/text", CORPUS), *texts]


def _corpus_of(text: str):
    return corpus_commands(f"$DATA/text/{text}.txt", _folder(text))


def _going_on(name: str, title: str, input_dir: str, scale: Scale) -> Run:
    """Return a pretraining from the pretrained weights, at half the rate."""
    flags = {
        **pretrain_flags(scale, scale.further_steps),
        "input_dir": input_dir,
        "model_name_or_path": BEST_START,
        "max_lr": scale.rate / 2,
    }
    go_on = words_of("launch", "pretrain", **flags)
    commands = (*_corpora(scale), go_on, *evaluate_commands("$RUN/out", _asked(scale), scale))
    metrics = "$RUN/out/metrics.jsonl"
    read = partial(pretraining_figures, metrics=metrics, measured=evaluated(_asked(scale)))
    return Run(name, title, commands, read, needs=(BEST_START,), curve=metrics)
