r"""Measure a trained pair model on labelled pairs.

python scripts/evaluate_pair.py --model_path output/best-accuracy-0.8962 \
    --input_file test.tsv --output_file metrics.json
"""

from data_tools.options.cli import run_command
from ernie_pair.pair.config.ask_config import EvaluateConfig


def main() -> None:
    run_command(_evaluate_pair, EvaluateConfig)


def _evaluate_pair(config: EvaluateConfig) -> None:
    from ernie_pair.score.evaluation.evaluate_pair import (
        evaluate_pair,  # loads Paddle, which no flag and no help needs
    )

    evaluate_pair(config)


if __name__ == "__main__":
    main()
