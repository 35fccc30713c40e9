"""From text and labelled pairs to a model that serves: one run of commands that can each be run alone.

What is not given is decided from the data and the machine, and told before it is done. Run it again: what is
done has nothing to do, what was cut short goes on, and what was made of other inputs or flags stops it.
"""

import json
import os
import shlex
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Callable, Collection, Iterator, Literal, Mapping, NamedTuple, Optional, Union

import numpy as np

from data_tools.text.text_files import DOCUMENTS, RAW, LineRules, decoded, json_text, list_inputs
from data_tools.text.texts import line_batches
from ernie_pair.checkpoint.run_config import as_read, find_config, flags_of, latest_of
from ernie_pair.checkpoint.run_folder import best_of
from ernie_pair.checks.line import NEEDS, Line, Step, outer_of, run_steps
from ernie_pair.core.cli.options import (
    data_option,
    devices_option,
    model_option,
    optimisation_option,
    paths_in,
)
from ernie_pair.core.errors import ErniePairError, InputError, again_with, counted, for_outer, one_error
from ernie_pair.core.files.atomic_files import published
from ernie_pair.core.files.json_file import read_json_object, write_json
from ernie_pair.core.files.results import MAKER, Results, read_own_config
from ernie_pair.core.progress import say
from ernie_pair.models.labels import MAX_WORDS, Labels
from ernie_pair.models.model_card import learned_nothing_in
from ernie_pair.models.model_folder import kind_of_folder
from ernie_pair.models.source import open_model
from ernie_pair.models.spec import ModelSpec
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.data.pair_records import LABEL_MAP_HELP, Columns, RowFlags, RowRules
from ernie_pair.pairs.data.pair_source import PairSource, check_columns, labels_for, read_all
from ernie_pair.pretraining.config.pretrain_config import PRETRAINED, check_family
from ernie_pair.report.page import Made, Table
from ernie_pair.report.plot_runs import open_runs, page_of
from ernie_pair.runtime.cpu import free_memory, usable_cores
from ernie_pair.runtime.device import default_device
from ernie_pair.runtime.processes.child_command import words_of

RECORD, REPORT = "pipeline.json", "report.html"
MOST_MEASURED = 64 << 20  # bytes of text that are read to estimate the rest
MOST_AUDITED = 200 << 20
FEWEST_ROWS = 20
PREPARE, TRAIN = "prepare the text and the model to start from", "train on the pairs"
USED_FIRST = {"minutes": PREPARE, "epochs": TRAIN}  # the first step that uses a flag; of the others the first


@dataclass(frozen=True)
class PipelineConfig(RowFlags):
    """Turn your texts and labelled pairs into a classifier that serves. Start it again to continue."""

    EXAMPLE = "--train_file pairs.csv --input_path texts --output_dir my_model"
    NEEDS = NEEDS
    MOST_CLASSES = MAX_WORDS

    train_file: str = data_option(help="labelled pairs: a file, or a set such as lcqmc", reads="FILE")
    output_dir: str = data_option(help="everything goes here", writes="FOLDER")
    dev_file: str = data_option(
        "",
        help="labelled pairs for choosing the best model; empty: rows of train_file, split off by query",
        reads="FILE",
    )
    test_file: str = data_option(
        "",
        help="labelled pairs for measuring it; empty: rows of train_file, split off by query",
        reads="FILE",
    )
    dev_share: float = data_option(
        0.1, help="share of the rows that is split off for each of the two", above=0, at_most=0.4
    )
    input_path: str = data_option(
        "",
        help="text to pretrain on: raw text, JSON lines and tables, a file, a folder, or several with commas "
        "between; empty: the texts of the pairs alone",
        reads="PATH",
    )
    json_key: str = data_option("text", help="the key of a document's text in JSON lines")
    text_column: str = data_option("", help="the column of a document's text in a table, or its number")
    label_map: str = data_option("", help=LABEL_MAP_HELP)
    are_scores: bool = data_option(False, help="the labels are scores, not classes")
    model_name_or_path: str = model_option(
        "",
        help="a built-in name (ernie-gram-zh, ernie-1.0) or a model folder to start from; empty: a new "
        "model, of a size that the text and the machine allow",
        reads="PATH",
    )
    pretrain: Union[bool, Literal["auto"]] = optimisation_option(
        "auto", help="pretrain on the text first; auto: a new model, and any other if there is --input_path"
    )
    minutes: float = optimisation_option(
        60, help="how long pretraining may take on this machine, about", unit="minutes", above=0
    )
    epochs: int = optimisation_option(3, help="passes over the training pairs", unit="epochs", at_least=1)
    seed: int = optimisation_option(1234, help="seed of weights, data order and masks", at_least=0)
    gpus: str = devices_option("0", help="GPUs for pretraining, on a machine with GPUs")
    device: Literal["cpu", "gpu"] = devices_option(default_device(), help="where to run", affects="speed")

    def __post_init__(self):
        super().__post_init__()
        if self.are_scores and self.label_map:
            raise InputError("--are_scores true has no classes, and --label_map names some; leave one out")
        if self.dev_file and self.test_file and self.dev_share != type(self).dev_share:
            raise InputError(
                "--dev_share splits rows off, and --dev_file and --test_file are given; leave one of them out"
            )

    @property
    def row_flags(self) -> dict[str, object]:
        """Return the flags that say how the rows of the given files are read, without usual ones."""
        usual = {name: item.default for name, item in RowFlags.__dataclass_fields__.items()}
        return {name: getattr(self, name) for name in usual if getattr(self, name) != usual[name]}


