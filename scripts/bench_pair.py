"""Measure the speed of training and prediction of a pair classifier on this machine, as a table.

python scripts/bench_pair.py --pair_file lcqmc/train.tsv --vocab_file ernie/vocab.txt

The model has random weights of the requested size. Each figure is the median of several runs;
training is measured without its first logged steps.

python scripts/bench_pair.py --pair_file lcqmc/train.tsv --vocab_file ernie/vocab.txt \
    --peer_python peer/bin/python --output pair.json

With a peer, or a file for the figures, only the steps of training are measured, in every way that this
machine supports, in turn and on the same batches.
"""

import logging
import resource
import shutil
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Iterator

from bench_run import SCRIPTS, train_events
from bench_table import Row, deterministic_row, print_rows, seconds_of, write_model
from side_by_side.cases import Case, case_of_lanes, compare
from side_by_side.flags import SideBySideFlags
from side_by_side.pair_case import PairShape, pair_lanes, pair_settings

from data_tools.files.errors import InputError
from data_tools.options.cli import run_command
from data_tools.options.options import option
from data_tools.text.wordpiece import WordPiece
from ernie_pair.models.labels import Labels
from ernie_pair.pair.config.ask_config import PredictConfig
from ernie_pair.pair.config.pair_config import TrainConfig
from ernie_pair.pair.data.encoded_pairs import StreamRules, streamed_steps
from ernie_pair.pair.data.pair_records import Columns
from ernie_pair.pair.data.pair_source import PairSource
from ernie_pair.pair.train.datasets import open_pair_data
from ernie_pair.pair.train.initial_model import open_initial_model
from ernie_pair.runtime.processes.world import World
from ernie_pair.score.evaluation.predict_pair import predict_pair

SCRIPT = "train_pair.py"
DEV_ROWS, STREAMED_COPIES, UPDATES_PER_LINE = 1000, 20, 10
# In a separate process, whose peak memory is that of the stream.
STREAM = "import sys; sys.path.insert(0, sys.argv[1]); import bench_pair; bench_pair.stream(*sys.argv[2:])"


@dataclass(frozen=True)
class BenchConfig(SideBySideFlags):
    """Measure training and prediction; nothing is left on the disk."""

    EXAMPLE = "--pair_file lcqmc/train.tsv --vocab_file ernie/vocab.txt"
    OF_LANES = (*SideBySideFlags.OF_LANES, "full_pairs")
    WITHOUT_LANES = ("rows", "updates", "runs")

    pair_file: str = option(help="labelled pairs: text TAB text TAB label", group="data")
    vocab_file: str = option(help="the vocab.txt of the model", group="data")
    rows: int = option(
        20_000,
        help="pairs to train on and to predict",
        group="data",
        unit="pairs",
        at_least=2 * DEV_ROWS,
    )
    hidden_size: int = option(312, help="width of the model", group="model")
    num_hidden_layers: int = option(4, help="its layers", group="model", unit="layers")
    batch_size: int = option(
        64, help="pairs in one forward pass", group="optimisation", unit="pairs", at_least=1
    )
    max_seq_len: int = option(64, help="tokens per pair", group="data", unit="tokens")
    updates: int = option(
        60,
        help="steps of one measurement of training",
        group="evaluation",
        unit="steps",
        at_least=3 * UPDATES_PER_LINE,
    )
    full_pairs: bool = option(
        False, help="side by side: join texts until every pair has max_seq_len tokens", group="data"
    )
    runs: int = option(
        3, help="measurements of each kind, of which the median is shown", group="evaluation", at_least=1
    )

    @property
    def shape(self) -> PairShape:
        """Return the case that is measured side by side."""
        sizes = (self.num_hidden_layers, self.hidden_size, self.batch_size)
        return PairShape(*sizes, full=self.full_pairs, max_seq_len=self.max_seq_len)


def pair_case(config, shape: PairShape) -> Case:
    """Return the case of training pairs, for flags that have a pair_file and a vocab_file."""
    lanes = partial(pair_lanes, config, shape, pair_file=config.pair_file, vocab_file=config.vocab_file)
    return case_of_lanes(config, shape.name, f"one batch of {shape.batch_size} pairs", lanes)


def bench(config: BenchConfig) -> None:
    """Print a line as soon as its figure is known."""
    if config.is_side_by_side:
        compare(config, [pair_case(config, config.shape)])
        return
    logging.disable(logging.WARNING)  # whether something is wrong with the pairs does not matter here
    with tempfile.TemporaryDirectory(prefix="bench_pair.") as name:
        folder = Path(name)
        with redirect_stdout(StringIO()):
            _prepare(config, folder)
        print_rows(_measured(config, folder))


def _measured(config: BenchConfig, folder: Path) -> Iterator[Row]:
    yield Row(f"{config.rows} pairs", f"median of {config.runs}", "goal")
    yield from _first_batch(config, folder)
    yield from _training(config, folder)
    yield from _deterministic(config, folder)
    yield from _prediction(config, folder)
    yield from _streaming(config, folder)


