"""A lane of this package: the jobs of its commands, which wait for their turn after each step.

python -m side_by_side.our_lane SPEC.json

SPEC.json names the task and the flags that its command would be given.
"""

import json
import sys
from pathlib import Path

from side_by_side.turns import Turns


def train_pairs(spec, turns):
    """Train with PairTrainer; the turns begin after the initial evaluation."""
    from ernie_pair import PairCallback, PairConfig, PairTrainer
    from ernie_pair.runtime.cpu import keep_freed_memory

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


def open_pretraining(config):
    """Return the job of the static graph alone on this machine, its data, and what adds up over processes."""
    from data_tools.text.wordpiece import WordPiece
    from ernie_pair.models.source import open_model
    from ernie_pair.pretraining.data import open_pretrain_data
    from ernie_pair.pretraining.pretrain import build_job
    from ernie_pair.runtime.processes.world import World

    alone, source = World(), open_model(config.model_name_or_path, model_type="ernie", from_scratch=True)
    data = open_pretrain_data(config, alone, WordPiece.from_file(source.vocab_file), source.spec)
    job, all_reduce = build_job(config, alone, alone, source, data)
    return job, data, all_reduce


def pretrain(spec, turns):
    from ernie_pair.checkpoint.manifest import TrainState
    from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
    from ernie_pair.runtime.cpu import keep_freed_memory
    from ernie_pair.runtime.device import start_training_device
    from ernie_pair.runtime.processes.world import World
    from ernie_pair.training.run_log import RunLog
    from ernie_pair.training.schedule import Schedule
    from ernie_pair.training.trainer import Trainer

    config = PretrainConfig(**spec["flags"])
    start_training_device(config, World())
    job, data, _ = open_pretraining(config)
    if job.program.kernels.is_fused:  # as the command does
        keep_freed_memory()

    class InTurn(Trainer):
        def call(self, event, **about):
            if event == "on_step_end":
                turns.end_step()

        def save(self):
            pass

    last, never = config.max_steps, 10**9
    sizes = (last, config.samples_per_step, config.logging_freq, never, never)
    schedule = Schedule(*sizes, has_validation=False, sync_freq=config.sync_freq_on(config.device))
    trainer = InTurn(job=job, updates=data.updates, schedule=schedule, flags=config, fingerprint={})
    trainer.log = RunLog(Path(config.output_dir), TrainState(), last)
    turns.begin()
    trainer.train_steps(data.updates(0))


def ask_trained(spec, turns):
    """Predict with a trained model, as the command does: from texts to logits."""
    from ernie_pair.evaluation.inference_model import InferenceModel
    from ernie_pair.pairs.config.ask_config import PredictConfig

    model = InferenceModel(PredictConfig(**spec["flags"]))
    left, right = map(list, zip(*_rows_of(spec["flags"]["input_file"])))
    turns.repeat(lambda: model.logits_of_texts(left, right))


def ask_exported(spec, turns):
    """Predict with an exported model, as `run` and `serve` do: from texts to logits."""
    from ernie_pair.inference.predictor import PairPredictor

    predictor = PairPredictor(spec["folder"], symmetric="none", **spec["settings"])
    pairs = list(map(tuple, _rows_of(spec["texts"])))
    turns.repeat(lambda: predictor.logits(pairs))


def embed(spec, turns):
    """Compute vectors with a trained or an exported model, as the command does: from texts to arrays."""
    from ernie_pair.embeddings.embed_config import EmbedConfig
    from ernie_pair.embeddings.open_embedder import open_embedder

    config = EmbedConfig(**spec["flags"])
    embedder = open_embedder(config.model_path, config.device, config.options, config)
    texts = Path(config.input_file).read_text(encoding="utf-8").splitlines()
    turns.repeat(lambda: embedder.embed(texts))


def _rows_of(path):
    return [row.split("\t")[:2] for row in Path(path).read_text(encoding="utf-8").splitlines()]


LANES = (train_pairs, pretrain, ask_trained, ask_exported, embed)
TASKS = {task.__name__: task for task in LANES}


if __name__ == "__main__":
    lane = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    TASKS[lane["task"]](lane, Turns())
