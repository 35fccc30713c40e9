"""The class of every pair of a file, in the recipe's two columns."""

import logging
from pathlib import Path

from ernie_pair.pair.config import PredictConfig
from ernie_pair.pair.data import encode_pairs, open_tokenizer
from ernie_pair.pair.model import load_trained
from ernie_pair.pair.pair_file import read_pairs
from ernie_pair.pair.peers import join_peers
from ernie_pair.pair.result_file import publish_file, refuse_unusable
from ernie_pair.pair.scoring import logits_of
from ernie_pair.runlog import start_console
from ernie_pair.runtime import quiet_libraries, start_device
from ernie_pair.world import launched_world

HEADER = "index\tprediction\n"

logger = logging.getLogger(__name__)


def predict_pair(config: PredictConfig) -> None:
    """Write the header, then one row per input row in its order. Raises InputError."""
    world = launched_world()
    start_console(world)
    quiet_libraries()
    refuse_unusable(Path(config.output_file))
    start_device(config.device, world)
    model, vocab_file = load_trained(config.model_path)
    pieces = open_tokenizer(vocab_file, model.config, config.max_seq_len)
    rows = encode_pairs(read_pairs(config.input_file, num_classes=None), pieces, config.max_seq_len)
    peers = join_peers(world)
    classes = logits_of(model, rows, config.batch_size, peers).argmax(axis=1)
    if world.is_first:
        lines = [f"{index}\t{label}\n" for index, label in enumerate(classes.tolist())]
        publish_file(Path(config.output_file), HEADER + "".join(lines))
    peers.barrier()
    logger.info("%d predictions: %s", len(rows), config.output_file)
