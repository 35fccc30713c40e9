"""The fingerprint of a run: what must stay the same to resume from a checkpoint, and what may change.

The keys name the flags that give their values; see `ernie_pair.checkpoint.fingerprint`.
"""

from typing import Dict

from ernie_pair.checkpoint.fingerprint import Fingerprint, RunRules
from ernie_pair.models.labels import RANKING
from ernie_pair.models.source import ModelSource
from ernie_pair.pair.config.pair_config import PairConfig
from ernie_pair.pair.config.run_flags import SAME_STEP
from ernie_pair.pair.targets.target_metrics import LOWER_IS_BETTER
from ernie_pair.pair.train.pair_job import PairJob
from ernie_pair.runtime.amp_flags import without_idle_amp
from ernie_pair.runtime.cpu_env import cpu_threads
from ernie_pair.runtime.processes.world import World
from ernie_pair.train.run_flags import WarmupFlags

# No --allow_change makes the weights, or the best metric so far, fit these.
FIXED = ("model_type", "model_class", "config.json", "vocabulary", "best_metric", "pooling", "freeze")
# The only values that there were before there was a flag.
ONLY_ONES = {"lr_scheduler_type": "linear", "precision": "fp32", "symmetric": "none"}
LAYOUT = ("batch_size", "gradient_accumulation_steps", "reduce_dtype")
STEPS, STEPS_BEFORE = "steps in all", "updates in all"  # as earlier versions call it


def fingerprint_of(
    config: PairConfig, source: ModelSource, hashes: Dict[str, str], job: PairJob, world: World
) -> Dict[str, object]:
    """Return what must not change between a checkpoint and the run that resumes from it."""
    flags = ["seed", "max_seq_len", "learning_rate", "lr_scheduler_type", "weight_decay", "dropout"]
    flags += ["text_a", "text_b", "label", "layer_decay", "freeze", "freeze_layers", *SAME_STEP]
    flags_of_steps = "--max_steps, --epochs" if config.max_steps else "--epochs, --max_steps"
    return {
        "model_type": job.model.family,
        **{name: getattr(config, name) for name in flags},
        **({"model_class": config.model_class} if config.model_class else {}),
        **({"symmetric_alpha": config.symmetric_alpha} if config.symmetric == "consistency" else {}),
        **_flags_of_ranking(config, source),
        **({"encoding": config.encoding} if config.encoding != "utf-8" else {}),
        "warmup_rate (--warmup_rate, --warmup_steps)": warmup_of(config),
        "best_metric": config.best_metric + _if_turned_round(config),
        "pooling": job.model.pooling,
        "--batch_size x --gradient_accumulation_steps x processes": config.pairs_per_step(world.size),
        "order of the rows (--bucket, --streaming, --shuffle_buffer)": _order_of(config),
        f"{STEPS} ({flags_of_steps})": job.total_steps,
        "config.json (sha256, of --model_name_or_path)": source.spec.sha256,
        **{key_of_file(name): value for name, value in hashes.items()},
    }


def _flags_of_ranking(config: PairConfig, source: ModelSource) -> Dict[str, object]:
    names = ("ranking_loss", "margin", "most_candidates", "query") if source.spec.target == RANKING else ()
    return {name: getattr(config, name) for name in names}


def warmup_of(config: WarmupFlags) -> object:
    """Return how long the learning rate rises, as a fingerprint holds it."""
    return config.warmup_share if config.warmup_steps is None else f"{config.warmup_steps} steps"


def key_of_file(name: str) -> str:
    """Return the key of the hash of a file, which says the flag that names it."""
    return f"{name} (sha256, of --model_name_or_path)" if name == "vocabulary" else f"--{name} (sha256)"


def _upgrade(saved: Fingerprint) -> Fingerprint:
    renamed = {STEPS if name == STEPS_BEFORE else name: value for name, value in saved.items()}
    return {**ONLY_ONES, **without_idle_amp(renamed)}


def cure_of(name: str, old: object) -> str:
    """Return what makes a run fit its checkpoint again."""
    if name == STEPS:
        return "pass the old value (the learning rate falls to 0 at the last step: it would be another)"
    return "pass the old value"


RULES = RunRules(FIXED, _upgrade, cure_of)


def _if_turned_round(config: PairConfig) -> str:
    if config.lower_is_better == (config.best_metric in LOWER_IS_BETTER):
        return ""
    return f" ({'lower' if config.lower_is_better else 'greater'} is better)"


def _order_of(config: PairConfig) -> str:
    sorted_ = "in buckets of like length" if config.bucket else "of any length"
    return sorted_ + (f", streamed through {config.shuffle_buffer} rows" if config.streaming else "")


def topology_of(config, kernels: str, world: World, *names: str) -> Dict[str, object]:
    """Return what may change on resume, with a line about it in the log; ``kernels``: which are used.

    ``config``: that of a training in dynamic graph, and ``names`` its flags that may, beside those of all.
    """
    return {
        "processes": world.size,
        **{name: getattr(config, name) for name in (*LAYOUT, *names)},
        "threads": cpu_threads(),
        "kernels": kernels,
        **({"tf32": True} if config.tf32 else {}),
        **({"deterministic": config.deterministic} if config.device == "gpu" else {}),  # a CPU always is
    }
