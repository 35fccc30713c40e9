"""Makes the same steps of pretraining, read one by one and together, and prints what was seen as JSON.

read_late.py FOLDER   a folder with model/ and data/ of `tiny_pretrain`
"""

import json
import sys
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import numpy as np
from tiny_pretrain import flags

from data_tools.text.wordpiece import WordPiece
from ernie_pair.core.cli.cli import parse_config
from ernie_pair.models.source import open_model
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.pretraining.data import open_pretrain_data
from ernie_pair.pretraining.graph.program_state import LOSS_WEIGHTS, seed_feed
from ernie_pair.pretraining.pretrain import build_job
from ernie_pair.runtime.paddle_patches.static_programs import HeldProgram
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.runtime.processes.world import World

STEPS = 7
WAYS = {
    "plain": {"kernels": "plain"},
    "merge": {"global_batch_size": 12},
    "skip": {"on_nan": "skip"},
    "no clipping": {"grad_clip": 0},
    "recompute": {"use_recompute": "true", "kernels": "plain"},
    "many passes": {"global_batch_size": 132 * 4},
}


def open_job(folder, **changes):
    given = flags(folder / "model", folder / "data", folder / "out", max_steps=STEPS, **changes)
    config = parse_config(PretrainConfig, given)
    source = open_model(config.model_name_or_path, model_type="ernie", from_scratch=True)
    data = open_pretrain_data(config, World(), WordPiece.from_file(source.vocab_file), source.spec)
    return build_job(config, World(), World(), source, data)[0], data


@contextmanager
def counted(job, found):
    records, prepare = job.program.records, job.program.executor._executor_cache.get_pir_program_and_executor

    def read(passes):
        found["reads"] += 1
        return records(passes)

    def look(*arguments):
        found["looks at all ops"] += 1
        return prepare(*arguments)

    job.program.records = read
    job.program.executor._executor_cache.get_pir_program_and_executor = look
    yield
    del job.program.records, job.program.executor._executor_cache.get_pir_program_and_executor


def compare(folder, steps, changes):
    each, data = open_job(folder, **changes)
    late, _ = open_job(folder, **changes, sync_freq=100)
    updates = list(islice(data.updates(0), steps))
    wanted = [dict(each.step(batches, n, StopSignals())) for n, batches in enumerate(updates, 1)]
    metrics = [late.step(updates[0], 1, StopSignals())]
    found = {"reads": 0, "looks at all ops": 0}
    with counted(late, found):
        metrics += [
            late.step(late.pin_batches(batches), n, StopSignals()) for n, batches in enumerate(updates[1:], 2)
        ]
    unread = dict(found)
    same_metrics = list(map(dict, metrics)) == wanted
    valid = each.evaluate("valid") == late.evaluate("valid")
    weights = [job.weights() for job in (each, late)]
    return {
        **unread,
        "passes": len(updates[0]),
        "same metrics": same_metrics,
        "same evaluation": valid,
        "same weights": all(np.array_equal(weights[1][name], array) for name, array in weights[0].items()),
    }


def held_beside_executor(folder):
    """Losses by a held program, against those by Paddle's own executor."""
    job, data = open_job(folder, hidden_dropout_prob=0)
    program, rows = job.program, []
    batches = [batch for (batch,) in islice(data.updates(0), 4)]
    weights = {LOSS_WEIGHTS: np.full(2, 0.01, np.float32)}
    for number, batch in enumerate(batches):
        program.rate(0.001 * number)
        program.run(program.main, {**batch, **weights, **seed_feed(number)})
        rows.append(program.records(1)[0, :4].tolist())
    other, _ = open_job(folder, hidden_dropout_prob=0)
    fetched = []
    for number, batch in enumerate(batches):
        other.program.rate(0.001 * number)
        feed = {**batch, **weights, **seed_feed(number), **other.program._feeds_rate}
        other.program.executor.run(other.program.main, feed=feed, scope=other.program.scope)
        fetched.append(other.program.records(1)[0, :4].tolist())
    assert isinstance(program._runners[program.main], HeldProgram)
    return rows == fetched


if __name__ == "__main__":
    world = Path(sys.argv[1])
    seen = {name: compare(world, 3 if name == "many passes" else STEPS, way) for name, way in WAYS.items()}
    print("\n" + json.dumps({**seen, "held as run": held_beside_executor(world)}))
