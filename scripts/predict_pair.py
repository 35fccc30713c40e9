r"""Predict the class of every pair of a file.

python scripts/predict_pair.py --model_path output/best-accuracy-0.8962 \
    --input_file test.tsv --output_file predictions.tsv
"""

from data_tools.options.cli import run_command
from ernie_pair.pair.config.ask_config import PredictConfig


def main() -> None:
    run_command(_predict_pair, PredictConfig)


def _predict_pair(config: PredictConfig) -> None:
    from ernie_pair.score.evaluation.predict_pair import (
        predict_pair,  # loads Paddle, which no flag and no help needs
    )

    predict_pair(config)


if __name__ == "__main__":
    main()
