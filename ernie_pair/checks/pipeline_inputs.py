"""What a pipeline is given: its flags, and what is found in pairs, text, model and machine."""

import os
import shlex
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Iterator, Literal, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np

from data_tools.text.text_files import DOCUMENTS, RAW, LineRules, Place, decoded, json_text, list_inputs
from data_tools.text.texts import line_batches
from ernie_pair.checkpoint.run_config import flags_of
from ernie_pair.checks.faq import COLUMNS_HELP, Faq, read_faq
from ernie_pair.checks.recipe import NEEDS, describe_outer
from ernie_pair.core.cli.options import (
    ANY,
    data_option,
    devices_option,
    evaluation_option,
    file_option,
    model_folder_option,
    optimisation_option,
    path_option,
    paths_in,
    speed_option,
)
from ernie_pair.core.errors import ErniePairError, InputError, again_with, counted, for_outer, one_error
from ernie_pair.core.files.json_file import as_read, read_json_object
from ernie_pair.core.files.results import MAKER, Results, files_of, followed, paths_named, read_record
from ernie_pair.models.labels import MAX_WORDS, Labels
from ernie_pair.models.model_folder import kind_of_folder
from ernie_pair.models.source import open_model
from ernie_pair.models.spec import ModelSpec
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.data.pair_records import LABEL_MAP_HELP, RowFlags
from ernie_pair.pairs.data.pair_source import (
    PairSource,
    check_columns,
    check_of_matches,
    labels_for,
    read_all,
)
from ernie_pair.pretraining.config.pretrain_config import check_family
from ernie_pair.retrieval.index import SEARCH_LIBRARIES
from ernie_pair.runtime.cpu import usable_cores
from ernie_pair.runtime.device import default_device

RECORD, REPORT = "pipeline.json", "report.html"
MAX_MEASURED = 64 << 20  # bytes of text that are read to estimate the rest
MIN_ROWS = 20
MAX_POSITIONS = 513  # of a new model
PREPARE, TRAIN = "prepare the text and the model to start from", "train on the pairs"
USED_FIRST = {"pretraining": PREPARE, "fine-tuning": TRAIN}  # the step that is the first to use such a flag


