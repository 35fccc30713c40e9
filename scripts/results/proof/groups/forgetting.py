"""What a model forgets when it continues on one domain, and what mixing in general text keeps."""

from functools import partial
from typing import Dict, List, Tuple

from proof.experiment import Run, Words, words_of
from proof.figures import mlm_figures, pretraining_figures
from proof.groups.pair_data import PRETRAINED
from proof.groups.pretraining import (
    CORPUS,
    GENERAL,
    SPLIT,
    corpus_commands,
    create_corpus,
    evaluate_commands,
    evaluated,
    pretrain_flags,
)
from proof.scale import Scale

TITLE = "What a model forgets when it continues on one domain"
MIXTURES = {"half": 0.5, "tenth": 0.1}  # shares of general text


def runs(scale: Scale) -> List[Run]:
    """Return the measurement before, and the runs that go on: with the domain alone, and with mixtures."""
    before = [*_corpora(scale), *_evaluate(PRETRAINED, scale)]
    read = partial(mlm_figures, measured=_measured(scale))
    found = [Run("before", "before", tuple(before), read, needs=(PRETRAINED,))]
    found.append(_going_on("alone", f"{scale.domain} alone", _train(scale.domain), scale))
    for name, share in MIXTURES.items():
        mixture = f"{1 - share:g} {_train(scale.domain)} {share:g} {CORPUS}"
        title = f"{1 - share:.0%} {scale.domain}, {share:.0%} general text"
        found.append(_going_on(name, title, mixture, scale))
    return found


def _train(domain: str) -> str:
    return f"$WORK/domains/{domain}/train"


def _held_out(scale: Scale) -> Dict[str, str]:
    """Return {domain: the corpus of its documents that no run trains on}."""
    return {name: f"$WORK/domains/{name}/held_out" for name in (scale.domain, scale.other)}


def _evaluate(model: str, scale: Scale) -> List[Words]:
    return evaluate_commands(model, GENERAL, scale, held_out=_held_out(scale))


def _measured(scale: Scale) -> Tuple[str, ...]:
    return evaluated(GENERAL, _held_out(scale))


def _corpora(scale: Scale) -> List[Words]:
    """Return the commands for the general corpus, whose split decides which documents are held out."""
    cut = [words for name in (scale.domain, scale.other) for words in _cut(name)]
    return [*corpus_commands("$DATA/text", CORPUS), *cut, create_corpus(*_files(scale.domain, "train"))] + [
        create_corpus(*_files(name, "held_out")) for name in (scale.domain, scale.other)
    ]


def _files(domain: str, part: str) -> Tuple[str, str]:
    """Return the documents and the corpus of a part of a domain."""
    folder = f"$WORK/domains/{domain}"
    return f"{folder}/{part}.jsonl", f"{folder}/{part}"


def _cut(domain: str) -> Tuple[Words, Words]:
    """Return the commands that cut a domain by the split of the general corpus."""
    folder = f"$WORK/domains/{domain}"
    convert = words_of(
        "text-to-json", input_path=f"$DATA/text/{domain}.txt", output_path=f"{folder}/documents"
    )
    cut = (
        *("scripts/results/cut_documents.py", f"--corpus_dir={CORPUS}"),
        *(f"--input_file={folder}/documents.jsonl", f"--output_dir={folder}", f"--split={SPLIT}"),
    )
    return convert, cut


def _going_on(name: str, title: str, input_dir: str, scale: Scale) -> Run:
    """Return a pretraining that starts from the pretrained weights, at half the rate."""
    flags = {
        **pretrain_flags(scale, scale.further_steps),
        "input_dir": input_dir,
        "model_name_or_path": PRETRAINED,
        "max_lr": scale.rate / 2,
    }
    go_on = words_of("launch", "pretrain", **flags)
    commands = (*_corpora(scale), go_on, *_evaluate("$RUN/out", scale))
    metrics = "$RUN/out/metrics.jsonl"
    read = partial(pretraining_figures, metrics=metrics, measured=_measured(scale))
    return Run(name, title, commands, read, needs=(PRETRAINED,), curve=metrics)