def _prepare(config: BenchConfig, folder: Path) -> None:
    """Write a model folder, and the first rows of the file as training and dev pairs."""
    write_model(
        folder / "model", config.vocab_file, "ernie_gram", config.hidden_size, config.num_hidden_layers
    )
    with open(config.pair_file, encoding="utf-8") as file:
        lines = list(islice(file, config.rows + DEV_ROWS))
    if len(lines) < config.rows + DEV_ROWS:
        raise InputError(f"{config.pair_file} has {len(lines)} rows; pass --rows {len(lines) - DEV_ROWS}")
    (folder / "train.tsv").write_text("".join(lines[: config.rows]), encoding="utf-8")
    (folder / "dev.tsv").write_text("".join(lines[config.rows :]), encoding="utf-8")


def _settings(config: BenchConfig, folder: Path, output: str, **changes) -> dict:
    given = pair_settings(folder, config.shape, config.device, config.updates, UPDATES_PER_LINE)
    return {**given, "output_dir": str(folder / output), **changes}


def _first_batch(config: BenchConfig, folder: Path) -> Iterator[Row]:
    run = TrainConfig(**_settings(config, folder, "first"))
    start = open_initial_model(run, run.model_name_or_path)
    cold, warm = [], []
    for _ in range(config.runs):
        shutil.rmtree(folder / "cache", ignore_errors=True)
        for seconds in (cold, warm):
            seconds.append(seconds_of(lambda: next(open_pair_data(run, start.source, World()).updates(0))))
    yield Row("to the first batch, nothing cached: s", f"{median(cold):.2f}")
    yield Row("to the first batch, from a warm cache: s", f"{median(warm):.2f}", "3 at most")


def _training(config: BenchConfig, folder: Path) -> Iterator[Row]:
    speeds, padding = {}, {}
    for _ in range(config.runs):
        for bucket in (True, False):
            events = train_events(SCRIPT, _settings(config, folder, "run", bucket=bucket))
            speeds.setdefault(bucket, []).append(median(event["samples_per_second"] for event in events))
            padding[bucket] = sum(event["padding_share"] for event in events) / len(events)
    yield Row("training: pairs/s", f"{median(speeds[True]):,.0f}")
    yield Row("the same without buckets of similar length", f"{median(speeds[False]):,.0f}")
    yield Row("padding share", f"{padding[True]:.1%}", "6 % at most")
    yield Row("the same without buckets", f"{padding[False]:.1%}")


def _deterministic(config: BenchConfig, folder: Path) -> Iterator[Row]:
    """Measure runs with and without deterministic kernels, in turn."""
    speeds = {True: [], False: []}
    for _ in range(config.runs):
        for deterministic, found in speeds.items():
            events = train_events(SCRIPT, _settings(config, folder, "run", deterministic=deterministic))
            found.append(median(event["samples_per_second"] for event in events))
    yield deterministic_row("pairs/s", config.device, median(speeds[True]), median(speeds[False]))


def _prediction(config: BenchConfig, folder: Path) -> Iterator[Row]:
    """Measure prediction by the model of the last training run, including start and files."""
    (model,) = (folder / "run").glob("best-*")
    ask = PredictConfig(
        model_path=str(model),
        input_file=str(folder / "train.tsv"),
        output_file=str(folder / "predictions.tsv"),
        batch_size=config.batch_size,
        device=config.device,
    )
    seconds = median(seconds_of(lambda: predict_pair(ask)) for _ in range(config.runs))
    yield Row("prediction: pairs/s", f"{config.rows / seconds:,.0f}")


def _streaming(config: BenchConfig, folder: Path) -> Iterator[Row]:
    text = (folder / "train.tsv").read_text(encoding="utf-8")
    (folder / "many.tsv").write_text(text * STREAMED_COPIES, encoding="utf-8")
    peaks = {}
    for name, rows in (("train.tsv", config.rows), ("many.tsv", config.rows * STREAMED_COPIES)):
        words = [str(folder / name), config.vocab_file, str(rows), str(config.max_seq_len)]
        command = [sys.executable, "-c", STREAM, str(SCRIPTS), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks[rows] = float(done.stdout)
        yield Row(f"peak memory, {rows:,} pairs streamed: MB", f"{peaks[rows]:.0f}")
    few, many = peaks.values()
    yield Row("the second over the first", f"{many / few:.2f}", "1: memory does not grow with the rows")


def stream(path: str, vocab_file: str, rows: str, max_seq_len: str) -> None:
    """Read every row of ``path`` as training does, and print the peak memory, in MB."""
    source = PairSource("train_file", path, "train", Labels.numbered(2), Columns("", "", ""))
    rules = StreamRules(seed=0, batch_size=64, buffer=10_000, bucket=True, max_seq_len=int(max_seq_len))
    updates = streamed_steps(source, WordPiece.from_file(vocab_file), rules, World(), 0)
    for _ in islice(updates, int(rows) // rules.batch_size):
        pass
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)


def main() -> None:
    run_command(bench, BenchConfig)


if __name__ == "__main__":
    main()
