r"""Train an encoder that embeds texts; start it again to resume.

python scripts/train_embedding.py --model_name_or_path ernie-gram-zh --output_dir output \
    --train_file train.tsv --dev_file dev.tsv
python -m ernie_pair.launcher --gpus 0,1 scripts/train_embedding.py ...        (on CPU: --nproc_per_node 2)
"""

from data_tools.options.cli import run_command
from ernie_pair.embedding.train.embedding_config import TrainEmbeddingConfig


def main() -> None:
    run_command(_train_embedding, TrainEmbeddingConfig)


def _train_embedding(config: TrainEmbeddingConfig) -> None:
    from ernie_pair.embedding.train.train_embedding import (
        train_embedding,  # loads Paddle, which no flag and no help needs
    )

    train_embedding(config)


if __name__ == "__main__":
    main()
