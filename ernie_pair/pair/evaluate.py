"""A trained model measured on labelled pairs."""

import json
from pathlib import Path

from ernie_pair.pair.config import EvaluateConfig
from ernie_pair.pair.data import encode_pairs, open_tokenizer
from ernie_pair.pair.metrics import measure
from ernie_pair.pair.model import load_trained
from ernie_pair.pair.pair_file import read_pairs
from ernie_pair.pair.peers import join_peers
from ernie_pair.pair.result_file import publish_file, refuse_unusable
from ernie_pair.pair.scoring import logits_of
from ernie_pair.runlog import start_console
from ernie_pair.runtime import quiet_libraries, start_device
from ernie_pair.world import launched_world


def evaluate_pair(config: EvaluateConfig) -> None:
    """Write accuracy, f1, loss and rows as JSON, and print them.

    The numbers are the same for any number of processes, to the last digit. Raises InputError.
    """
    world = launched_world()
    start_console(world)
    quiet_libraries()
    refuse_unusable(Path(config.output_file))
    start_device(config.device, world)
    model, vocab_file = load_trained(config.model_path)
    pieces = open_tokenizer(vocab_file, model.config, config.max_seq_len)
    rows = encode_pairs(read_pairs(config.input_file, model.num_classes), pieces, config.max_seq_len)
    peers = join_peers(world)
    metrics = {**measure(logits_of(model, rows, config.batch_size, peers), rows.labels), "rows": len(rows)}
    if world.is_first:
        publish_file(Path(config.output_file), json.dumps(metrics, indent=2) + "\n")
        print(json.dumps(metrics))
    peers.barrier()
