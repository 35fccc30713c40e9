"""The flags of evaluation and prediction by a trained model, or by models with names of the user's."""

import re
import shlex
from dataclasses import dataclass
from typing import Literal, Optional, Union

from data_tools.text.text_files import is_blank
from ernie_pair.core.cli.options import (
    Options,
    OverwriteFlag,
    check_unset,
    classes_option,
    data_option,
    defaults_of,
    devices_option,
    evaluation_option,
    file_option,
    model_folder_option,
    model_option,
    speed_option,
    tokens_option,
)
from ernie_pair.core.errors import InputError
from ernie_pair.inference.backends import BACKEND_HELP, THREADS_HELP
from ernie_pair.inference.ray_flags import RayFlags
from ernie_pair.inference.token_rows import BatchTokensFlag
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.models.spec import MIN_PAIR_LENGTH
from ernie_pair.pairs.data.pair_records import PAIR_HELP, RowFlags


@dataclass(frozen=True)
class ModelPath(Options):
    """The model; a base on its own puts it first of all fields."""

    model_path: str = model_folder_option(
        help="a model of pairs, trained, exported or combined: its folder, or the output folder of a run "
        "for its best model"
    )


@dataclass(frozen=True)
class ModelFiles(ModelPath):
    """The model, its input and its output."""

    input_file: str = file_option(
        help="pairs: .tsv, .csv, .xlsx, .jsonl, ... or a set such as lcqmc (its test part)"
    )
    output_file: str = data_option(help="file to write the results to", writes="FILE")


@dataclass(frozen=True, kw_only=True)
class ModelFlags(OverwriteFlag, BatchTokensFlag, KernelFlags, ModelPath):
    """How a model of pairs is used."""

    batch_size: int = devices_option(
        64,
        help="pairs in one forward pass of a trained model",
        unit="pairs",
        at_least=1,
        affects="trained",
        usual=True,
    )
    max_seq_len: int = tokens_option(
        0,
        help="tokens per pair of a trained model, [CLS] and [SEP] included; 0: as in training",
        affects="trained",
        usual=True,
    )
    symmetric: Literal["auto", "none", "average"] = evaluation_option(
        "auto", help="average: score (a, b) and (b, a), and average the logits; auto: as saved with the model"
    )
    model_class: str = model_option(
        "", help="class of your own model, as named in the folder, package.module:Class", affects="trained"
    )
    backend: Literal["auto", "paddle", "onnx", "onnx-int8", "onnx-gpu"] = devices_option(
        "auto", help=f"of an exported model; {BACKEND_HELP}", affects="exported", usual=True
    )
    threads: int = speed_option(0, help=THREADS_HELP, unit="threads", at_least=0)
    device: Literal["auto", "cpu", "gpu", "gpu:N"] = speed_option(
        "auto",
        help="where to run; auto: a trained model on a GPU if there is one, an exported one on the CPU",
        usual=True,
    )

    def __post_init__(self):
        super().__post_init__()
        refuse_short_pairs(self.max_seq_len)


@dataclass(frozen=True, kw_only=True)
class InferenceFlags(ModelFlags, RowFlags, ModelFiles):
    """The base of evaluation and prediction."""


def refuse_flags_of_others(config: ModelFlags, is_exported: bool) -> None:
    """Raise InputError for a flag that has no meaning for the kind of folder that --model_path is."""
    other, kind = ("a trained", "an exported") if is_exported else ("an exported", "a trained")
    fault = f" is for {other} model, and {config.model_path} is {kind} one; leave it out"
    check_unset(config, defaults_of(config, "trained" if is_exported else "exported"), fault)


@dataclass(frozen=True)
class EvaluateConfig(InferenceFlags):
    """Measure a trained model on labelled pairs."""

    EXAMPLE = "--model_path output/best --input_file test.tsv"

    input_file: str = file_option(
        help="labelled pairs: files, folders, or a set such as lcqmc (its dev part)", stdin=(".tsv", ".jsonl")
    )
    output_file: str = data_option(
        "",
        help="JSON file to keep accuracy, f1, loss, rows and whatever else was measured; empty: none",
        writes="FILE",
        usual=True,
    )
    report: str = evaluation_option(
        "",
        help="a folder for report.json, report.html and errors.tsv; empty: none",
        writes="FOLDER",
        usual=True,
    )
    at_precision: float = classes_option(
        0.95, help="report the threshold that gives this precision, and its recall", above=0, at_most=1
    )
    calibrate_on: str = classes_option(
        "",
        help="labelled pairs to fit the temperature on; empty: use the model's temperature; if it has none, "
        "fit on input_file",
        reads="FILE",
        usual=True,
    )
    tune_on: str = classes_option(
        "",
        help="labelled pairs to choose the thresholds on; empty: those of --calibrate_on, else input_file",
        reads="FILE",
        usual=True,
    )
    save_temperature: Union[bool, Literal["auto"]] = classes_option(
        False,
        help="write the temperature to calibration.json beside the model, for all later predictions; needs "
        "--calibrate_on; auto: unless it is at the end of its range",
        usual=True,
        only_with="calibrate_on",
    )
    save_threshold: bool = classes_option(
        False,
        help="write the threshold of --tune_for to calibration.json; needs --tune_on or --calibrate_on",
        usual=True,
    )
    tune_for: Literal["precision", "f1", "accuracy"] = classes_option(
        "precision",
        help="what --save_threshold chooses for: the precision of --at_precision, the best F1 or accuracy",
    )
    threshold: Optional[float] = classes_option(
        None,
        help="for two classes: measure as predict --threshold decides; none: as saved with the model",
        at_least=0,
        at_most=1,
        usual=True,
    )
    query: str = data_option(
        "", help="for a ranking model: the column that identifies the query of a row; empty: the first text"
    )
    label_map: str = data_option(
        "",
        help="the classes of the model that the words of labels mean, for example 0=different,1=same; empty: "
        "its names and numbers, known words",
        affects="classes",
        usual=True,
    )
    model_name_or_path: str = model_folder_option(
        "",
        help="of two classes: the model that training began from, measured on input_file as well, by AUC, of "
        "an encoder that of its similarities: what training cost on general pairs; empty: none",
        affects="classes",
        usual=True,
    )
    swap: bool = evaluation_option(
        True, help="also score every pair in the other order, to count the predictions that flip"
    )
    robustness: str = classes_option(
        "",
        help="perturbed pairs to measure too: all, or some of typo, homophone, negation, entity, order, "
        "filler; empty: none",
        needs=dict.fromkeys(("all", "homophone"), {"pypinyin": ""}),
        usual=True,
    )
    robustness_rows: int = evaluation_option(
        2000, help="maximum rows of each kind; 0: all", unit="rows", at_least=0
    )
    robustness_file: str = evaluation_option(
        "",
        help="file to write the perturbed pairs to: .tsv, .csv, .xlsx, .parquet or .jsonl; empty: none",
        writes="FILE",
        only_with="robustness",
    )
    bootstrap: int = evaluation_option(
        1000,
        help="bootstrap resamples for the confidence intervals; 0: no intervals",
        unit="resamples",
        at_least=0,
    )
    seed: int = evaluation_option(1234, help="seed of the resamples and of the perturbed pairs", at_least=0)
    worst_rows: int = evaluation_option(
        5000,
        help="maximum number of wrong rows in errors.tsv and on the page, the worst first",
        unit="rows",
        at_least=0,
    )

    def __post_init__(self):
        super().__post_init__()
        if self.save_threshold and not (self.tune_on or self.calibrate_on):
            raise InputError(
                "--save_threshold true does not say which pairs to choose the threshold on; give them with "
                "--tune_on FILE"
            )
        if self.save_threshold and self.threshold is not None:
            raise InputError(
                f"--threshold {self.threshold} measures at that threshold, and --save_threshold true chooses "
                "one; leave one of them out"
            )


