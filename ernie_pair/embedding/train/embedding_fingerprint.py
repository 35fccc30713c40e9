"""The fingerprint of an embedding run: what must stay the same on resume, and what may change."""

import json
from typing import Dict

from ernie_pair.checkpoint.fingerprint import RunRules
from ernie_pair.embedding.train.embedding_config import EmbeddingConfig
from ernie_pair.embedding.train.embedding_job import EmbeddingJob
from ernie_pair.models.source import ModelSource
from ernie_pair.pair.config.run_flags import SAME_STEP
from ernie_pair.pair.train.pair_fingerprint import STEPS, cure_of, key_of_file, warmup_of
from ernie_pair.runtime.amp_flags import without_idle_amp
from ernie_pair.runtime.processes.world import World

# No --allow_change makes the weights, or the best metric so far, fit these.
FIXED = ("model_type", "config.json", "vocabulary", "best_metric", "pooling", "freeze", "dims", "max_seq_len")
OF_PAIRS_ALONE = ("class_weights", "rdrop_alpha", "fgm_epsilon", "symmetric")
FLAGS = (
    *("seed", "max_seq_len", "learning_rate", "lr_scheduler_type", "weight_decay", "dropout"),
    *("text_a", "text_b", "label", "label_map", "encoding", "layer_decay", "freeze", "freeze_layers"),
    *("objective", "pooling", "temperature", "hard_negatives", "bucket", "best_metric", "eval_batch_size"),
    *(name for name in SAME_STEP if name not in OF_PAIRS_ALONE),
)
RULES = RunRules(FIXED, without_idle_amp, cure_of)


def fingerprint_of(
    config: EmbeddingConfig, source: ModelSource, hashes: Dict[str, str], job: EmbeddingJob, world: World
) -> Dict[str, object]:
    """Return what must not change between a checkpoint and the run that resumes from it."""
    beyond = job.settings.beyond_format_1()
    flags_of_steps = "--max_steps, --epochs" if config.max_steps else "--epochs, --max_steps"
    return {
        "model_type": job.model.family,
        **{name: getattr(config, name) for name in FLAGS},
        "dims": ",".join(map(str, job.settings.dims)),
        **({"modules and prompts": json.dumps(beyond, sort_keys=True)} if beyond else {}),
        "warmup_rate (--warmup_rate, --warmup_steps)": warmup_of(config),
        "--batch_size x --gradient_accumulation_steps x processes": config.pairs_per_step(world.size),
        f"{STEPS} ({flags_of_steps})": job.total_steps,
        "config.json (sha256, of --model_name_or_path)": source.spec.sha256,
        **{key_of_file(name): value for name, value in hashes.items()},
    }
