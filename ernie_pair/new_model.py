"""A model folder to start from scratch: config.json for a size of your choice, beside a vocabulary."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from data_tools.command_line import option
from data_tools.errors import InputError
from data_tools.publish import published
from data_tools.wordpiece import WordPiece
from ernie_pair.model_folder import CONFIG, VOCAB

BASE_RANGE, BASE_WIDTH = 0.02, 768


@dataclass(frozen=True)
class NewModelConfig:
    """Write config.json and vocab.txt of an ERNIE of the given size, to pretrain with --from_scratch true."""

    vocab_file: str = option(help="the vocabulary, a token per line")
    output_dir: str = option(help="the folder to make")
    hidden_size: int = option(768, help="width of the hidden states")
    num_hidden_layers: int = option(12, help="encoder layers")
    num_attention_heads: int = option(12, help="heads of each layer; divides hidden_size")
    intermediate_size: int = option(3072, help="width inside the feed-forward blocks")
    max_position_embeddings: int = option(513, help="longest sequence")
    hidden_act: str = option("relu", help="activation of the feed-forward blocks")

    def __post_init__(self):
        for name, value in asdict(self).items():
            if isinstance(value, int) and value < 1:
                raise InputError(f"--{name} {value} is below 1; use 1 or more")
        if self.hidden_size % self.num_attention_heads:
            raise InputError(
                f"--hidden_size {self.hidden_size} is not a multiple of --num_attention_heads "
                f"{self.num_attention_heads}; change one of them"
            )


def new_model(config: NewModelConfig) -> None:
    """Write the folder. Raises InputError when the vocabulary cannot be used."""
    pieces = WordPiece.from_file(config.vocab_file)
    sizes = {
        name: value for name, value in asdict(config).items() if name not in ("vocab_file", "output_dir")
    }
    settings = {
        "model_type": "ernie",
        # 0.02 is for a width of 768; a narrow model that starts with it learns nothing for a long time.
        "initializer_range": round(BASE_RANGE * math.sqrt(BASE_WIDTH / config.hidden_size), 4),
        "vocab_size": pieces.vocab_size,
        **sizes,
        "type_vocab_size": 2,
        "pad_token_id": pieces.pad_id,
    }
    folder = Path(config.output_dir)
    with published(folder / VOCAB, folder / CONFIG) as (vocab, settings_file):
        vocab.write_bytes(Path(config.vocab_file).read_bytes())
        settings_file.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    size = f"{config.num_hidden_layers} layers x {config.hidden_size}, {pieces.vocab_size} tokens"
    print(f"{folder}: an ERNIE of {size}")
