"""Run in a process of its own: steps of the static program with LAMB, and what Paddle made of them.

lamb_steps.py MODEL DATA OUT.npz FLAGS.json   Writes, for each step, the gradients before clipping and the
weights, "STEP/gradient/NAME" and "STEP/weight/NAME"; step 0 is the start.
"""

import json
import sys
from pathlib import Path

import numpy as np
from tiny_pretrain import flags

from data_tools.text.wordpiece import WordPiece
from ernie_pair.core.cli.cli import parse_config
from ernie_pair.models.source import open_model
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.pretraining.data import open_pretrain_data
from ernie_pair.pretraining.graph import program as programs
from ernie_pair.pretraining.graph.model import ernie_config
from ernie_pair.pretraining.graph.program_state import LOSS_WEIGHTS, seed_feed
from ernie_pair.pretraining.graph.step import Update, start_static
from ernie_pair.pretraining.pretrain_job import count_labels
from ernie_pair.runtime.processes.world import World


def main(model, data_folder, out, changes):
    words = flags(model, data_folder, Path(out).parent / "output", **json.loads(Path(changes).read_text()))
    config = parse_config(PretrainConfig, words)
    source = open_model(str(model), model_type="ernie", from_scratch=True)
    data = open_pretrain_data(config, World(), WordPiece.from_file(source.vocab_file), source.spec)
    start_static("cpu", 1)
    settings = ernie_config(source.spec, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    wanted = {}  # {parameter: its gradient before clipping, to be fetched}
    apply = Update.apply

    def apply_and_keep(update, gradients, rate):
        wanted.update((each.name, gradient) for each, gradient in zip(update.parameters, gradients))
        return apply(update, gradients, rate)

    Update.apply = apply_and_keep
    program = programs.build_program(config, settings)
    program.start(config.seed)
    moved, named = sorted(program.update.slots), {}
    for name, parameter in program.parameters.items():
        named.setdefault(parameter.name, name)  # a tied one has two
    found = {f"0/weight/{named[key]}": np.array(array) for key, array in program.weights().items()}
    for step, (batch,) in enumerate(data.updates(0), start=1):
        program.rate(config.max_lr / step)
        weights = (1 / np.maximum(count_labels(batch), 1)).astype(np.float32)
        feed = {**batch, LOSS_WEIGHTS: weights, **seed_feed(step), **program._feeds_rate}
        fetched = [wanted[key] for key in moved]
        values = program.executor.run(program.main, feed=feed, fetch_list=fetched, scope=program.scope)
        found.update({f"{step}/gradient/{named[key]}": value for key, value in zip(moved, values)})
        found.update({f"{step}/weight/{named[key]}": np.array(a) for key, a in program.weights().items()})
    np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
