"""The whole pipeline on the sample: text -> ids -> pretraining -> conversion -> pairs -> predictions.

Run it again: what is done has nothing to do, what was cut short goes on, and what was made of other inputs
or flags stops it with the difference.
"""

import json
import os
import shlex
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, List, Literal, NamedTuple, Optional

from data_tools.base.optional_import import refuse_without_training
from data_tools.base.options import Options, option, refuse_empty
from data_tools.files.atomic_files import make_folder, published
from data_tools.text.sample_pairs import SMALLEST_DATA_SET
from ernie_pair.device.cpu_env import cpu_threads
from ernie_pair.device.device import default_device
from ernie_pair.processes.child_command import ChildCommand
from ernie_pair.processes.stop_signals import StopSignals
from ernie_pair.quickstart.commands import SmallLine, Words
from ernie_pair.quickstart.figures import collect_results, render_table
from ernie_pair.run_config.kept_config import keep_config

RESULTS = "quickstart.json"


@dataclass(frozen=True)
class QuickstartConfig(Options):
    """Run the whole pipeline on the built-in sample, in seven steps. Start it again to continue."""

    EXAMPLE = "--output_dir quickstart"

    output_dir: str = option("output/quickstart", help="everything goes here", group="data")
    documents: int = option(
        1000, help="documents in the sample to pretrain on", group="data", unit="documents", at_least=1
    )
    pairs: int = option(
        18000,
        help="pairs in the sample; fewer are faster",
        group="data",
        unit="pairs",
        at_least=SMALLEST_DATA_SET,
    )
    steps: int = option(2400, help="pretraining steps", group="optimisation", unit="steps", at_least=1)
    epochs: int = option(
        2, help="epochs of fine-tuning on the pairs", group="optimisation", unit="epochs", at_least=1
    )
    seed: int = option(1234, help="seed of weights, data order and masks", group="optimisation", at_least=0)
    gpus: str = option("0", help="GPUs for pretraining, on a machine with GPUs", group="devices")
    device: Literal["cpu", "gpu"] = option(default_device(), help="where to run", group="devices")

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_dir")


class Step(NamedTuple):
    """Commands that follow each other; ``beside``: one that runs beside a single one, into a log.

    ``threads``: of each of them; None: as many as there are cores.
    """

    title: str
    commands: List[Words]
    beside: Optional[Words] = None
    threads: Optional[int] = None


def quickstart(config: QuickstartConfig) -> None:
    """Run the seven steps and print what they reached. Raises the error that a step ends with."""
    refuse_without_training()
    folder = Path(config.output_dir)
    sizes = {"documents": config.documents, "pairs": config.pairs}
    lengths = {"steps": config.steps, "epochs": config.epochs, "seed": config.seed}
    line = SmallLine(folder, **sizes, **lengths, device=config.device, gpus=config.gpus)
    make_folder(folder)
    keep_config(folder, "quickstart", config)
    with StopSignals():
        for number, step in enumerate(_steps(line), start=1):
            sys.stderr.write(f"\n[{number}/7] {step.title}\n")
            sys.stderr.flush()
            _run(step, number, folder / "pair_scratch.log")
    results = collect_results(folder)
    with published(folder / RESULTS) as (draft,):
        draft.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(f"\n{render_table(results, str(folder))}")
    runs = shlex.quote(str(folder))
    print(f"\nsee the runs: ernie-pair board {runs}, or ernie-pair plot {runs} --output runs.html")


def _steps(line: SmallLine) -> Iterator[Step]:
    """Yield the steps in their order: what an evaluation is asked follows from what was trained."""
    yield Step("write the built-in sample", [line.sample()])
    yield Step(
        "prepare the corpus: sentences, vocabulary, token ids; and a small model to start from",
        [*line.corpus(), line.new_model()],
    )
    yield Step("pretrain it in static graph", [line.pretrain()])
    yield Step("convert it to a dynamic model, with the proof that both agree", [line.convert()])
    yield Step(
        "fine-tune on pairs: from the converted weights, and beside it from scratch (pair_scratch.log)",
        [line.train("dynamic", "pair")],
        line.train("small", "pair_scratch"),
        threads=max(1, cpu_threads() // 2),  # two trainings share the cores
    )
    yield Step("evaluate both on the test split", [line.evaluate("pair")], line.evaluate("pair_scratch"))
    yield Step("predict", [line.predict("pair")])


def _run(step: Step, number: int, log: Path) -> None:
    """Run a step; where one of its commands fails, what runs beside it is stopped."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(step.threads)} if step.threads else None
    with ExitStack() as stack:
        if step.beside:
            name = f"step {number}, {step.beside[0]} from scratch"
            beside = stack.enter_context(ChildCommand(step.beside, name, log, environment))
        for words in step.commands:
            name = f"step {number}, {words[0]}"
            with ChildCommand(words, name, environment=environment) as child:
                child.finish()
        if step.beside:
            beside.finish()
