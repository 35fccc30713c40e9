"""Count the work of steps and its speed: tokens, operations, and their share of the product rate."""

from typing import Dict, NamedTuple

TERA = 1e12


class StepWork(NamedTuple):
    """The work of steps, over all ranks: samples, their tokens without and with padding, operations.

    ``flops`` is counted by `flops`: what the shapes require, however it is computed. 0 if it is not counted.
    """

    samples: float = 0
    tokens: float = 0
    padded_tokens: float = 0
    flops: float = 0

    def plus(self, other: "StepWork") -> "StepWork":
        """Return the sum of both."""
        return StepWork(*(mine + theirs for mine, theirs in zip(self, other)))

    def speeds(self, seconds: float, product_rate: float = 0) -> Dict[str, float]:
        """Return the speeds for a training line, of what was counted in ``seconds``.

        ``product_rate``: FLOP/s that products reach on all ranks together; 0: not known.
        """
        speeds = {"samples_per_second": self.samples / seconds}
        if self.padded_tokens:
            speeds["tokens_per_second"] = self.padded_tokens / seconds
            speeds["real_tokens_per_second"] = self.tokens / seconds
        if self.flops:
            speeds["tera_flops_per_second"] = self.flops / seconds / TERA
        if self.flops and product_rate:
            speeds["product_share"] = self.flops / seconds / product_rate
        return speeds


def take_work(metrics: Dict[str, float], samples: int) -> StepWork:
    """Remove the counts of a step from its metrics, since they are not metrics, and return them."""
    counts = {name: metrics.pop(name) for name in StepWork._fields if name in metrics}
    return StepWork(samples=samples, **counts)
