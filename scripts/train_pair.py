r"""Fine-tune ErnieGram, ERNIE, BERT or another encoder on sentence pairs; start it again to resume.

python scripts/train_pair.py --model_name_or_path ernie-gram-zh --output_dir output \
    --train_file train.tsv --dev_file dev.tsv
python -m ernie_pair.launcher --gpus 0,1 scripts/train_pair.py ...        (on CPU: --nproc_per_node 2)
"""

from data_tools.options.cli import run_command
from ernie_pair.pair.config.pair_config import TrainConfig


def main() -> None:
    run_command(_train_pair, TrainConfig)


def _train_pair(config: TrainConfig) -> None:
    from ernie_pair.pair.train.train_pair import train_pair  # loads Paddle, which no flag and no help needs

    train_pair(config)


if __name__ == "__main__":
    main()
