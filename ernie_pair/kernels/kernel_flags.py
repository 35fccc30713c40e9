"""The flags of kernels and of precision, the same for every command that computes with a model."""

from dataclasses import dataclass
from typing import Literal

from data_tools.base.errors import InputError
from data_tools.base.options import Options, option

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # precision: its type in Paddle


@dataclass(frozen=True)
class KernelFlags(Options):
    """A part of the flags of commands that compute."""

    kernels: Literal["auto", "fused", "plain"] = option(
        "auto",
        help="on a CPU: faster fused layers, where the model and the processor allow; plain: Paddle's own "
        "layers",
        group="devices",
    )
    precision: Literal["fp32", "bf16", "fp16"] = option(
        "fp32",
        help="precision of matrix products; bf16 on a CPU needs AVX512-BF16; on a GPU, half precision is for "
        "evaluation and prediction, and training has --use_amp",
        group="precision",
    )

    def __post_init__(self):
        super().__post_init__()
        if self.precision != "fp32" and self.kernels == "plain":
            raise InputError(
                f"--precision {self.precision} is not supported by --kernels plain, which on a CPU are "
                "Paddle's own, in float32; leave one of them out"
            )
