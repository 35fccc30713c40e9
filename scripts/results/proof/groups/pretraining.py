"""Pretrain a small ERNIE on your own text, and compare the choices of its recipe at equal tokens."""

from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Dict, List, Mapping, Tuple

from proof.experiment import Run, Words, words_of
from proof.figures import pretraining_figures
from proof.groups.pair_data import WEIGHTS
from proof.scale import Scale

TITLE = "Pretraining a small ERNIE on your own text"
CORPUS, SPLIT = "$WORK/corpus", "940,50,10"
VOCAB = "$DATA/vocab/ernie_1.0_zh.txt"
GENERAL = {"corpus": CORPUS}


def runs(scale: Scale) -> List[Run]:
    """Return the long pretrainings, whose weights others start from, and then the rows of the ablation."""
    base = _row("base", f"base: rate {scale.rate:g}, batch {scale.batch}, length {scale.length}", {}, scale)
    return [
        _long("pretrained", "pretrained: whole words", {}, scale),
        _long("characters", "pretrained without whole words", {"whole_word_mask": False}, scale),
        _long("gram", "pretrained as ErnieGram", {"model_type": "ernie_gram"}, scale),
        base,
        *(_row(name, title, flags, scale) for name, (title, flags) in _choices(scale).items()),
        _joined(scale),
    ]


def _choices(scale: Scale) -> Dict[str, Tuple[str, Dict[str, object]]]:
    """Return {row: (what it changes, its flags)}; every row reads as many tokens."""
    steps, half = scale.ablation_steps, scale.batch // 2
    longer = {"max_seq_len": 2 * scale.length, **batch_flags(half, scale)}
    return {
        "no_whole_words": ("masks characters, not words", {"whole_word_mask": False}),
        "no_order": ("one segment, no sentence order", {"binary_head": False}),
        "longer": (f"length {2 * scale.length}, batch {half}", longer),
        "rate_low": (f"rate {scale.rate / 2:g}", {"max_lr": scale.rate / 2}),
        "rate_high": (f"rate {scale.rate * 2:g}", {"max_lr": scale.rate * 2}),
        "batch_half": (
            f"batch {half}, twice the steps",
            {**batch_flags(half, scale), "max_steps": 2 * steps, "decay_steps": 2 * steps},
        ),
    }