@dataclass(frozen=True)
class PipelineConfig(RowFlags):
    """Turn texts and labelled pairs, an FAQ, or both into what serves. Start it again to continue."""

    EXAMPLE = "--train_file pairs.csv --input_path texts --output_dir my_model"
    NEEDS = NEEDS
    MOST_CLASSES = MAX_WORDS

    output_dir: str = data_option(help="everything goes here", writes="FOLDER")
    train_file: str = file_option("", help="labelled pairs: files, folders, or a set such as lcqmc")
    faq_file: str = file_option(
        "",
        help="questions and answers, or variants and standard questions, without labels: a table, or JSON",
        needs={ANY: SEARCH_LIBRARIES},
    )
    faq_columns: str = data_option("", help=COLUMNS_HELP, only_with="faq_file")
    dev_file: str = file_option(
        "", help="labelled pairs for choosing the best model; empty: rows of train_file, split off by query"
    )
    test_file: str = file_option(
        "", help="labelled pairs for measuring it; empty: rows of train_file, split off by query"
    )
    general_file: str = file_option(
        "",
        help="labelled pairs of another domain, two classes: what training costs on them; AUC before, of an "
        "encoder by its similarities, and after",
    )
    dev_share: float = data_option(
        0.1, help="share of the rows that is split off for each of the two", above=0, at_most=0.4
    )
    input_path: str = path_option(
        "",
        help="text to pretrain on: raw text, JSON lines and tables, a file, a folder, or several with commas "
        "between; empty: the texts of the pairs alone",
    )
    json_key: str = data_option("text", help="the key of a document's text in JSON lines")
    text_column: str = data_option("", help="the column of a document's text in a table, or its number")
    label_map: str = data_option("", help=LABEL_MAP_HELP)
    are_scores: bool = data_option(False, help="the labels are scores, not classes")
    model_name_or_path: str = model_folder_option(
        "",
        help="a built-in name (ernie-gram-zh, ernie-1.0) or a model folder to start from; empty: a new "
        "model, of a size that the text and the machine allow",
    )
    pretrain: Union[bool, Literal["auto"]] = optimisation_option(
        "auto", help="pretrain on the text first; auto: a new model, and any other if there is --input_path"
    )
    minutes: float = optimisation_option(
        60,
        help="how long pretraining may take on this machine, about",
        unit="minutes",
        above=0,
        affects="pretraining",
    )
    epochs: int = optimisation_option(
        0,
        help="passes over the training pairs; 0: 3, of few pairs as many as make 400 steps, at most 20",
        unit="epochs",
        at_least=0,
        affects="fine-tuning",
    )
    seed: int = optimisation_option(1234, help="seed of weights, data order and masks", at_least=0)
    keep: str = data_option(
        "",
        help="folder of an earlier pipeline of these pairs: its rows stay in the files that they are in, and "
        "the new model is compared with its model",
        reads="FOLDER",
    )
    use: str = data_option(
        "",
        help="version, v1, v2 and so on, that OUTPUT_DIR/current is to lead to; nothing else is done",
        affects="start",
    )
    verbose: bool = evaluation_option(
        False, help="show all that the steps say; false: it is in OUTPUT_DIR/pipeline.log", affects="start"
    )
    dry_run: bool = evaluation_option(
        False, help="say what would be done, and write nothing", affects="start"
    )
    fresh_start: bool = data_option(
        False, help="start anew, and rename the folder of an earlier pipeline", affects="start"
    )
    gpus: str = devices_option("0", help="GPUs for pretraining, on a machine with GPUs")
    device: Literal["cpu", "gpu"] = speed_option(default_device(), help="where to run")

    def __post_init__(self):
        super().__post_init__()
        if not (self.train_file or self.faq_file or self.use):
            raise InputError(
                "give --train_file, labelled pairs, or --faq_file, questions and answers, or both"
            )
        if self.train_file and self.faq_file and self.place != Place():
            raise InputError(
                "--sheet and --header_row are of one table, and --train_file and --faq_file are two; leave "
                "them out, or save the table that is not found without them as .csv"
            )
        for name in ("dev_file", "test_file", "general_file", "label_map"):
            if getattr(self, name) and not self.train_file:
                raise InputError(f"--{name} is for labelled pairs; give --train_file, or leave it out")
        if self.are_scores and self.label_map:
            raise InputError("--are_scores true has no classes, and --label_map names some; leave one out")
        if self.dev_file and self.test_file and self.dev_share != type(self).dev_share:
            raise InputError(
                "--dev_share splits rows off, and --dev_file and --test_file are given; leave one of them out"
            )


class TextSummary(NamedTuple):
    """What is known of the text from its beginning: files, bytes, documents and characters of all of it."""

    files: int
    size: int
    documents: int
    characters: int
    is_whole: bool


