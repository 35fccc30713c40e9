r"""Measure a trained pair model on labelled pairs.

python scripts/evaluate_pair.py --model_path output/best-accuracy-0.8962 \
    --input_file test.tsv --output_file metrics.json
"""

from ernie_pair.__main__ import run_named

if __name__ == "__main__":
    run_named("evaluate")