class Text(NamedTuple):
    """What is known of the text from its beginning: files, bytes, documents and characters of all of it."""

    files: int
    size: int
    documents: int
    characters: int
    is_whole: bool


@dataclass(frozen=True)
class Facts:
    """What was found before anything is written.

    ``rows`` of each given file of pairs, their ``labels``, and the ``example`` that is the first;
    ``length``: tokens that nearly all pairs fit into, ``mean_length`` on average; ``spec``: of the model to
    start from, None for a new one. ``flops``: operations per second of products on this machine; ``seconds``
    that steps took before, 0 of one that was begun.
    """

    rows: Mapping[str, int]
    labels: Labels
    example: tuple[str, str]
    balance: str
    length: int
    mean_length: float
    characters_of_pairs: int
    text: Optional[Text]
    spec: Optional[ModelSpec]
    flops: float
    cores: int
    seconds: Mapping[str, float]


class Size(NamedTuple):
    """A new model, for text of at least so many ``characters``, and the rates at which it learns."""

    characters: int
    hidden_size: int
    layers: int
    heads: int
    pretraining_rate: float
    training_rate: float


SIZES = (
    Size(0, 128, 2, 2, 2e-3, 5e-4),
    Size(1_000_000, 192, 4, 3, 1e-3, 5e-4),
    Size(8_000_000, 312, 4, 12, 5e-4, 2e-4),
    Size(60_000_000, 384, 6, 6, 4e-4, 1e-4),
    Size(600_000_000, 768, 12, 12, 1e-4, 5e-5),
)
EFFICIENCY = 0.7  # of the rate of products alone that a step of training reaches
MASKED = 0.15
BATCH, SAMPLES = 32, 64  # pairs of a step of training, samples of one of pretraining
PASSES, FEWEST_STEPS = 20, 200  # the most over the text, and the fewest in all
POSITIONS = 513


def pipeline(config: PipelineConfig) -> dict[str, Any]:
    """Run all steps, print what they reached and return it: model, report, result, metrics.

    Raises InputError with all that is wrong with the inputs before anything is written, and the error that a
    step ends with.
    """
    folder = Path(config.output_dir)
    facts = look(config)
    work = Work(config, facts)
    say("\n".join(work.plan()), sys.stderr)
    took, steps = dict(facts.seconds), work.steps()
    told: list[list[object]] = []

    def recorded() -> Iterator[Step]:
        for make in steps:
            step = make()
            took.setdefault(step.title, 0.0)
            record = {"made_by": MAKER, "flops": facts.flops, "cores": facts.cores, "seconds": took}
            with published(folder / RECORD) as (draft,):
                write_json(draft, record)
            yield step

    log = folder / "pipeline.log"
    for step, seconds, decided in run_steps("pipeline", config, recorded(), len(steps), log):
        took[step.title] = seconds = max(seconds, took[step.title])  # of one that was done, what it took then
        commands = "; ".join(shlex.join(["ernie-pair", *words]) for words in step.commands)
        told.append([step.title, str(timedelta(seconds=round(seconds))), decided, commands])
    write_report(work, told)
    say("\n" + "\n".join(work.summary()))
    files = {"model": folder / "exported", "report": folder / REPORT}
    return {**files, "result": work.verdict, "metrics": work.evaluation}


