"""The fingerprint of a run: what must stay the same to resume from a checkpoint, and what may change.

The keys name the flags that give their values; see `ernie_pair.checkpoint.fingerprint`.
"""

from typing import Dict, Iterable, Union

from ernie_pair.checkpoint.fingerprint import Fingerprint, RunRules
from ernie_pair.models.hugging_face.counterparts import SPECIFIC
from ernie_pair.models.source import ModelSource
from ernie_pair.pretrain.config.flags import HALF_OPS
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
from ernie_pair.pretrain.data import PretrainData
from ernie_pair.runtime.amp_flags import without_idle_amp
from ernie_pair.runtime.cpu_env import cpu_threads
from ernie_pair.runtime.processes.world import World

# A run that differs in one of these is another run; whatever is not here may change on resume.
SAME_RUN = (
    *("split", "max_seq_len", "bucket_size", "seed", "max_lr", "min_lr", "weight_decay", "grad_clip"),
    *(
        "optimizer",
        "adam_beta1",
        "adam_beta2",
        "adam_epsilon",
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
    ),
    *("masked_lm_prob", "short_seq_prob", "favor_longer_ngram", "max_ngrams"),
    *("geometric", "whole_word_mask", "level_weights", "masking_fn", "binary_head"),
    *("lr_decay_style", "use_amp", "amp_dtype", "amp_level", "precision"),
)
FIXED = (
    "model ",
    "vocabulary",
    "binary_head",
    "ngram_lexicon",
)  # even --allow_change cannot make the weights fit other values of these
WARM_UP = "warm-up steps"


def topology_of(config: PretrainConfig, kernels: str, world: World) -> Dict[str, object]:
    """Return what may change on resume, which is only logged; ``kernels``: those in use."""
    names = ("reduce_dtype", "fused_ops")
    return {
        "processes": world.size,
        "sharding_degree": config.sharding_degree,
        "micro_batch_size": _micro_batches_of(config),
        **{name: getattr(config, name) for name in names},
        "threads": cpu_threads(),
        "kernels": kernels,
        **({"tf32": True} if config.tf32 else {}),
        **({"graph": config.graph} if config.is_dynamic else {}),
        **({"deterministic": config.deterministic} if config.device == "gpu" else {}),  # a CPU always is
    }


def fingerprint_of(config: PretrainConfig, source: ModelSource, data: PretrainData) -> Fingerprint:
    """Return what must be equal for a resumed run to be the same run."""
    values = {**{name: getattr(config, name) for name in SAME_RUN}, "binary_head": config.has_order}
    of_model = "of --model_name_or_path"
    values.update(
        {f"model {key} (config.json {of_model})": value for key, value in source.spec.shape.items()}
    )
    if source.spec.family == "bert":  # the other classes have one of their own
        values[f"model layer_norm_eps (config.json {of_model})"] = source.spec.config.get(
            "layer_norm_eps", SPECIFIC
        )
    return {
        **values,
        "amp_fp32_ops": _float32_ops(config.use_amp, config.amp_dtype, config.float32_ops),
        "global_batch_size": config.samples_per_step,
        "phases": _phases_of(config),
        "ngram_lexicon": "" if data.ngrams is None else data.ngrams.sha256,
        "--decay_steps (0: --max_steps)": config.lr_decay_steps,
        f"{WARM_UP} (--warmup_rate x --max_steps, or --warmup_steps)": config.num_warmup_steps,
        "corpus (--input_dir)": data.fingerprint,
        f"vocabulary (vocab.txt {of_model})": data.tokenizer.sha256,
    }


def _phases_of(config: PretrainConfig) -> str:
    """Return the lengths and steps of --phases in canonical form; '' if there is one length."""
    phases = config.phase_list
    return ",".join(f"{phase.length}:{phase.steps}" for phase in phases) if len(phases) > 1 else ""


def _micro_batches_of(config: PretrainConfig) -> Union[int, str]:
    """Return the micro-batch size, or that of each phase if they differ."""
    sizes = [phase.micro_batch_size for phase in config.phase_list]
    return sizes[0] if len(set(sizes)) == 1 else ",".join(map(str, sizes))


def _float32_ops(use_amp: object, amp_dtype: object, ops: Iterable[str]) -> str:
    """Return --amp_fp32_ops in canonical form; '' if nothing is in half precision."""
    return ",".join(sorted(ops)) if use_amp and amp_dtype != "float32" else ""


def rules_of(config: PretrainConfig) -> RunRules:
    """Return how a run of ``config`` compares its fingerprint with that of a checkpoint."""

    def cure(name: str, old: object) -> str:
        if name == WARM_UP and config.warmup_steps is not None:
            return f"pass --warmup_steps {old}"
        if name == WARM_UP and isinstance(old, int) and 0 < old < config.max_steps:
            return f"pass --warmup_rate {old / config.max_steps:.6g} to keep the {old}"
        return "pass the old value"

    return RunRules(FIXED, _upgrade, cure)


def _upgrade(saved: Fingerprint) -> Fingerprint:
    """Bring the fingerprint of an earlier version up to date.

    Earlier versions saved the warm-up rate, and took the warm-up steps from --decay_steps; they had one
    precision, one optimizer, no buckets, no n-grams and one phase, and kept more ops in float32.
    """
    in_float32 = _float32_ops(saved.get("use_amp"), saved.get("amp_dtype"), HALF_OPS)
    saved = {
        "precision": "fp32",
        "optimizer": "adamw",
        "bucket_size": 0,
        "phases": "",
        "ngram_lexicon": "",
        "amp_fp32_ops": in_float32,
        **without_idle_amp(saved),
    }
    if WARM_UP in saved:
        return saved
    rate, steps = saved.get("warmup_rate"), saved.get("decay_steps")
    known = {name: value for name, value in saved.items() if name != "warmup_rate"}
    if isinstance(rate, (int, float)) and isinstance(steps, int):
        return {**known, WARM_UP: round(rate * steps)}
    return {**known, WARM_UP: None}
