"""Pretrain ERNIE 1.0 in static graph; start the same command again to resume.

python -m ernie_pair.launcher --gpus 0,1 scripts/run_pretrain_static.py --dp_degree 2 \
    --model_name_or_path ernie-1.0 --input_dir data --output_dir output
"""

from ernie_pair.__main__ import run_named

if __name__ == "__main__":
    run_named("pretrain")
