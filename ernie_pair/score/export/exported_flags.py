"""The flags of the commands that run an exported model."""

from dataclasses import dataclass
from typing import Literal

from data_tools.options.options import Options, option, refuse_empty
from data_tools.text.text_files import ENCODINGS
from ernie_pair.inference.backends import BACKEND_HELP, PRECISION_HELP, THREADS_HELP
from ernie_pair.pair.data.pair_records import BAD_ROW_HELP, ENCODING_HELP


@dataclass(frozen=True)
class ExportedFlags(Options):
    """How an exported model is used; the base of the commands that use one."""

    model: str = option(help="the folder that ernie-pair export made", group="model")
    input_file: str = option(help="pairs: .tsv, .csv, .json or .jsonl", group="data")
    output_file: str = option(help="file to write the results to", group="data")
    symmetric: Literal["auto", "none", "average"] = option(
        "auto",
        help="average: score (a, b) and (b, a) and take the mean of the logits; auto: as exported",
        group="evaluation",
    )
    backend: Literal["auto", "paddle", "onnx", "onnx-int8"] = option(
        "auto", help=BACKEND_HELP, group="devices"
    )
    precision: Literal["fp32", "bf16", "fp16"] = option("fp32", help=PRECISION_HELP, group="precision")
    device: Literal["cpu", "gpu"] = option("cpu", help="where to run", group="devices")
    threads: int = option(
        0,
        help=THREADS_HELP,
        group="devices",
        unit="threads",
        at_least=0,
    )
    text_a: str = option(
        "", help="the column of the first text; empty: found by its name or position", group="data"
    )
    text_b: str = option(
        "", help="the column of the second text; empty: found by its name or position", group="data"
    )
    overwrite: bool = option(False, help="replace an existing result", group="data")
    encoding: str = option("utf-8", help=ENCODING_HELP, group="data", choices=ENCODINGS)
    on_bad_row: Literal["stop", "skip"] = option("stop", help=BAD_ROW_HELP, group="data")

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_file")
