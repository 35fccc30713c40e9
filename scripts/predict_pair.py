r"""Predict the class of every pair of a file.

python scripts/predict_pair.py --model_path output/best-accuracy-0.8962 \
    --input_file test.tsv --output_file predictions.tsv
"""

from ernie_pair.__main__ import run_named

if __name__ == "__main__":
    run_named("predict")
