"""Measure the speed and the memory of a part of the package on this machine, as a table.

python scripts/bench.py data --vocab_file ernie/vocab.txt          the data tools
python scripts/bench.py pretrain --vocab_file ernie/vocab.txt      the overhead of seeds, logs, checks ...
python scripts/bench.py pair --pair_file lcqmc/train.tsv --vocab_file ernie/vocab.txt     a pair classifier
python scripts/bench.py padding --vocab_file ernie/vocab.txt            what padding costs
python scripts/bench.py serve --model exported --pair_file dev.tsv      the latency of the service

Each figure is the median of several runs, and models have random weights of the requested size. MB are 10^6
bytes of plain text, without JSON around it. A second figure, (by CPU time), is what the first would be on an
otherwise idle machine. Steps are compared with those of transformers by bench_side_by_side.py.
"""

import re
import tempfile
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Literal

from ernie_pair.core.cli.cli import run_command
from ernie_pair.core.cli.options import (
    Options,
    data_option,
    devices_option,
    evaluation_option,
    model_option,
    option,
)
from ernie_pair.core.errors import InputError
from ernie_pair.runtime.device import default_device

MODEL = "hidden_size num_hidden_layers max_seq_len batch_size steps runs device"
READ_BY = {  # the flags of a part; the first ones are required
    "data": (1, "vocab_file text_path speed_megabytes megabytes workers million_tokens runs"),
    "pretrain": (1, f"vocab_file {MODEL}"),
    "pair": (2, f"vocab_file pair_file rows {MODEL}"),
    "padding": (1, f"vocab_file pair_file rows {MODEL}"),
    "serve": (2, "model pair_file backends clients seconds threads max_wait_ms device"),
}
USUAL = {  # sizes that are not given
    "pretrain": {"max_seq_len": 128, "batch_size": 8, "steps": 100},
    "pair": {"max_seq_len": 64, "batch_size": 64, "steps": 60},
    "padding": {"max_seq_len": 512, "batch_size": 64},
}
LEAST_STEPS = 40


@dataclass(frozen=True)
class BenchConfig(Options):
    """Measure a part of the package; nothing is left on the disk."""

    EXAMPLE = "data --vocab_file ernie/vocab.txt"

    part: str = option(help="the part of the package", positional=True, choices=tuple(READ_BY))
    vocab_file: str = data_option("", help="the vocab.txt of the model")
    pair_file: str = data_option("", help="labelled pairs: text TAB text TAB label")
    text_path: str = data_option("", help="text, an empty line between documents; empty: the built-in sample")
    model: str = model_option("", help="serve: the folder that ernie-pair export made")
    speed_megabytes: int = data_option(10, help="MB of text for the speed", unit="MB", at_least=1)
    megabytes: int = data_option(
        20, help="MB of text for the memory, repeated; 0: leave it out", unit="MB", at_least=0
    )
    workers: int = devices_option(2, help="processes for the memory measurement", at_least=1)
    million_tokens: int = data_option(100, help="million tokens of the opened corpus", at_least=1)
    rows: int = data_option(20_000, help="pairs to train on and to predict", at_least=256)
    hidden_size: int = model_option(312, help="width of the model", at_least=1)
    num_hidden_layers: int = model_option(4, help="its layers", unit="layers", at_least=1)
    max_seq_len: int = data_option(0, help="tokens of a pair or sample; 0: 64 or 128", at_least=0)
    batch_size: int = data_option(0, help="pairs or samples of a step; 0: 64 or 8", at_least=0)
    steps: int = evaluation_option(
        0, help="steps of one measurement, at least 40; 0: 60 of pairs, 100 of samples", at_least=0
    )
    runs: int = evaluation_option(
        3, help="runs, of which the median is shown; memory is measured once", at_least=1
    )
    backends: str = devices_option(
        "onnx", help="backends with spaces between, :bf16 behind one for its precision"
    )
    clients: str = devices_option("1 4 16", help="numbers of concurrent clients")
    seconds: float = evaluation_option(5.0, help="time of one measurement", unit="seconds", above=0)
    threads: int = devices_option(0, help="threads of one forward pass; 0: one per core", at_least=0)
    max_wait_ms: float = devices_option(5.0, help="as in ernie-pair serve", unit="ms", at_least=0)
    device: Literal["cpu", "gpu"] = devices_option(default_device(), help="where to run")

    def __post_init__(self):
        super().__post_init__()
        required, names = READ_BY[self.part][0], READ_BY[self.part][1].split()
        for item in fields(self)[1:]:
            if getattr(self, item.name) != item.default and item.name not in names:
                raise InputError(f"--{item.name} is not read by {self.part}; leave it out")
        for name in names[:required]:
            if not getattr(self, name):
                raise InputError(f"--{name} is missing: {self.part} reads it")
        if 0 < self.steps < LEAST_STEPS:
            raise InputError(f"--steps {self.steps} are too few; use {LEAST_STEPS} or more")
        for number in self.clients.split() or [""]:
            if not re.fullmatch("[1-9][0-9]{0,3}", number):
                raise InputError(f"--clients takes numbers from 1 to 9999, not '{number[:40]}'; use '1 4 16'")


def bench(config: BenchConfig) -> None:
    usual = USUAL.get(config.part, {})
    config = replace(config, **{name: size for name, size in usual.items() if not getattr(config, name)})
    table = import_module(f"tables.{config.part}")
    with tempfile.TemporaryDirectory(prefix="bench.") as folder:
        for row in table.measured(config, Path(folder)):
            print(f"{row.what:<66}{row.figure:>26}   {row.goal}".rstrip(), flush=True)


if __name__ == "__main__":
    run_command(bench, BenchConfig)
