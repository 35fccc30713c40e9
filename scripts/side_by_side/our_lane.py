"""A lane of this package: the jobs of its commands, which wait for their turn after each step.

python -m side_by_side.our_lane SPEC.json

SPEC.json names the task and the flags that its command would be given.
"""

import json
import sys
from itertools import repeat
from pathlib import Path

from side_by_side.turns import Turns


def train_pairs(spec):
    """Train with PairTrainer; the turns begin after the initial evaluation."""
    from ernie_pair import PairCallback, PairConfig, PairTrainer
    from ernie_pair.runtime.cpu import keep_freed_memory

    turns = Turns()

    class InTurn(PairCallback):
        def on_step_end(self, args, state, control, **kwargs):
            turns.end_step()

        def on_evaluate(self, args, state, control, **kwargs):
            if state.global_step == 0:
                turns.begin()

    flags = dict(spec["flags"])
    model, train_file, dev_file = (flags.pop(n) for n in ("model_name_or_path", "train_file", "dev_file"))
    trainer = PairTrainer(model, PairConfig(**flags), train_file, dev_file, callbacks=[InTurn()])
    if trainer.model.fused_state is not None:  # as the command does
        keep_freed_memory()
    trainer.train()


def pretrain(spec):
    """Train with the static graph's job, its data and the engine's loop."""
    from data_tools.text.wordpiece import WordPiece
    from ernie_pair.checkpoint.manifest import TrainState
    from ernie_pair.models.source import open_model
    from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
    from ernie_pair.pretrain.data import open_pretrain_data
    from ernie_pair.pretrain.pretrain import build_job
    from ernie_pair.runtime.cpu import keep_freed_memory
    from ernie_pair.runtime.device import start_training_device
    from ernie_pair.runtime.processes.world import World
    from ernie_pair.train.hooks import Hooks, Schedule
    from ernie_pair.train.loop import train
    from ernie_pair.train.run_log import RunLog

    turns, config, alone = Turns(), PretrainConfig(**spec["flags"]), World()
    start_training_device(config, alone)
    source = open_model(config.model_name_or_path, model_type="ernie", from_scratch=True)
    data = open_pretrain_data(config, alone, WordPiece.from_file(source.vocab_file), source.spec)
    job, _ = build_job(config, alone, alone, source, data)
    if job.program.kernels.is_fused:  # as the command does
        keep_freed_memory()

    class InTurn(Hooks):
        def on_step_end(self, state):
            turns.end_step()

    schedule = Schedule(
        config.max_steps,
        config.samples_per_step,
        config.logging_freq,
        10**9,
        10**9,
        has_validation=False,
        sync_freq=config.sync_freq_on(config.device),
    )
    log = RunLog(Path(config.output_dir), TrainState(), config.max_steps)
    turns.begin()
    train(job, data.updates(0), TrainState(), schedule, log, InTurn())


def ask_trained(spec):
    """Predict with a trained model, as the command does: from texts to logits."""
    from ernie_pair.pair.config.ask_config import PredictConfig
    from ernie_pair.pair.data.pair_records import Columns
    from ernie_pair.pair.data.pair_source import PairSource
    from ernie_pair.score.evaluation.inference_model import InferenceModel

    turns = Turns()
    model = InferenceModel(PredictConfig(**spec["flags"]))
    columns = Columns("", "", "")
    pairs = PairSource("input_file", spec["flags"]["input_file"], "test", None, columns).read()
    turns.begin()
    for _ in repeat(None):
        model.logits(pairs, "none")
        turns.end_step()


def ask_exported(spec):
    """Predict with an exported model, as `run` and `serve` do: from texts to logits."""
    from ernie_pair.inference.predictor import PairPredictor

    turns = Turns()
    predictor = PairPredictor(spec["folder"], symmetric="none", **spec["settings"])
    rows = Path(spec["texts"]).read_text(encoding="utf-8").splitlines()
    pairs = [tuple(row.split("\t")[:2]) for row in rows]
    turns.begin()
    for _ in repeat(None):
        predictor.logits(pairs)
        turns.end_step()


def encode(spec):
    """Turn all texts into token ids, as the pairs of a file are before they are cached."""
    from data_tools.text.wordpiece import WordPiece
    from ernie_pair.inference.token_rows import encode_texts

    tokenizer = WordPiece.from_file(spec["vocab_file"])
    rows = [row.split("\t") for row in Path(spec["texts"]).read_text(encoding="utf-8").splitlines()]
    left, right = [row[0] for row in rows], [row[1] for row in rows]
    turns = Turns()
    turns.begin()
    for _ in repeat(None):
        encode_texts(left, right, None, tokenizer, spec["max_seq_len"])
        turns.end_step()


def product(spec):
    """Measure the best rate of matrix products in every step."""
    from ernie_pair.kernels.product_rate import measure_product_rate
    from ernie_pair.runtime.cpu_env import cpu_threads
    from ernie_pair.runtime.device import start_device
    from ernie_pair.runtime.processes.world import World

    start_device(spec["device"], World())
    turns = Turns()
    turns.begin()
    for _ in repeat(None):
        turns.end_step(**measure_product_rate(spec["dtype"], spec["device"], cpu_threads())._asdict())


TASKS = {task.__name__: task for task in (train_pairs, pretrain, ask_trained, ask_exported, encode, product)}


if __name__ == "__main__":
    lane = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    TASKS[lane["task"]](lane)