@dataclass(frozen=True)
class InputSummary:
    """What was found before anything is written.

    ``rows`` of each given file of pairs, their ``labels``, and the ``example`` that is the first; without
    pairs, what learns the questions of ``faq``;
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
    text: Optional[TextSummary]
    spec: Optional[ModelSpec]
    flops: float
    cores: int
    seconds: Mapping[str, float]
    faq: Optional[Faq] = None
    is_embedding: bool = False  # the model to start from


def build_record(config: PipelineConfig, at_end: bool = False, **measured: object) -> Results:
    """Return the record of a pipeline and its page: its flags, and ``measured``, which a restart keeps.

    ``at_end``: with the hashes of all that it was given, by which a start knows that nothing is to be done.
    """
    folder, names = Path(config.output_dir), paths_in(config, "reads") if at_end else ()
    given: dict[str, Sequence[Path]] = {name: files_of(getattr(config, name)) for name in names}
    settings = {**measured, "flags": flags_of(config)}
    return Results("pipeline", [folder / REPORT], given, settings, False, record=followed(folder / RECORD))


def inspect_inputs(config: PipelineConfig) -> InputSummary:
    """Return what can be known before anything is written. Raises InputError with all that is wrong."""
    errors: list[ErniePairError] = []

    @contextmanager
    def collected() -> Iterator[None]:
        try:
            yield
        except ErniePairError as error:
            errors.append(error)

    known: dict[str, Any] = {}
    pairs, faq = None, None
    with collected():
        known = _read_record(config)
    with collected():
        pairs = _read_pairs(config) if config.train_file else None
    with collected():
        if config.faq_file:
            faq = read_faq(
                Path(config.faq_file), config.faq_columns, config.on_bad_row == "skip", config.place
            )
    with collected():
        path = config.input_path
        place = Place(config.sheet)
        text = measure_text(path, config.json_key, config.text_column, place) if path else None
    with collected():
        spec = _spec_of_start(config)
    if errors:
        raise one_error(errors)
    lengths = np.array(
        [
            *(len(a) + len(b) + 3 for a, b in (zip(pairs.train.left, pairs.train.right) if pairs else ())),
            *(len(entry.question) + len(entry.answer) + 3 for entry in (faq.entries if faq else ())),
        ]
    )
    multiple_of_16 = -(-int(np.quantile(lengths, 0.99)) // 16) * 16
    asked = faq.entries[0].question if faq else ""
    return InputSummary(
        rows=pairs.rows if pairs else {},
        labels=pairs.labels if pairs else Labels.numbered(2),
        example=(pairs.train.left[0], pairs.train.right[0]) if pairs else (asked, ""),
        balance=pairs.balance if pairs else "",
        length=min(max(multiple_of_16, 32), 256, spec.max_positions if spec else MAX_POSITIONS),
        mean_length=float(lengths.mean()),
        faq=faq,
        characters_of_pairs=int(lengths.sum()),
        text=text,
        spec=spec,
        # The size and the steps of a run that is begun stay.
        flops=known.get("flops") or measure_flops(),
        cores=known.get("cores") or len(usable_cores()),
        seconds=known.get("seconds") or {},
        is_embedding=spec is not None and kind_of_folder(config.model_name_or_path) == "embedding",
    )


class _PairsRead(NamedTuple):
    train: Pairs
    rows: Mapping[str, int]
    labels: Labels
    balance: str


def _read_pairs(config: PipelineConfig) -> _PairsRead:
    """Return what was read of the files of pairs. Raises InputError."""
    sources = {
        split: PairSource.of(config, f"{split}_file", Labels.numbered(2))
        for split in ("train", "dev", "test")
        if getattr(config, f"{split}_file")
    }
    check_columns([*sources.values()])
    labels = Labels.scores() if config.are_scores else labels_for(sources["train"], config.label_map)
    pairs = read_all([replace(source, labels=labels) for source in sources.values()])
    read = dict(zip(sources, pairs))
    balance = _describe_balance(read["train"], labels)
    if "test" in read and read["test"].sha256 == read.get("dev", read["train"]).sha256:
        raise InputError(
            f"--test_file {config.test_file} holds the pairs that the model learns or is chosen by; give "
            "others, or leave it out: then rows of --train_file are split off"
        )
    if config.general_file:
        general = PairSource.of(config, "general_file", labels).read()
        check_of_matches("general_file", general, labels, sources["train"])
    return _PairsRead(read["train"], {split: len(each) for split, each in read.items()}, labels, balance)


def _read_record(config: PipelineConfig) -> dict[str, Any]:
    """Return what a start before has measured, {} for the first. Raises InputError for what would be lost."""
    folder, path, known = Path(config.output_dir), Path(config.output_dir, RECORD), {}
    if config.fresh_start and read_record(path).get("command") == "pipeline":
        return {}  # it is renamed before the first step
    try:
        build_record(config).check_existing(from_any_inputs=True)
    except InputError as error:
        raise InputError(for_outer(error.message, describe_outer("pipeline", config))) from None
    if os.path.lexists(path):
        record = read_json_object(path, "choose another --output_dir")
        known = record.get("settings")
        if (record.get("made_by"), record.get("command")) != (MAKER, "pipeline"):
            raise InputError(f"{path} is not of a pipeline; choose another --output_dir")
        _refuse_other_flags(folder, config, known)
    elif any(folder.glob("[!.]*")):
        there = sorted(item.name for item in folder.glob("[!.]*"))
        shown = ", ".join(there[:3]) + (f" and {len(there) - 3} more" if there[3:] else "")
        raise InputError(
            f"--output_dir {folder} holds files that no pipeline made ({shown}); choose a new or an "
            "empty folder"
        )
    output = Path(os.path.realpath(folder))
    for name in paths_in(config, "reads"):
        for given in filter(os.path.exists, paths_named(getattr(config, name))):
            source = Path(os.path.realpath(given))
            is_inside = name == "input_path" and source.is_dir() and source in (output, *output.parents)
            if is_inside or output in source.parents:
                where = "is in" if is_inside else "holds"
                raise InputError(f"--output_dir {folder} {where} the input {given}; choose another folder")
    return known


def _refuse_other_flags(folder: Path, config: PipelineConfig, known: Mapping[str, Any]) -> None:
    """Raise InputError for flags with which steps that have begun here were not begun.

    Of files that were moved, and of where it runs, the steps themselves know whether it matters.
    """
    begun, before = known["seconds"], known["flags"]
    was, now, flags = [], [], {}
    for name, value in as_read(flags_of(config)).items():
        old, affected = before.get(name, value), type(config).__dataclass_fields__[name].metadata["affects"]
        used = next((USED_FIRST[part] for part in affected if part in USED_FIRST), None)
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


def _describe_balance(pairs: Pairs, labels: Labels) -> str:
    """Return the shares of the classes in words. Raises InputError where there is nothing to learn."""
    if len(pairs) < MIN_ROWS:
        raise InputError(
            f"{pairs.path}: {counted(len(pairs), 'pair')} are too few to learn from; give at least {MIN_ROWS}"
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
        if not config.train_file:  # it is the encoder as it is
            return None
        found = open_model(config.model_name_or_path, model_type="").embedding
        if found and (found.pooling != "mean" or found.graph_steps or found.prompts):
            raise InputError(
                f"{config.model_name_or_path} is an embedding model with prompts, a dense layer or another "
                "pooling than the mean, which no classifier has; use ernie-pair train-embedding"
            )
        if config.pretrain is True:
            raise InputError(
                f"--pretrain true: {config.model_name_or_path} is an embedding model, which would forget it; "
                "leave the flag out"
            )
    spec = open_model(config.model_name_or_path, model_type="").spec
    if config.pretrain is True:
        check_family(spec)
    return spec


def measure_text(
    input_path: str,
    json_key: str = "text",
    text_column: str = "",
    place: Place = Place(),  # noqa: B008
) -> TextSummary:
    """Return what the files of ``input_path`` hold, of much text by its beginning; or InputError."""
    files = list_inputs(input_path, (*RAW, *DOCUMENTS))
    rules = LineRules(json_key, text_column=text_column, place=place)
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
            if read > MAX_MEASURED:
                break
        documents += is_open
        if read > MAX_MEASURED:
            break
    share, is_whole = max(1.0, size / max(1, read)), read <= MAX_MEASURED
    return TextSummary(len(files), size, round(documents * share), round(characters * share), is_whole)


def measure_flops() -> float:
    """Return how many operations per second products of float32 matrices reach here, the best of five."""
    left, right = np.ones((1024, 768), np.float32), np.ones((768, 1024), np.float32)
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        left @ right
        seconds.append(time.perf_counter() - began)
    return 2.0 * left.shape[0] * left.shape[1] * right.shape[1] / min(seconds)
