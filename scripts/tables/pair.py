"""Training of and prediction with a pair classifier; training is measured without its first logged steps."""

import resource
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path
from statistics import mean, median
from typing import Iterator

from other_libraries.client import SCRIPTS
from side_by_side.cases import Shape, medians_of, pair_settings, runs_in_turn, silence, write_model

from data_tools.text.wordpiece import WordPiece
from ernie_pair.core.errors import InputError
from ernie_pair.evaluation.predict_pair import predict_pair
from ernie_pair.models.labels import Labels
from ernie_pair.pairs.config.ask_config import PredictConfig
from ernie_pair.pairs.config.pair_config import PairConfig, TrainConfig
from ernie_pair.pairs.data.encoded_pairs import streamed_steps
from ernie_pair.pairs.data.pair_records import Columns
from ernie_pair.pairs.data.pair_source import PairSource
from ernie_pair.pairs.train.datasets import open_pair_data
from ernie_pair.pairs.train.initial_model import open_initial_model
from ernie_pair.runtime.processes.world import World
from tables import Row, seconds_of

DEV_ROWS, STREAMED_COPIES, STEPS_PER_LINE = 1000, 20, 10
# In a separate process, whose peak memory is that of the stream.
STREAM = "import sys; sys.path.insert(0, sys.argv[1]); from tables import pair; pair.stream(*sys.argv[2:])"
WAYS = {"plain": {}, "no buckets": {"bucket": False}, "free": {"deterministic": False}}


def measured(config, folder: Path) -> Iterator[Row]:
    yield Row(f"{config.rows} pairs", f"median of {config.runs}", "goal")
    with silence():  # whether something is wrong with the pairs does not matter here
        shape = Shape(config.num_hidden_layers, config.hidden_size, config.batch_size, config.max_seq_len)
        write_model(folder / "model", config.vocab_file, "ernie_gram", shape)
        with open(config.pair_file, encoding="utf-8") as file:
            lines = list(islice(file, config.rows + DEV_ROWS))
        if len(lines) < config.rows + DEV_ROWS:
            raise InputError(f"{config.pair_file} has {len(lines)} rows; pass --rows {len(lines) - DEV_ROWS}")
        (folder / "train.tsv").write_text("".join(lines[: config.rows]), encoding="utf-8")
        (folder / "dev.tsv").write_text("".join(lines[config.rows :]), encoding="utf-8")
    settings = pair_settings(folder, shape, config.device, config.steps, STEPS_PER_LINE)
    yield from _first_batch(config, folder, settings)
    yield from _training(config, folder, settings)
    yield _prediction(config, folder)
    yield from _streaming(config, folder)


def _first_batch(config, folder: Path, settings: dict) -> Iterator[Row]:
    run = TrainConfig(**settings, output_dir=str(folder / "first"))
    source = open_initial_model(run, run.model_name_or_path).source
    cold, warm = [], []
    with silence():
        for _ in range(config.runs):
            shutil.rmtree(folder / "cache", ignore_errors=True)
            for seconds in (cold, warm):
                taken = seconds_of(lambda: next(open_pair_data(run, source, World()).updates(0)))
                seconds.append(taken.clock)
    yield Row("to the first batch, nothing cached: s", f"{median(cold):.2f}")
    yield Row("to the first batch, from a warm cache: s", f"{median(warm):.2f}", "3 at most")


def _training(config, folder: Path, settings: dict) -> Iterator[Row]:
    """Measure whole runs in turn, with and without buckets, and without deterministic kernels."""
    ways = {way: (0, 0, flags) for way, flags in WAYS.items()}
    runs = runs_in_turn("train_pair.py", folder, settings, ways, config.runs)
    speeds = medians_of(runs, "samples_per_second")
    padding = {way: mean(event["padding_share"] for event in each[-1]) for way, each in runs.items()}
    yield Row("training: pairs/s", f"{speeds['plain']:,.0f}")
    yield Row("the same without buckets of similar length", f"{speeds['no buckets']:,.0f}")
    yield Row("padding share", f"{padding['plain']:.1%}", "6 % at most")
    yield Row("the same without buckets", f"{padding['no buckets']:.1%}")
    yield deterministic_row("pairs/s", config.device, speeds["plain"], speeds["free"])


def deterministic_row(unit: str, device: str, deterministic: float, free: float) -> Row:
    """Return the cost of deterministic kernels on ``device``, from the speeds with and without them."""
    compared = f"{free / deterministic:.2f} times --deterministic true"
    reason = "; a CPU has one kind of kernels" if device == "cpu" else ""
    return Row(f"--deterministic false: {unit}", f"{free:,.0f}", compared + reason)


def _prediction(config, folder: Path) -> Row:
    """Measure prediction by the model of the last training run, including start and files."""
    (model,) = (folder / "free").glob("best-*")
    files = {"input_file": str(folder / "train.tsv"), "output_file": str(folder / "predictions.tsv")}
    sizes = {"batch_size": config.batch_size, "device": config.device}
    predict = PredictConfig(model_path=str(model), overwrite=True, **files, **sizes)
    with silence():
        seconds = median(seconds_of(lambda: predict_pair(predict)).clock for _ in range(config.runs))
    return Row("prediction: pairs/s", f"{config.rows / seconds:,.0f}")


def _streaming(config, folder: Path) -> Iterator[Row]:
    text = (folder / "train.tsv").read_text(encoding="utf-8")
    (folder / "many.tsv").write_text(text * STREAMED_COPIES, encoding="utf-8")
    peaks = []
    for name, rows in (("train.tsv", config.rows), ("many.tsv", config.rows * STREAMED_COPIES)):
        words = [str(folder / name), config.vocab_file, str(rows), str(config.max_seq_len)]
        command = [sys.executable, "-c", STREAM, str(SCRIPTS), *words]
        peaks.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
        yield Row(f"peak memory, {rows:,} pairs streamed: MB", f"{peaks[-1]:.0f}")
    grown = f"{peaks[1] / peaks[0]:.2f}"
    yield Row("the second over the first", grown, "1: memory does not grow with the rows")


def stream(path: str, vocab_file: str, rows: str, max_seq_len: str) -> None:
    """Read every row of ``path`` as training does, and print the peak memory, in MB."""
    source = PairSource("train_file", path, "train", Labels.numbered(2), Columns("", "", ""))
    config = PairConfig("output", seed=0, batch_size=64, max_seq_len=int(max_seq_len))
    updates = streamed_steps(source, WordPiece.from_file(vocab_file), config, World(), 0)
    for _ in islice(updates, int(rows) // config.batch_size):
        pass
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)
