"""The flags of pair training."""

import re
from dataclasses import dataclass
from typing import Literal, Optional

from data_tools.files.errors import InputError
from data_tools.options.options import Options, option
from ernie_pair.inference.token_rows import SHORTEST_PAIR
from ernie_pair.models.spec import FAMILIES
from ernie_pair.pair.config.run_flags import RowFlags, StepFlags
from ernie_pair.pair.config.target_flags import TargetFlags
from ernie_pair.pair.targets.metrics import BALANCED
from ernie_pair.pair.targets.target_metrics import ALL_METRICS, AUTO, LOWER_IS_BETTER
from ernie_pair.train.run_flags import TrainingFlags


@dataclass(frozen=True)
class EncoderFlags(Options):
    """The model that pairs are trained with."""

    model_type: Optional[str] = option(
        None,
        help="model family; none: taken from config.json",
        group="model",
        choices=FAMILIES,
        resume="fixed",
    )
    model_class: str = option(
        "", help="your own subclass of PairClassifier, package.module:Class", group="model", resume="fixed"
    )
    pooling: Literal["cls", "mean"] = option(
        "cls",
        help="input of the classifier: the pooled output of the encoder, or the mean of its hidden states",
        group="model",
        resume="fixed",
    )


METRIC_NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")


@dataclass(frozen=True)
class PairConfig(TargetFlags, EncoderFlags, StepFlags, RowFlags, TrainingFlags):
    """Settings for training a pair classifier; the data are given in `TrainConfig` or to `PairTrainer`."""

    label_map: str = option(
        "",
        help="names of the classes, for example 0=different,1=same; empty: those of the model",
        group="data",
    )
    cache_dir: str = option("", help="a folder for the encoded pairs; empty: OUTPUT_DIR/cache", group="data")
    streaming: bool = option(
        False, help="never hold the whole training file in memory; needs --max_steps", group="data"
    )
    shuffle_buffer: int = option(
        10_000,
        help="rows of a streamed file to shuffle together",
        group="data",
        unit="pairs",
        at_least=1,
    )
    bucket: bool = option(
        True, help="batch pairs of similar length together, to reduce padding", group="data"
    )
    max_seq_len: int = option(
        128,
        help="tokens per pair, [CLS] and [SEP] included",
        group="data",
        unit="tokens",
        at_least=SHORTEST_PAIR,
        resume="same",
    )
    dropout: float = option(
        0.1,
        help="dropout of hidden states, attention weights and classifier",
        group="model",
        at_least=0,
        below=1,
        resume="same",
    )
    save_format: Literal["paddle", "hf", "both"] = option(
        "paddle",
        help="format of the best model: for PaddleNLP, for transformers (hf), or both (hf in hugging_face/)",
        group="checkpoints",
    )
    best_metric: str = option(
        AUTO,
        help="metric on the dev pairs that chooses the best model; auto: accuracy, for regression mse, for "
        "ranking mrr",
        group="evaluation",
        resume="fixed",
    )
    greater_is_better: Optional[bool] = option(
        None,
        help="whether a greater best_metric is better; none: yes, unless it is the loss or an error",
        group="evaluation",
    )

    def __post_init__(self):
        super().__post_init__()
        if not METRIC_NAME.fullmatch(self.best_metric):
            raise InputError(
                f"--best_metric {self.best_metric} names a folder: use letters, digits, _ and - alone"
            )
        self._refuse_streaming()
        self._refuse_sharded_training()
        if self.rdrop_alpha and not self.dropout:
            raise InputError(
                f"--rdrop_alpha {self.rdrop_alpha} compares two passes that differ by their dropout, and "
                "--dropout 0.0 leaves them equal; use --dropout 0.1, or --rdrop_alpha 0"
            )
        if self.fgm_epsilon and self.freezes_embeddings:
            raise InputError(
                "--fgm_epsilon steps along the gradient of the word embedding, which is frozen; leave "
                "--fgm_epsilon out, or freeze nothing"
            )

    def _refuse_streaming(self) -> None:
        if self.streaming and not self.max_steps:
            raise InputError("--streaming true does not know the number of rows; pass --max_steps")
        for name in ("evaluation_strategy", "save_strategy") if self.streaming else ():
            if getattr(self, name) == "epoch":
                raise InputError(
                    f"--streaming true has no epochs, and --{name} epoch waits for them; use steps"
                )
        if self.streaming and self.class_weights == BALANCED:
            raise InputError(
                "--class_weights balanced counts the labels of all training pairs, and --streaming true "
                "never has them all; give the numbers, 1,2.5 for example"
            )

    def _refuse_sharded_training(self) -> None:
        if self.sharding != "none" and self.device == "cpu":
            raise InputError(
                "--sharding stage2 needs GPUs: Paddle splits the state over NCCL alone; use --sharding none"
            )
        if self.sharding_offload and self.layer_decay != 1:
            raise InputError(
                f"--sharding_offload true updates all weights as one, at one rate, and --layer_decay "
                f"{self.layer_decay} asks for several; leave one of them out"
            )

    @property
    def lower_is_better(self) -> bool:
        """Return whether a lower ``best_metric`` is better."""
        if self.greater_is_better is None:
            return self.best_metric in LOWER_IS_BETTER
        return not self.greater_is_better


@dataclass(frozen=True)
class TrainConfig(PairConfig):
    """Fine-tune ErnieGram, ERNIE, BERT or a similar model on sentence pairs. Start it again to resume."""

    EXAMPLE = "--model_name_or_path ernie-gram-zh --train_file lcqmc --dev_file lcqmc --output_dir output"

    model_name_or_path: str = option(
        help="a built-in name (ernie-gram-zh, ernie-1.0) or a model folder", group="model"
    )
    train_file: str = option(
        help="labelled pairs: .tsv, .csv, .json, .jsonl, or a set such as lcqmc", group="data"
    )
    dev_file: str = option(help="labelled pairs for choosing the best model: a file or a set", group="data")
    best_metric: str = option(
        AUTO,
        help="metric on the dev file that chooses the best model; auto: accuracy, for regression mse, for "
        "ranking mrr",
        group="evaluation",
        choices=(*ALL_METRICS, AUTO),
        resume="fixed",
    )
