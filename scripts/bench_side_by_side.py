"""The whole comparison in one run: training, pretraining and prediction, beside transformers on torch.

python scripts/bench_side_by_side.py --pair_file lcqmc/train.tsv --vocab_file ernie/vocab.txt \
    --peer_python peer/bin/python --output side_by_side.json

It prints a table for each case and writes all of them, as JSON, Markdown and a picture. On two cores it takes
about an hour and a half; --cases selects some, --rounds measures less.
"""

from dataclasses import dataclass
from functools import partial
from typing import Callable, Dict, List

from bench_ask import ask_case
from bench_pair import pair_case
from bench_pretrain import pretrain_case
from side_by_side.ask_case import AskShape
from side_by_side.cases import Case, compare
from side_by_side.flags import SideBySideFlags
from side_by_side.pair_case import PairShape
from side_by_side.pretrain_case import PretrainShape
from side_by_side.process_case import measure_processes

from data_tools.options.cli import run_command
from data_tools.options.options import names_in, option, refuse_unknown_names

SMALL, BASE = (4, 312), (12, 768)  # layers and width
PROCESSES = 2


@dataclass(frozen=True)
class BenchConfig(SideBySideFlags):
    """Measure every case; nothing but --output is left on the disk."""

    EXAMPLE = (
        "--pair_file lcqmc/train.tsv --vocab_file ernie/vocab.txt --peer_python peer/bin/python "
        "--output side_by_side.json"
    )

    pair_file: str = option(help="labelled pairs: text TAB text TAB label", group="data")
    vocab_file: str = option(help="the vocab.txt of the models", group="data")
    cases: str = option("", help="their names, with commas; empty: all", group="evaluation")

    def chosen_cases(self) -> List[Case]:
        """Return the cases that --cases names. Raises InputError for an unknown name."""
        names = names_in(self.cases)
        refuse_unknown_names("cases", names, CASES, f" is not a case; use some of {', '.join(CASES)}")
        return [CASES[name](self) for name in names or CASES]


def _processes(config: BenchConfig) -> Case:
    shape = PairShape(*SMALL, 64)
    measure = partial(
        measure_processes,
        config,
        shape,
        PROCESSES,
        pair_file=config.pair_file,
        vocab_file=config.vocab_file,
    )
    name = f"{PROCESSES} processes of 1 thread, 1 process of {PROCESSES}: {shape.name}"
    return Case(name, f"{shape.batch_size} pairs, by the wall clock of whole runs", measure)


CASES: Dict[str, Callable[[BenchConfig], Case]] = {
    "pair-small": lambda config: pair_case(config, PairShape(*SMALL, 64)),
    "pair-base": lambda config: pair_case(config, PairShape(*BASE, 64)),
    "pair-base-full": lambda config: pair_case(config, PairShape(*BASE, 8, full=True)),
    "pretrain-base": lambda config: pretrain_case(config, PretrainShape(*BASE, 8)),
    "ask-small": lambda config: ask_case(config, AskShape(*SMALL)),
    "ask-base": lambda config: ask_case(config, AskShape(*BASE, pairs=128)),
    "processes": _processes,
}


def bench(config: BenchConfig) -> None:
    """Print the tables of the cases."""
    compare(config, config.chosen_cases())


def main() -> None:
    run_command(bench, BenchConfig)


if __name__ == "__main__":
    main()
