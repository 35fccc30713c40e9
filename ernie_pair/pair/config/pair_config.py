"""The flags of pair training, evaluation and prediction."""

import math
import re
from dataclasses import dataclass
from typing import Literal, Optional

from data_tools.base.cli import option, refuse_empty
from data_tools.base.errors import InputError
from data_tools.text.lines import ENCODINGS
from ernie_pair.device.device import default_device
from ernie_pair.inference.softmax import refuse_no_threshold
from ernie_pair.inference.token_rows import SPECIALS_PER_PAIR
from ernie_pair.pair.config.encoder_flags import EncoderConfig
from ernie_pair.pair.config.step_flags import UpdateConfig
from ernie_pair.pair.data.pair_records import BAD_ROW_HELP, ENCODING_HELP
from ernie_pair.pair.metrics import LOWER_IS_BETTER, METRICS

LARGEST_SEED = 2**31 - 1
METRIC_NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")


@dataclass(frozen=True)
class OutputConfig:
    """A base by itself, which makes its field the first of all: PairConfig("output") is understood."""

    output_dir: str = option(help="checkpoints, the best model, metrics and VisualDL logs go here")


@dataclass(frozen=True)
class PairConfig(EncoderConfig, UpdateConfig, OutputConfig):
    """How a pair classifier is trained; what it is trained on, `TrainConfig` or `PairTrainer` says."""

    from_scratch: bool = option(False, help="start from random weights: config.json and vocab.txt are enough")
    text_a: str = option("", help="the column of the first text; empty: a known name, or the first column")
    text_b: str = option("", help="the column of the second text")
    label: str = option("", help="the column of the label")
    encoding: Literal[ENCODINGS] = option("utf-8", help=ENCODING_HELP)
    on_bad_row: Literal["stop", "skip"] = option("stop", help=BAD_ROW_HELP)
    label_map: str = option("", help="names of the classes: 0=different,1=same; empty: as the model says")
    cache_dir: str = option("", help="a folder for the encoded pairs; empty: OUTPUT_DIR/cache")
    streaming: bool = option(False, help="never hold the whole training file in memory; needs --max_steps")
    shuffle_buffer: int = option(10_000, help="rows of a streamed file that are shuffled together")
    bucket: bool = option(True, help="batches of pairs of like length, which pads little")
    epochs: int = option(3, help="passes over the training pairs")
    max_steps: int = option(0, help="updates in all; 0: as many as --epochs takes")
    batch_size: int = option(64, help="pairs per process in one forward pass")
    max_seq_len: int = option(128, help="tokens per pair, [CLS] and [SEP] included")
    learning_rate: float = option(5e-5, help="highest learning rate, at the end of warm-up")
    warmup_rate: float = option(0.1, help="share of the updates spent on warm-up")
    weight_decay: float = option(0.01, help="decay of every weight except biases and norms")
    dropout: float = option(0.1, help="dropout of hidden states, attention weights and classifier")
    eval_freq: int = option(100, help="updates between evaluations; each epoch's end is evaluated as well")
    logging_freq: int = option(10, help="updates between log lines")
    checkpoint_steps: int = option(500, help="updates between checkpoints")
    seed: int = option(1234, help="of weights, data order and dropout")
    best_metric: Literal[METRICS] = option("accuracy", help="of the dev file; chooses the best model")
    greater_is_better: Optional[bool] = option(
        None, help="is a best_metric that is greater better? none: yes, unless it is the loss"
    )
    early_stopping_patience: int = option(
        0, help="end after that many evaluations in a row without a better best_metric; 0: never"
    )
    early_stopping_min_delta: float = option(0.0, help="what is better by no more than this is not")
    fresh_start: bool = option(
        False, help="begin anew: what an earlier run left in output_dir is renamed; leave it out to resume"
    )
    allow_change: str = option("", help="what may differ from the checkpoint's run: learning_rate,seed")
    on_nan: Literal["stop", "skip"] = option(
        "stop", help="a loss that is not finite ends the run, or its update is left out"
    )
    device: Literal["cpu", "gpu"] = option(default_device(), help="where to run")

    def __post_init__(self):
        refuse_empty(self, "output_dir")
        for name in ("epochs", "batch_size", "eval_freq", "logging_freq", "checkpoint_steps"):
            _refuse_below(self, name, 1)
        _refuse_below(self, "shuffle_buffer", 1)
        for name in ("max_steps", "seed", "weight_decay"):
            _refuse_below(self, name, 0)
        for name in ("early_stopping_patience", "early_stopping_min_delta"):
            _refuse_below(self, name, 0)
        if not METRIC_NAME.fullmatch(self.best_metric):
            raise InputError(
                f"--best_metric {self.best_metric} names a folder: use letters, digits, _ and - alone"
            )
        for name in ("warmup_rate", "dropout"):
            _refuse_outside_one(self, name)
        if self.streaming and not self.max_steps:
            raise InputError("--streaming true does not know the number of rows; pass --max_steps")
        if self.seed > LARGEST_SEED:
            raise InputError(f"--seed {self.seed} is above {LARGEST_SEED}; use a smaller one")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise InputError(f"--learning_rate {self.learning_rate} is not above 0; use 5e-5, for example")
        _refuse_short_pairs(self)
        self.refuse_update()
        self.refuse_encoder()

    @property
    def lower_is_better(self) -> bool:
        """Of ``best_metric``."""
        if self.greater_is_better is None:
            return self.best_metric in LOWER_IS_BETTER
        return not self.greater_is_better


