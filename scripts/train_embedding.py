r"""Train an encoder that embeds texts; start it again to resume.

python scripts/train_embedding.py --model_name_or_path ernie-gram-zh --output_dir output \
    --train_file train.tsv --dev_file dev.tsv
python -m ernie_pair.launcher --gpus 0,1 scripts/train_embedding.py ...        (on CPU: --nproc_per_node 2)
"""

from ernie_pair.__main__ import run_named

if __name__ == "__main__":
    run_named("train-embedding")
