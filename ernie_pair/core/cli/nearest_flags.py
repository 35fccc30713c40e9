"""Name the flag that an unknown one misspells, or stands for in the Trainer of transformers and PaddleNLP."""

from difflib import get_close_matches
from typing import Collection, Iterable, List

# {name there: ours, of which the first that a command has is named}
SYNONYMS = {
    "lr": "learning_rate max_lr",
    "num_train_epochs": "epochs max_steps",
    "epochs": "max_steps",
    "per_device_train_batch_size": "batch_size micro_batch_size",
    "logging_steps": "logging_freq log_interval",
    "eval_steps": "eval_freq",
    "max_grad_norm": "grad_clip",
    "fp16": "use_amp precision",
    "init_from_ckpt": "model_name_or_path model_path",
    "overwrite_output_dir": "fresh_start overwrite",
}


def nearest_names(word: str, names: Collection[str]) -> List[str]:
    """Return the names that begin with a word, at most 3, or else the one that it misspells; [] for none.

    A name with further words before it, save_threshold for threshold, is another thing, not misspelt.
    """
    begun = sorted((name for name in names if len(word) > 2 and name.startswith(word)), key=len)
    others = [name for name in names if not set(word.split("_")) < set(name.split("_"))]
    return begun[:3] or get_close_matches(word, others, n=1)


def suggest_flags(words: Iterable[str], names: Collection[str]) -> str:
    """Return a hint for words that are not flags: 'did you mean --max_steps?', and what lists the flags.

    ``names``: the flags of the command.
    """
    meant: List[str] = []
    for word in words:
        key = word.lower().replace("-", "_")
        known = [name for name in SYNONYMS.get(key, "").split() if name in names]
        meant += (known or nearest_names(key, names))[:1]
    hint = f"did you mean {', '.join('--' + flag for flag in dict.fromkeys(meant))}? " if meant else ""
    return f"{hint}--help lists the flags"
