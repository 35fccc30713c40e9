"""Measure the speed of prediction by a pair classifier, from texts to logits, side by side.

python scripts/bench_ask.py --pair_file lcqmc/train.tsv --vocab_file ernie/vocab.txt \
    --peer_python peer/bin/python --output ask.json

A trained model in every way that this machine supports, the same model exported to Paddle Inference, ONNX
Runtime and int8, and the peer answer the same pairs in turn. The weights are random: the speed is the same.
"""

from dataclasses import dataclass
from functools import partial

from side_by_side.ask_case import AskShape, ask_lanes
from side_by_side.cases import Case, case_of_lanes, compare
from side_by_side.flags import SideBySideFlags

from data_tools.options.cli import run_command
from data_tools.options.options import option


@dataclass(frozen=True)
class BenchConfig(SideBySideFlags):
    """Measure prediction; nothing but --output is left on the disk."""

    EXAMPLE = "--pair_file lcqmc/train.tsv --vocab_file ernie/vocab.txt --peer_python peer/bin/python"

    pair_file: str = option(help="pairs: text TAB text", group="data")
    vocab_file: str = option(help="the vocab.txt of the model", group="data")
    hidden_size: int = option(312, help="width of the model", group="model")
    num_hidden_layers: int = option(4, help="its layers", group="model", unit="layers")
    pairs: int = option(512, help="pairs predicted in a step", group="data", unit="pairs", at_least=1)
    batch_size: int = option(64, help="pairs in one forward pass", group="devices", unit="pairs", at_least=1)
    max_seq_len: int = option(128, help="tokens per pair, longer ones are cut", group="data", unit="tokens")

    @property
    def shape(self) -> AskShape:
        """Return the case that is measured."""
        return AskShape(
            self.num_hidden_layers, self.hidden_size, self.pairs, self.batch_size, self.max_seq_len
        )


def ask_case(config, shape: AskShape) -> Case:
    """Return the case of prediction, for flags that have a pair_file and a vocab_file."""
    lanes = partial(ask_lanes, config, shape, pair_file=config.pair_file, vocab_file=config.vocab_file)
    return case_of_lanes(config, shape.name, f"the prediction of {shape.pairs} pairs", lanes)


def bench(config: BenchConfig) -> None:
    """Print the table of the lanes."""
    compare(config, [ask_case(config, config.shape)])


def main() -> None:
    run_command(bench, BenchConfig)


if __name__ == "__main__":
    main()
