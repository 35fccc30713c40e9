"""The data of a tiny run of pretraining, opened."""

from tiny_pretrain import VOCAB, flags

from data_tools.text.wordpiece import WordPiece
from ernie_pair.core.cli.cli import parse_config
from ernie_pair.models.spec import parse_spec
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.pretraining.data import open_pretrain_data
from ernie_pair.runtime.processes.world import World

SPEC = parse_spec({"vocab_size": len(VOCAB), "max_position_embeddings": 40, "type_vocab_size": 2})


def opened(world, input_dir=None, spec=None, **changes):
    words = flags(world / "model", input_dir or world / "a", world / "output", **changes)
    tokenizer = WordPiece.from_file(world / "model" / "vocab.txt")
    return open_pretrain_data(
        parse_config(PretrainConfig, list(map(str, words))), World(0, 1), tokenizer, spec or SPEC
    )
