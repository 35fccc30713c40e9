"""Flags and values by the names that they had before, so that files and records of then are read."""

from typing import Any, Collection, Dict, Mapping, Optional

# {command, as records name it: {former flag: flag}}
FORMER_FLAGS: Dict[str, Dict[str, str]] = {
    "index": {"texts_file": "input_file", "model_path": "embedding_model", "precision": "dtype"},
    "search": {
        "model_path": "embedding_model",
        "reranker": "model_path",
        "queries_file": "input_file",
        "answers_file": "output_file",
        "query": "text",
    },
    **dict.fromkeys(("run", "serve"), {"model": "model_path"}),
    "fill-mask": {"model_name_or_path": "model_path", "text_file": "input_file", "output": "output_file"},
    "inspect-data": {"prefix": "input_path", "output": "output_dir", "samples": "num_samples"},
    "audit-text": {"input": "inputs", "output": "output_dir"},
    "audit-pairs": {"output": "output_dir"},
    "plot": {"output": "output_file"},
    "check-gpu": {"output": "output_file"},
    "build_vocab": {"output_path": "output_file"},
    "build-ngrams": {"output_path": "output_file"},
    "quickstart": {"steps": "max_steps"},
}

# {flag: {former value: value}}; a value may be several, joined by +
FORMER_VALUES: Dict[str, Dict[str, str]] = {
    "pooling": {
        "first_token": "cls",
        "mean_sqrt_len": "mean_sqrt_len_tokens",
        "weighted_mean": "weightedmean",
        "last_token": "lasttoken",
    },
}

FORMER_COMMANDS = {"run": "predict"}  # of records


def renamed(command: Optional[str], values: Mapping[str, Any]) -> Dict[str, Any]:
    """Return ``values`` of the flags of a command as these and their flags are called today."""
    names = FORMER_FLAGS.get(command or "", {})
    if not any(name in values for name in names.keys() - set(names.values())):
        names = {}
    called = {names.get(name, name): value for name, value in values.items()}
    return {name: value_now(name, value) for name, value in called.items()}


def value_now(name: str, value: Any) -> Any:
    """Return the ``value`` of the flag ``name`` as it is called today."""
    values = FORMER_VALUES.get(name)
    if values is None or not isinstance(value, str):
        return value
    return "+".join(values.get(one, one) for one in value.split("+"))


def flag_of(name: str, flags: Collection[str]) -> str:
    """Return which of ``flags`` had this ``name`` before, or the name as it is."""
    now = (names[name] for names in FORMER_FLAGS.values() if names.get(name) in flags)
    return next(now, name)