@contextmanager
def _collected(errors: list[ErniePairError]) -> Iterator[None]:
    try:
        yield
    except ErniePairError as error:
        errors.append(error)


def _check_existing_folder(folder: Path, config: PipelineConfig) -> None:
    """Raise InputError for a folder with files that no pipeline made, or that holds or is in the input."""
    there = [] if (folder / RECORD).exists() else sorted(item.name for item in folder.glob("[!.]*"))
    if there:
        shown = ", ".join(there[:3]) + (f" and {len(there) - 3} more" if there[3:] else "")
        raise InputError(
            f"--output_dir {folder} holds files that no pipeline made ({shown}); choose a new or an "
            "empty folder"
        )
    output = Path(os.path.realpath(folder))
    for name in paths_in(config, "reads"):
        whole = getattr(config, name)
        for given in filter(os.path.exists, (whole, *whole.split(","))):
            path = Path(os.path.realpath(given))
            is_inside = name == "input_path" and path.is_dir() and path in (output, *output.parents)
            if is_inside or output in path.parents:
                where = "is in" if is_inside else "holds"
                raise InputError(f"--output_dir {folder} {where} the input {given}; choose another folder")


def _refuse_other_flags(folder: Path, config: PipelineConfig, begun: Collection[str]) -> None:
    """Raise InputError for flags with which steps that have ``begun`` here were not begun.

    Of files that were moved, and of where it runs, the steps themselves know whether it matters.
    """
    there = read_own_config(find_config(folder, {"command": "pipeline"}))
    before = latest_of(there)[0] if there else {}
    was, now, flags = [], [], {}
    for name, value in as_read(flags_of(config)).items():
        old, used = before.get(name, value), USED_FIRST.get(name)
        is_same = not os.path.exists(str(old)) or os.path.realpath(str(old)) == os.path.realpath(str(value))
        is_moved = name in paths_in(config, "reads") and old and value and is_same
        is_used = len(begun) > 1 if used is None else used in begun
        if old == value or is_moved or not is_used or name in ("output_dir", "gpus", "device"):
            continue
        before_word, word = (str(one).lower() if isinstance(one, bool) else str(one) for one in (old, value))
        was.append(f"--{name} {shlex.quote(before_word)}")
        now.append(f"--{name} {shlex.quote(word)}")
        flags[name] = before_word
    if flags:
        raise InputError(
            f"{', '.join(now)}: {folder} was begun with {', '.join(was)}; choose another --output_dir, or go "
            f"on as it was begun: {again_with({}, **flags)}"
        )


def _results_of(folder: Path) -> Results:
    """Return the record of the page, which is written anew as long as nobody else has changed it."""
    return Results("pipeline", [folder / REPORT], {}, {}, overwrite=False)


