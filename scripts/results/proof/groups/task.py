"""Continue pretraining with the texts of your pairs, without their labels (arXiv:2004.10964)."""

from functools import partial
from typing import List

from proof.experiment import Run, words_of
from proof.figures import continued_figures
from proof.groups.pair_data import FILES, PRETRAINED, continued_on, cut_command, cut_of
from proof.groups.pretraining import (
    GENERAL,
    batch_flags,
    corpus_commands,
    evaluate_commands,
    evaluated,
    pretrain_flags,
)
from proof.scale import Scale

TITLE = "Continuing with the texts of your pairs"
OWN = "own"  # the corpus of these texts


def runs(scale: Scale) -> List[Run]:
    """Return a run for each data set; others start from its weights."""
    return [_continued(data_set, scale) for data_set in FILES]


def _continued(data_set: str, scale: Scale) -> Run:
    """Return a pretraining that continues with the texts of the training pairs, each pair a document."""
    folder = f"{cut_of(data_set, scale)}/corpus"
    corpora = {OWN: folder, **GENERAL}
    flags = {
        **pretrain_flags(scale, scale.task_steps),
        **batch_flags(2 * scale.batch, scale),
        "input_dir": folder,
        "model_name_or_path": PRETRAINED,
        "max_seq_len": scale.length // 2,
    }
    before, metrics = "$RUN/before", "$RUN/out/metrics.jsonl"
    commands = (
        cut_command(data_set, scale),
        *corpus_commands("$DATA/text", GENERAL["corpus"]),
        *corpus_commands(f"{cut_of(data_set, scale)}/text.txt", folder),
        *evaluate_commands(PRETRAINED, corpora, scale, before),
        words_of("launch", "pretrain", **flags),
        *evaluate_commands("$RUN/out", corpora, scale),
        words_of("convert", static_model_path="$RUN/out/model_last/static_vars", output_dir="$RUN/weights"),
    )
    read = partial(continued_figures, metrics=metrics, measured=evaluated(corpora), before=before)
    title = f"{data_set.upper()}: {scale.task_steps:,} steps with the texts of its training pairs"
    links = {continued_on(data_set): "$RUN/weights"}
    return Run(data_set, title, commands, read, needs=(PRETRAINED,), curve=metrics, links=links)
