r"""Measure a trained pair model on labelled pairs.

python scripts/evaluate_pair.py --model_path output/best-accuracy-0.8962 \
    --input_file test.tsv --output_file metrics.json
"""

from data_tools.base.cli import run_command
from ernie_pair.pair.config.ask_config import EvaluateConfig
from ernie_pair.pair.evaluation.evaluate_pair import evaluate_pair


def main() -> None:
    run_command(evaluate_pair, EvaluateConfig)


if __name__ == "__main__":
    main()