@dataclass(frozen=True)
class TrainConfig(PairConfig):
    """Fine-tune ErnieGram, ERNIE, BERT or their like on sentence pairs. Start it again to resume."""

    model_name_or_path: str = option(help="a built-in name (ernie-gram-zh, ernie-1.0) or a model folder")
    train_file: str = option(help="labelled pairs: .tsv, .csv, .json, .jsonl, or a set such as lcqmc")
    dev_file: str = option(help="labelled pairs that choose the best model, a file or a set")


@dataclass(frozen=True)
class AskConfig:
    """What is asked of a trained model; the base of evaluation and prediction."""

    model_path: str = option(help="the folder of a trained model, OUT/best-accuracy-0.8962 for example")
    input_file: str = option(help="pairs: .tsv, .csv, .json, .jsonl, or a set such as lcqmc (its test part)")
    output_file: str = option(help="the results go here")
    text_a: str = option("", help="the column of the first text; empty: a known name, or the first column")
    text_b: str = option("", help="the column of the second text")
    label: str = option("", help="the column of the label")
    encoding: Literal[ENCODINGS] = option("utf-8", help=ENCODING_HELP)
    on_bad_row: Literal["stop", "skip"] = option("stop", help=BAD_ROW_HELP)
    batch_size: int = option(64, help="pairs in one forward pass")
    max_seq_len: int = option(0, help="tokens per pair, [CLS] and [SEP] included; 0: as in training")
    symmetric: Literal["auto", "none", "average"] = option(
        "auto", help="average: score (a, b) and (b, a) and take the mean of the logits; auto: as it was tuned"
    )
    overwrite: bool = option(False, help="replace another result that is there")
    device: Literal["cpu", "gpu"] = option(default_device(), help="where to run")

    def __post_init__(self):
        refuse_empty(self, "output_file")
        _refuse_below(self, "batch_size", 1)
        if self.max_seq_len:
            _refuse_short_pairs(self)


@dataclass(frozen=True)
class EvaluateConfig(AskConfig):
    """Measure a trained model on labelled pairs."""

    input_file: str = option(help="labelled pairs: a file, or a set such as lcqmc (its dev part)")
    output_file: str = option(help="JSON goes here: accuracy, f1, loss, rows and what else was measured")
    report: str = option("", help="a folder for report.json, report.html and errors.tsv; empty: none")
    at_precision: float = option(0.95, help="which threshold gives this precision, with which recall?")
    calibrate_on: str = option(
        "", help="labelled pairs to fit the temperature on; empty: that of the model, else input_file itself"
    )
    tune_on: str = option(
        "", help="labelled pairs to choose the thresholds on; empty: those of --calibrate_on, else input_file"
    )
    save_temperature: bool = option(
        False,
        help="write it to calibration.json beside the model for all that predict; needs --calibrate_on",
    )
    save_threshold: bool = option(
        False, help="write the threshold of --at_precision there too; needs --tune_on or --calibrate_on"
    )
    bootstrap: int = option(1000, help="resamples for the confidence intervals; 0: no intervals")
    swap: bool = option(True, help="score every pair the other way round too, to see what flips")
    worst_rows: int = option(200, help="most wrong rows that errors.tsv holds")
    seed: int = option(1234, help="of the resamples")

    def __post_init__(self):
        super().__post_init__()
        for name in ("bootstrap", "worst_rows", "seed"):
            _refuse_below(self, name, 0)
        if not 0 < self.at_precision <= 1:
            raise InputError(f"--at_precision {self.at_precision} is not in (0, 1]; use 0.95, for example")
        if self.save_temperature and not self.calibrate_on:
            raise InputError(
                "--save_temperature true: a temperature fitted on the file that is judged is not saved; give "
                "other labelled pairs with --calibrate_on FILE"
            )
        if self.save_threshold and not (self.tune_on or self.calibrate_on):
            raise InputError(
                "--save_threshold true does not say which pairs to choose the threshold on; give them with "
                "--tune_on FILE"
            )


@dataclass(frozen=True)
class PredictConfig(AskConfig):
    """Predict the class of every pair of a file, labelled or not."""

    output_file: str = option(help="index TAB prediction goes here, a row per input row")
    scores: bool = option(False, help="add the probability of every class, calibrated if the model is")
    threshold: Optional[float] = option(
        None, help="of two classes: predict 1 from this probability on; none: as calibration.json says"
    )

    def __post_init__(self):
        super().__post_init__()
        refuse_no_threshold(self.threshold)


def _refuse_below(config, name: str, least: int) -> None:
    value = getattr(config, name)
    if not (math.isfinite(value) and value >= least):
        raise InputError(f"--{name} {value} is below {least} or no number; use {least} or more")


def _refuse_outside_one(config, name: str) -> None:
    value = getattr(config, name)
    if not 0 <= value < 1:
        raise InputError(f"--{name} {value} is not in [0, 1); use 0.1, for example")


def _refuse_short_pairs(config) -> None:
    least = SPECIALS_PER_PAIR + 2  # a token of each text
    if config.max_seq_len < least:
        raise InputError(
            f"--max_seq_len {config.max_seq_len} is below {least}: no room for two texts; use 128"
        )