@dataclass(frozen=True)
class PredictConfig(RayFlags, InferenceFlags):
    """Predict the class of every pair of a file, labelled or not."""

    EXAMPLE = "--model_path output/best --input_file pairs.tsv --output_file predictions.tsv"

    input_file: str = file_option(
        help="pairs: .tsv, .csv, .xlsx, .jsonl, ... or a set such as lcqmc (its test part)",
        stdin=(".tsv", ".jsonl"),
        unless="pair",
    )
    output_file: str = data_option(
        help="file to write, a row per input row: .tsv, .csv, .xlsx, .jsonl or .parquet",
        stdout=True,
        unless="pair",
        writes="FILE",
    )
    columns: str = data_option(
        "answers,input",
        help="columns of output_file, in their order: answers (index, prediction, ...), input (all of "
        "input_file), or their names",
    )
    pair: Optional[list[str]] = data_option(None, help=PAIR_HELP, values=2)
    scores: bool = classes_option(
        False, help="add the probability of every class, calibrated if the model is", usual=True
    )
    threshold: Optional[float] = classes_option(
        None,
        help="for two classes: predict 1 at this probability or above; none: as saved with the model",
        at_least=0,
        at_most=1,
    )


@dataclass(frozen=True)
class ExplainConfig(ModelFlags):
    """Tell why a pair has its score: what both texts share, the score without each word, training pairs."""

    EXAMPLE = "--model_path output/best --text_a 怎么注销信用卡 --text_b 如何注销信用卡"
    NEEDS = {"rjieba": "", "bm25s": ""}

    text_a: str = data_option(help="the first text of the pair")
    text_b: str = data_option(help="its second text")
    train_file: str = file_option(
        "",
        help="the pairs that the model was trained on, of which the nearest are shown; empty: those that its "
        "folder names, if they are there as they were",
    )
    output_file: str = data_option("", help="JSON file to write all of it to; empty: none", writes="FILE")

    def __post_init__(self):
        super().__post_init__()
        for name in ("text_a", "text_b"):
            if is_blank(getattr(self, name)):
                raise InputError(f"--{name} has no visible character; fill it in")


def refuse_short_pairs(max_seq_len: int) -> None:
    """Raise InputError for a length without room for two texts; 0 is that of the training."""
    if max_seq_len and max_seq_len < MIN_PAIR_LENGTH:
        raise InputError(
            f"--max_seq_len {max_seq_len} is below {MIN_PAIR_LENGTH}: no room for two texts; use 128, or 0 "
            "for that of the training"
        )


NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")  # of folders and of pictures, whose font lacks Chinese
RULE = "a name has only a to z, A to Z, 0 to 9, _ . and -, at most 40 of them"


def parse_named_models(flag: str, text: str, example: str) -> dict[str, str]:
    """Return {name: model} of ``text``, words apart by blanks; quotes, as of a shell, keep a blank in a word.

    ``flag`` and ``example``, how it is written right, are said in errors. Raises InputError naming the word
    that is wrong.
    """
    found: dict[str, str] = {}
    try:
        words = shlex.split(text)
    except ValueError:
        raise InputError(
            f"--{flag} {text}: a quote, or a backslash, has no counterpart; {example}, and a path with "
            "blanks in quotes: 'a=my models/small'"
        ) from None
    for word in words:
        name, equals, path = word.partition("=")
        if not (equals and path and NAME.fullmatch(name)) or name in found:
            rule = "" if not name or NAME.fullmatch(name) else f" ({RULE})"
            raise InputError(f"--{flag} {text}: {word} is not NAME=MODEL with a new name{rule}; {example}")
        found[name] = path
    return found
