"""The flags of ernie-pair export."""

from dataclasses import dataclass
from typing import Literal, Optional, Tuple

from ernie_pair.core.cli.options import (
    Options,
    OverwriteFlag,
    classes_option,
    data_option,
    evaluation_option,
    file_option,
    model_folder_option,
    model_option,
    precision_option,
    tokens_option,
)
from ernie_pair.core.errors import InputError
from ernie_pair.core.installation import TRAINING
from ernie_pair.inference.exported_model import GPU
from ernie_pair.pairs.config.ask_config import refuse_short_pairs
from ernie_pair.pairs.data.pair_records import ColumnFlags


@dataclass(frozen=True)
class ModelPath(Options):
    """The model to export; a base on its own puts it first of all fields."""

    model_path: str = model_folder_option(
        help="a trained model: its folder, or the output folder of a run for its best model"
    )


@dataclass(frozen=True)
class ExportFlags(ColumnFlags, OverwriteFlag):
    """How to export a folder that runs without the training code."""

    NEEDS = TRAINING

    output_dir: str = data_option(help="folder to create", writes="FOLDER")
    format: Literal["paddle", "onnx", "both", "onnx-gpu"] = model_option(
        "paddle",
        help="Paddle Inference, ONNX, or both; onnx-gpu: ONNX, and a file of operators that only a GPU has",
        needs=dict.fromkeys(("onnx", "both", "onnx-gpu"), {"onnxruntime": ""}),
    )
    max_seq_len: int = tokens_option(
        0, help="maximum tokens per pair; longer pairs are truncated; 0: as in training"
    )
    threshold: Optional[float] = classes_option(
        None,
        help="for two classes: predict 1 at this probability or above; none: as saved with the model",
        at_least=0,
        at_most=1,
    )
    symmetric: Literal["auto", "none", "average"] = evaluation_option(
        "auto", help="average: score (a, b) and (b, a), and average the logits; auto: as saved with the model"
    )
    quantize: Literal["none", "int8"] = precision_option(
        "none",
        help="int8: also write model.int8.onnx, next to the float32 model, for --backend onnx-int8",
        only_with="format=onnx|both|onnx-gpu",
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = precision_option(
        "auto",
        help="of the file for a GPU, where auto is fp16; bf16 with another format: also evaluate the Paddle "
        "model with --precision bf16, and record the result",
    )
    quantize_file: str = precision_option(
        "",
        help="labelled pairs to evaluate int8, bf16 and fp16 on; without labels, the share of pairs that "
        "keep their class is used",
        reads="FILE",
    )
    max_accuracy_drop: float = precision_option(
        0.01,
        help="export nothing if int8, bf16 or fp16 loses more accuracy (for regression: Spearman) than this",
        at_least=0,
        at_most=1,
    )
    triton: bool = data_option(
        False,
        help="also write triton/, a model repository for Triton's ONNX Runtime",
        only_with="format=onnx|both|onnx-gpu",
    )
    docker: bool = data_option(
        False,
        help="also write a Dockerfile and a wheel, for an image that serves the ONNX model",
        only_with="format=onnx|both|onnx-gpu",
    )
    wheel: str = file_option(
        "",
        help="the wheel of ernie-pair for --docker true; empty: built from the sources here",
        only_with="docker",
    )
    model_class: str = model_option(
        "", help="class of your own model, as named in the folder, package.module:Class"
    )

    def __post_init__(self):
        super().__post_init__()
        refuse_short_pairs(self.max_seq_len)
        unfit = {"onnx": ("bf16", "fp16"), GPU: ()}.get(self.format, ("fp16",))
        if self.precision in unfit:
            cure = "fp32, or --format both" if self.precision == "bf16" else "fp32, or --format onnx-gpu"
            raise InputError(f"--precision {self.precision} is not of --format {self.format}; use {cure}")
        if self.quantize_file and not self.lower_precisions:
            raise InputError(
                "--quantize_file is to judge a lower precision; pass --quantize int8 or --precision bf16 too"
            )

    @property
    def backends(self) -> Tuple[str, ...]:
        """Return the formats to write: some of paddle, onnx and onnx-gpu."""
        return {"both": ("paddle", "onnx"), GPU: ("onnx", GPU)}.get(self.format, (self.format,))

    @property
    def gpu_precision(self) -> str:
        """Return the precision of the file for a GPU."""
        return "fp16" if self.precision == "auto" else self.precision

    @property
    def lower_precisions(self) -> str:
        """Return what is judged beside float32, in words; empty for nothing."""
        lower = self.gpu_precision if self.format == GPU else self.precision
        asked = {"int8": self.quantize == "int8", lower: lower in ("bf16", "fp16")}
        return " and ".join(name for name, is_asked in asked.items() if is_asked)


@dataclass(frozen=True)
class ExportConfig(ExportFlags, ModelPath):
    """Make a folder that runs without the training code, and check that it gives the model's predictions."""

    EXAMPLE = "--model_path output/best --output_dir exported --format onnx"