def look(config: PipelineConfig) -> Facts:
    """Return what can be known before anything is written. Raises InputError with all that is wrong."""
    errors: list[ErniePairError] = []
    folder, known = Path(config.output_dir), {}
    with _collected(errors):
        if folder.exists() and not folder.is_dir():
            raise InputError(f"--output_dir {folder} is not a folder; choose another one")
        try:
            _results_of(folder).check_existing(from_any_inputs=True)
        except InputError as error:
            raise InputError(for_outer(error.message, outer_of("pipeline", config))) from None
        if os.path.lexists(folder / RECORD):
            known = read_json_object(folder / RECORD, "choose another --output_dir")
            if known.get("made_by") != MAKER:
                raise InputError(f"{folder / RECORD} is not of a pipeline; choose another --output_dir")
        _check_existing_folder(folder, config)
        _refuse_other_flags(folder, config, known.get("seconds") or {})
    labels = None
    read: dict[str, Pairs] = {}
    with _collected(errors):
        sources = {
            split: PairSource.of(config, f"{split}_file", Labels.numbered(2))
            for split in ("train", "dev", "test")
            if getattr(config, f"{split}_file")
        }
        check_columns([*sources.values()])
        labels = Labels.scores() if config.are_scores else labels_for(sources["train"], config.label_map)
        pairs = read_all([replace(source, labels=labels) for source in sources.values()])
        read = dict(zip(sources, pairs))
        balance = _balance_of(read["train"], labels)
        if "test" in read and read["test"].sha256 == read.get("dev", read["train"]).sha256:
            raise InputError(
                f"--test_file {config.test_file} holds the pairs that the model learns or is chosen by; give "
                "others, or leave it out: then rows of --train_file are split off"
            )
    text, spec = None, None
    with _collected(errors):
        text = (
            measure_text(config.input_path, config.json_key, config.text_column)
            if config.input_path
            else None
        )
    with _collected(errors):
        spec = _spec_of_start(config)
    if errors:
        raise one_error(errors)
    assert labels is not None  # or it has been raised why
    train = read["train"]
    lengths = np.array([len(a) + len(b) + 3 for a, b in zip(train.left, train.right)])
    flops = known.get("flops") or measure_flops()  # the size and the steps of a run that is begun stay
    multiple_of_16 = -(-int(np.quantile(lengths, 0.99)) // 16) * 16
    rows, example = {split: len(pairs) for split, pairs in read.items()}, (train.left[0], train.right[0])
    length = min(max(multiple_of_16, 32), 256, spec.max_positions if spec else POSITIONS)
    mean_length, total = float(lengths.mean()), int(lengths.sum())
    cores, seconds = known.get("cores") or len(usable_cores()), known.get("seconds") or {}
    return Facts(
        rows, labels, example, balance, length, mean_length, total, text, spec, flops, cores, seconds
    )


def _balance_of(pairs: Pairs, labels: Labels) -> str:
    """Return the shares of the classes in words. Raises InputError where there is nothing to learn."""
    if len(pairs) < FEWEST_ROWS:
        raise InputError(
            f"{pairs.path}: {counted(len(pairs), 'pair')} are too few to learn from; give at least "
            f"{FEWEST_ROWS}"
        )
    values = pairs.known_labels
    if not labels.has_classes:
        return f"scores from {values.min():g} to {values.max():g}"
    counts = np.bincount(values, minlength=len(labels.names))
    if (counts > 0).sum() < 2:
        only = labels.names[int(counts.argmax())]
        raise InputError(
            f"{pairs.path}: all pairs have the label {only}; a classifier needs pairs of each class"
        )
    return ", ".join(f"{share:.0%} {name}" for share, name in zip(counts / counts.sum(), labels.names))


def _spec_of_start(config: PipelineConfig) -> Optional[ModelSpec]:
    if not config.model_name_or_path:
        return None
    if kind_of_folder(config.model_name_or_path) == "embedding":
        raise InputError(
            f"{config.model_name_or_path} is an embedding model, and this trains a classifier of pairs; use "
            "ernie-pair train-embedding, or give its encoder"
        )
    spec = open_model(config.model_name_or_path, model_type="").spec
    if config.pretrain is True:
        check_family(spec)
    return spec


def measure_text(input_path: str, json_key: str = "text", text_column: str = "") -> Text:
    """Return what the files of ``input_path`` hold, of much text by its beginning; or InputError."""
    files = list_inputs(input_path, (*RAW, *DOCUMENTS))
    rules = LineRules(json_key, text_column=text_column)
    size = sum(path.stat().st_size for path in files)
    documents, characters, read = 0, 0, 0

    def advance(count: int) -> None:
        nonlocal read
        read += count

    for path in files:
        is_open = False
        for batch in line_batches([path], advance, rules=rules):
            read_line = json_text if batch.is_json else decoded
            for number, line in batch.numbered():
                if batch.is_json and not line.strip():
                    continue
                length = len(read_line(batch.path, number, line, rules).strip())
                characters += length
                documents += batch.is_json or (is_open and not length)
                is_open = length > 0 and not batch.is_json
            if read > MOST_MEASURED:
                break
        documents += is_open
        if read > MOST_MEASURED:
            break
    share = max(1.0, size / max(1, read))
    return Text(len(files), size, round(documents * share), round(characters * share), read <= MOST_MEASURED)


def measure_flops() -> float:
    """Return how many operations per second products of float32 matrices reach here, the best of five."""
    left, right = np.ones((1024, 768), np.float32), np.ones((768, 1024), np.float32)
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        left @ right
        seconds.append(time.perf_counter() - began)
    return 2.0 * left.shape[0] * left.shape[1] * right.shape[1] / min(seconds)


class Work:
    """What a pipeline does with what it was given: the plan in words, the steps, and what came of them."""

    def __init__(self, config: PipelineConfig, facts: Facts):
        self.config, self.facts, self.folder = config, facts, Path(config.output_dir)
        self.line = Line(self.folder, config.device, config.gpus)
        self.is_new = facts.spec is None
        family = "ernie" if facts.spec is None else facts.spec.family
        wants = (self.is_new or bool(config.input_path)) if config.pretrain == "auto" else config.pretrain
        self.pretrains = bool(wants) and family in PRETRAINED
        self.parts = [part for part in ("dev", "test") if not getattr(config, f"{part}_file")]
        text = facts.text.characters if facts.text else 0
        self.characters = facts.characters_of_pairs + text
        self.size = self._choose_size()
        names = facts.labels.names
        words = [(number, word) for word, number in facts.labels.classes.items() if word != str(number)]
        mapped = ",".join(f"{number}={word}" for number, word in words)
        has_words = facts.labels.has_classes and names != Labels.numbered(len(names)).names
        is_named = has_words or config.label_map
        self.label_map: dict[str, object] = {"label_map": config.label_map or mapped} if is_named else {}
        given = {"json_key": config.json_key, "text_column": config.text_column}
        self.of_text = {name: value for name, value in given.items() if value not in ("", "text")}

    def _choose_size(self) -> Size:
        """Return the largest new model for this much text that can read all of it twice within the time."""
        fitting = [size for size in SIZES if size.characters <= self.characters]
        for size in reversed(fitting):
            seconds = self._seconds(size.hidden_size, size.layers, 4 * size.hidden_size, 18_000)
            if 2 * self.characters * seconds <= 60 * self.config.minutes:
                return size
        return SIZES[0]

    def _seconds(self, hidden: int, layers: int, inner: int, vocabulary: int) -> float:
        """Return about what a token takes in a step of training, forward and backward."""
        weights = layers * (4 * hidden * hidden + 2 * hidden * inner) + MASKED * hidden * vocabulary
        return 6 * weights / (EFFICIENCY * self.facts.flops)

    def _seconds_of_model(self) -> float:
        spec = self.facts.spec
        if spec is None:
            path = self.folder / "small" / "config.json"
            vocabulary = read_json_object(path, "remove it")["vocab_size"] if path.is_file() else 8000
            width = self.size.hidden_size
            return self._seconds(width, self.size.layers, 4 * width, vocabulary)
        return self._seconds(spec.hidden_size, spec.num_layers, spec.intermediate_size, spec.vocab_size)

    @property
    def length(self) -> int:
        """Return the tokens of a sample of pretraining."""
        return max(self.facts.length, 64) if self.facts.text else self.facts.length

    def count_steps(self, tokens: int) -> int:
        """Return the steps of pretraining on a corpus of so many tokens: within the time, or PASSES of it."""
        step = SAMPLES * self.length  # batches are padded to their longest sample
        within = 60 * self.config.minutes / (step * self._seconds_of_model())
        return int(float(f"{max(FEWEST_STEPS, min(within, PASSES * tokens / step)):.2g}"))

    def plan(self) -> list[str]:
        """Return lines on what is to be done, and about how long and how much memory it takes."""
        config, facts, spec, text = self.config, self.facts, self.facts.spec, self.facts.text
        pairs = ", ".join(f"{count:,} {split}" for split, count in facts.rows.items()) + f" ({facts.balance})"
        if self.parts:
            parts = " and ".join(f"{config.dev_share:.0%} for {part}" for part in self.parts)
            pairs += f"; {parts}, split off by query"
        read = "the texts of the training pairs"
        if text is not None:
            about = "" if text.is_whole else "about "
            read = (
                f"{counted(text.files, 'file')}, {about}{text.documents:,} documents, about "
                f"{text.characters:,} characters; and {read}"
            )
        width, layers, vocabulary = self.size.hidden_size, self.size.layers, 8000
        name = "new"
        if spec is not None:
            width, layers, vocabulary = spec.hidden_size, spec.num_layers, spec.vocab_size
            name = config.model_name_or_path
        steps, second = self.count_steps(self.characters), self._seconds_of_model()
        of_pretraining = steps * SAMPLES * self.length * second / 60
        of_training = facts.rows["train"] * config.epochs * facts.mean_length * second / 60
        parameters = 12 * layers * width**2 + vocabulary * width
        memory = 0.8 + (16 * parameters + 160 * SAMPLES * self.length * width * layers) / 1e9
        lines = {
            "pairs": pairs,
            **({"text": read} if self.pretrains or spec is None else {}),
            "model": f"{name}: {layers} layers of width {width}",
            "pretraining": "none",
            "training": f"{counted(config.epochs, 'epoch')} on pairs of at most {facts.length} tokens: about "
            f"{max(1, round(of_training))} min",
            "memory": f"about {memory:.1f} GB; {free_memory() / 1e9:.1f} GB are free",
            "output": f"{self.folder}; stop it at any time, the same command continues",
        }
        if self.pretrains:
            lines["pretraining"] = (
                f"about {steps:,} steps of {SAMPLES} samples of {self.length} tokens: about "
                f"{max(1, round(of_pretraining))} min"
            )
        if config.device == "gpu":
            lines["note"] = "times and sizes are those of the CPU; a GPU needs less: give more --minutes"
        return [f"{name:<13}{told}" for name, told in lines.items()]

    def steps(self) -> list[Callable[[], Step]]:
        """Return what makes each step: its commands follow from what those before it have made."""
        asked = [self._audit, *([self._split] if self.parts else [])]
        if self.pretrains or self.is_new:
            asked.append(self._prepare)
        if self.pretrains:
            asked += [self._pretrain, self._convert]
        return [*asked, self._train, self._evaluate, self._export]

    def file(self, split: str) -> tuple[str, dict[str, object]]:
        """Return the file of train, dev or test, and the flags with which its rows are read."""
        if self.parts:
            return str(self.folder / "pairs" / f"{split}.jsonl"), {}
        return getattr(self.config, f"{split}_file"), self.config.row_flags

    def _audit(self) -> Step:
        config, commands = self.config, []
        given = {f"{split}_file": getattr(config, f"{split}_file") for split in self.facts.rows}
        if not config.are_scores:
            flags = {**given, **config.row_flags, **self.label_map}
            flags["output_dir"] = self.folder / "audit" / "pairs"
            commands.append(words_of("audit", "pairs", **flags))
        text = self.facts.text
        is_audited = text is not None and text.size <= MOST_AUDITED
        if is_audited:
            paths = [config.input_path] if Path(config.input_path).exists() else config.input_path.split(",")
            flags = {"output_dir": self.folder / "audit" / "text", **self.of_text}
            commands.append(words_of("audit", "text", *paths, **flags))
        left_out = "" if text is None or is_audited else "; the text is large and was not audited"
        told = f"what is odd stands above, and in {self.folder / 'audit'}{left_out}"
        return Step("check the pairs and the text", commands, decided=lambda: told)

    def _split(self) -> Step:
        config = self.config
        shares = {f"{part}_share": config.dev_share for part in self.parts}
        given = {f"{part}_file": getattr(config, f"{part}_file") for part in ("dev", "test")}
        given = {flag: path for flag, path in given.items() if path}
        flags = {**config.row_flags, **shares, **given, "seed": config.seed}
        flags.update(self.label_map)
        flags.update({"are_scores": "true"} if config.are_scores else {})
        folder = self.folder / "pairs"
        words = words_of("prepare", "pairs", train_file=config.train_file, output_dir=folder, **flags)
        return Step(
            "split the pairs", [words], decided=lambda: "rows that share a text are in one file, never in two"
        )

    def _prepare(self) -> Step:
        config, line, spec = self.config, self.line, self.facts.spec
        of_pairs = self.folder / "text" / "pairs.txt"
        files = {f"{split}_file": self.file(split)[0] for split in ("train", "dev", "test")}
        rows = {name: flag for name, flag in self.file("train")[1].items() if name != "label"}
        commands = [words_of("build", "text", **files, **rows, output_file=of_pairs)]
        texts = [config.input_path] if config.input_path else []
        if spec is None:
            commands.append(line.build_vocabulary(",".join([*texts, str(of_pairs)]), **self.of_text))
            tokenizer: dict[str, object] = {"vocab_file": line.vocabulary}
        else:
            tokenizer = {"model_name": config.model_name_or_path}
        if self.pretrains:
            workers = {"workers": self.facts.cores}
            for text, name in [*((text, "text") for text in texts), (of_pairs, "pairs")]:
                short = {"min_doc_length": 0} if name == "pairs" else {}
                flags = {**tokenizer, **short, **self.of_text, **workers}
                commands.append(line.prepare(text, name, **flags))
        if spec is None:
            width, layers, heads = self.size.hidden_size, self.size.layers, self.size.heads
            shape = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
            shape.update(intermediate_size=4 * width, max_position_embeddings=POSITIONS)
            commands.append(line.new_model(**shape))
        return Step(PREPARE, commands, decided=self._told_of_text)

    def _corpora(self) -> dict[str, dict[str, Any]]:
        names = ["text", "pairs"] if self.config.input_path else ["pairs"]
        paths = {name: self.folder / "corpus" / f"{name}.manifest.json" for name in names}
        return {name: read_json_object(path, "prepare it again") for name, path in paths.items()}

    def _told_of_text(self) -> str:
        if not self.pretrains:
            return "a new model that is not pretrained"
        corpora = self._corpora().items()
        sizes = (f"{name}: {one['documents']:,} documents, {one['tokens']:,} tokens" for name, one in corpora)
        return "; ".join(sizes)

    def _pretrain(self) -> Step:
        config, corpora, spec = self.config, self._corpora(), self.facts.spec
        tokens = sum(one["tokens"] for one in corpora.values())
        fewest = min(one["documents"] for one in corpora.values())
        split = "95,5,0" if fewest >= 20 else f"{fewest - 1},1,0" if fewest > 2 else "1,0,0"
        steps = self.count_steps(tokens)
        rate = self.size.pretraining_rate if spec is None else 1e-4 if spec.hidden_size < 512 else 5e-5
        blend = self.folder / "corpus"
        weighted = " ".join(f"1 {shlex.quote(str(blend / name))}" for name in corpora)
        flags: dict[str, object] = {
            **({"from_scratch": "true"} if spec is None else {}),
            "split": split,
            "max_seq_len": self.length,
            "micro_batch_size": SAMPLES,
            **({} if config.device == "gpu" else {"global_batch_size": SAMPLES}),
            **({"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0} if spec is None else {}),
            "max_steps": steps,
            "warmup_rate": 0.1,
            "max_lr": rate,
            "min_lr": rate / 20,
            "logging_freq": max(1, min(100, steps // 50)),
            "eval_freq": max(1, steps // 5),
            "checkpoint_steps": max(1, min(1000, steps // 5)),
            "save_steps": 10 * steps,
            "num_workers": int(self.facts.cores > 2),
            "seed": config.seed,
        }
        start = self.folder / "small" if spec is None else config.model_name_or_path
        words = self.line.pretrain(start, weighted if len(corpora) > 1 else blend, **flags)
        halves = ", half of the samples from the pairs" if len(corpora) > 1 else ""
        told = f"{steps:,} steps of {SAMPLES} samples of {self.length} tokens, rate {rate:g}{halves}"
        return Step("pretrain in static graph", [words], decided=lambda: told)

    def _convert(self) -> Step:
        told = "the dynamic model gives what the static one gives, to the last digits"
        return Step("convert to a dynamic model", [self.line.convert()], decided=lambda: told)

    def _train(self) -> Step:
        config, spec = self.config, self.facts.spec
        start: object = self.folder / "small" if spec is None else config.model_name_or_path
        start = self.folder / "dynamic" if self.pretrains else start
        rate = self.size.training_rate if spec is None else 1e-4 if spec.hidden_size < 512 else 5e-5
        (train, flags), (dev, _) = self.file("train"), self.file("dev")
        flags = {
            "train_file": train,
            "dev_file": dev,
            **flags,
            **self.label_map,
            **({"from_scratch": "true"} if self.is_new and not self.pretrains else {}),
            **({"target": "regression"} if config.are_scores else {}),
            "max_seq_len": self.facts.length,
            "batch_size": BATCH,
            "learning_rate": rate,
            "epochs": config.epochs,
            "evaluation_strategy": "epoch",
            "seed": config.seed,
        }
        words = self.line.train(start, "pair", **flags)
        told = f"{counted(config.epochs, 'epoch')} of batches of {BATCH}, rate {rate:g}"
        return Step(TRAIN, [words], decided=lambda: told)

    def _evaluate(self) -> Step:
        """Choose temperature and threshold on the dev pairs, save both, and measure with them."""
        (file, flags), folder = self.file("test"), self.folder
        made = {"output_file": folder / "evaluation.json", "report": folder / "evaluation"}
        flags = {**flags, **made, **self._fitting(), "device": self.config.device}
        words = words_of("evaluate", model_path=folder / "pair", input_file=file, **flags)
        return Step("evaluate", [words], decided=lambda: self.verdict)

    def _fitting(self) -> dict[str, object]:
        """Return the flags that fit what a model decides by; no threshold where dev pairs lack a class."""
        labels, (dev, row_flags) = self.facts.labels, self.file("dev")
        if not labels.has_classes:
            return {}
        columns = Columns(*(str(row_flags.get(name, "")) for name in ("text_a", "text_b", "label")))
        pairs = PairSource("dev_file", dev, "dev", labels, columns, RowRules.of(self.config)).read()
        flags: dict[str, object] = {"calibrate_on": dev, "save_temperature": "auto"}
        if len(labels.names) == len(np.unique(pairs.known_labels)) == 2:
            flags.update(save_threshold="true", tune_for="accuracy")
        return flags

    def _export(self) -> Step:
        words = words_of("export", model_path=self.folder / "pair", output_dir=self.folder / "exported")
        return Step("export", [words], decided=lambda: "the exported model answers as the trained one")

    @cached_property
    def evaluation(self) -> dict[str, Any]:
        """Return what was measured."""
        return read_json_object(self.folder / "evaluation.json", "run the same command again")

    @cached_property
    def verdict(self) -> str:
        """Return what the model is worth, beside counting the characters that two texts share, in a line."""
        found, baseline = self.evaluation, self.evaluation["shared_characters"]
        name = "accuracy" if self.facts.labels.has_classes else "spearman"
        line = f"{name} {found[name]:.4f} on {counted(found['rows'], 'test pair')}"
        if found.get("threshold") is not None:
            line += f" at threshold {found['threshold']:.4f}"
        if "intervals" in found:
            line += " (95 %: {:.4f} to {:.4f})".format(*found["intervals"][name])
        best = best_of(self.folder / "pair")
        reason = learned_nothing_in(best) if best else ""
        if name in baseline:
            line += f"; counting shared characters reaches {baseline[name]:.4f}"
            reason = reason or ("it is not above that" if found[name] <= baseline[name] else "")
        return f"the model has learned nothing ({reason}): {line}" if reason else line

    def summary(self) -> list[str]:
        """Return the last lines: what was made, what it is worth and how it is served."""
        exported = shlex.quote(str(self.folder / "exported"))
        example = json.dumps({"pairs": [self.facts.example]}, ensure_ascii=False)
        return [
            f"model     {self.folder / 'exported'}",
            f"report    {self.folder / REPORT}",
            f"serve     ernie-pair serve --model_path {exported}",
            f"ask       curl -s localhost:8000/predict -d {shlex.quote(example)}",
            f"result    {self.verdict}",
        ]


def write_report(work: Work, told: list[list[object]]) -> None:
    """Write the page of the whole run: its steps and their commands, what was measured, and all curves."""
    folder, found = work.folder, work.evaluation
    measured = [[name, value] for name, value in found.items() if isinstance(value, (int, float))]
    tables = [
        Table("Result", ["metric", "value"], measured, work.verdict),
        Table("Use", ["what", "how"], [line.split(maxsplit=1) for line in work.summary()], ""),
        Table("Steps", ["step", "time", "what was decided", "commands"], told, "Each runs alone as well."),
    ]
    runs = open_runs([str(folder / name) for name in ("pretrain", "pair") if (folder / name).is_dir()])
    made = Made({name: value for name, value in flags_of(work.config).items() if value not in ("", None)})
    page = page_of(runs, [], made, f"From text and pairs to {folder.name}", tables)
    with _results_of(folder).published() as (draft,):
        draft.write_text(page, encoding="utf-8")