def batch_flags(size: int, scale: Scale) -> Dict[str, object]:
    """Return the flags of ``size`` samples per step in all processes."""
    return {"micro_batch_size": size // scale.processes, "global_batch_size": size}


def corpus_commands(text: str, folder: str, **flags) -> Tuple[Words, Words]:
    """Return the commands from ``text``, a file or folder, to a corpus in ``folder``."""
    documents = f"{folder}/documents"
    convert = words_of("text-to-json", input_path=text, output_path=documents)
    return convert, create_corpus(f"{documents}.jsonl", folder, **flags)


def create_corpus(documents: str, folder: str, **flags) -> Words:
    """Return the command from ``documents``, JSON lines, to a corpus in ``folder``."""
    return words_of(
        "create-corpus",
        input_path=documents,
        output_prefix=f"{folder}/text",
        vocab_file=VOCAB,
        chinese=True,
        split_sentences=True,
        cn_whole_word_segment=True,
        workers=2,
        **flags,
    )


def _new_model(scale: Scale, family: str) -> Words:
    return words_of(
        "new-model",
        vocab_file=VOCAB,
        output_dir=_folder_of_new(scale, family),
        model_type=family,
        num_hidden_layers=scale.layers,
        hidden_size=scale.hidden,
        num_attention_heads=scale.heads,
        intermediate_size=4 * scale.hidden,
    )


def _folder_of_new(scale: Scale, family: str) -> str:
    return f"$WORK/new/{family}-{scale.layers}x{scale.hidden}x{scale.heads}"


def pretrain_flags(scale: Scale, steps: int) -> Dict[str, object]:
    """Return the flags of a pretraining without dropout, in the processes of ``scale``."""
    return {
        "input_dir": CORPUS,
        "output_dir": "$RUN/out",
        "log_dir": "$RUN/log",
        "processes": scale.processes,
        "device": "cpu",
        "split": SPLIT,
        "max_seq_len": scale.length,
        **batch_flags(scale.batch, scale),
        "hidden_dropout_prob": 0,
        "attention_probs_dropout_prob": 0,
        "max_steps": steps,
        "decay_steps": steps,
        "max_lr": scale.rate,
        "warmup_rate": 0.05,
        "precision": scale.precision,
        "logging_freq": max(1, steps // 100),
        "eval_freq": max(1, steps // 10),
        "eval_iters": 20,
        "checkpoint_steps": max(1, steps // 10),
        "save_steps": max(1, steps // 2),
        "keep_checkpoints": 2,
        "num_workers": 2,
    }


def evaluate_commands(
    model: str,
    corpora: Dict[str, str],
    scale: Scale,
    folder: str = "$RUN",
    held_out: Mapping[str, str] = MappingProxyType({}),
) -> List[Words]:
    """Return the commands that ask ``model`` for the masked words of the test part of each of the corpora.

    Samples have two segments, and of the first corpus one as well: the model may have learnt from either.
    ``held_out``: further corpora, which are asked about as a whole.
    """
    first = next(iter(corpora))
    asked = [(name, True) for name in (*corpora, *held_out)] + [(first, False)]
    return [
        words_of(
            "evaluate-mlm",
            model_path=model,
            input_dir={**corpora, **held_out}[name],
            output_file=f"{folder}/{name}{'' if is_of_two else '_one_segment'}.json",
            split=None if name in held_out else SPLIT,
            part="all" if name in held_out else "test",
            num_samples=scale.samples,
            max_seq_len=scale.length,
            binary_head=is_of_two,
            bootstrap=scale.bootstrap,
        )
        for name, is_of_two in asked
    ]


def evaluated(corpora: Dict[str, str], held_out: Mapping[str, str] = MappingProxyType({})) -> Tuple[str, ...]:
    """Return the names of what `evaluate_commands` writes."""
    return (*corpora, *held_out, f"{next(iter(corpora))}_one_segment")


def _run(
    name: str, title: str, flags: Dict[str, object], scale: Scale, corpus: Tuple[Words, ...] = ()
) -> Run:
    """Return a pretraining from random weights, and its evaluation; ``corpus``: makes its own corpus."""
    family = str(flags.get("model_type", "ernie"))
    start = {"model_name_or_path": _folder_of_new(scale, family), "from_scratch": True}
    commands = [
        *corpus_commands("$DATA/text", CORPUS),
        *corpus,
        _new_model(scale, family),
        words_of("launch", "pretrain", **start, **flags),
        *evaluate_commands("$RUN/out", GENERAL, scale),
    ]
    metrics = "$RUN/out/metrics.jsonl"
    read = partial(pretraining_figures, metrics=metrics, measured=evaluated(GENERAL))
    return Run(name, title, tuple(commands), read, curve=metrics)


def _long(name: str, title: str, changes: Dict[str, object], scale: Scale) -> Run:
    """Return a long pretraining, converted into the weights that others start from."""
    run = _run(name, title, {**pretrain_flags(scale, scale.steps), **changes}, scale)
    convert = words_of(
        "convert", static_model_path="$RUN/out/model_last/static_vars", output_dir="$RUN/weights"
    )
    links = {f"{WEIGHTS}/{name}": "$RUN/weights"}
    if name == "pretrained":
        links[f"{WEIGHTS}/half"] = f"$RUN/out/model_{scale.steps // 2}"
    return replace(run, commands=(*run.commands, convert), links=links)


def _row(name: str, title: str, changes: Dict[str, object], scale: Scale) -> Run:
    return _run(name, title, {**pretrain_flags(scale, scale.ablation_steps), **changes}, scale)


def _joined(scale: Scale) -> Run:
    """Return the row whose short documents are joined; it is asked about the same text as the others."""
    folder = f"{CORPUS}_joined-{4 * scale.length}"
    corpus = corpus_commands("$DATA/text", folder, join_documents="short", join_tokens=4 * scale.length)
    flags = {**pretrain_flags(scale, scale.ablation_steps), "input_dir": folder}
    return _run("joined", f"documents joined up to {4 * scale.length} tokens", flags, scale, corpus)
