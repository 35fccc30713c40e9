"""How a lane is started: its command, its spec in a file, and the ways in which each side can work."""

import json
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from ernie_pair.device.cpu_level import cpu_level
from ernie_pair.kernels.levels import has_bf16
from ernie_pair.kernels.library import open_kernels
from side_by_side.lanes import Lane, Work
from side_by_side.peer.python import SCRIPTS, path_of_peer

# For the peer: precision, and whether it has its best settings.
PEER_WAYS = {"peer fp32": ("fp32", True), "peer bf16": ("bf16", True), "peer defaults": ("fp32", False)}


def our_lane(
    folder: Path,
    name: str,
    precision: str,
    spec: Dict[str, Any],
    work: Sequence[Work] = (),
    side: str = "ours",
) -> Lane:
    """Return a lane of this package, its spec written into ``folder``."""
    paths = [str(SCRIPTS), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    command = [sys.executable, "-m", "side_by_side.our_lane", _written(folder, name, spec)]
    output = spec.get("flags", {}).get("output_dir")
    events = Path(output) / "metrics.jsonl" if output else None
    return Lane(name, side, precision, command, work, {"PYTHONPATH": os.pathsep.join(paths)}, events)


def peer_lane(flags, folder: Path, name: str, spec: Dict[str, Any], work: Sequence[Work]) -> Lane:
    """Return the lane of the peer called ``name``, one of PEER_WAYS, its spec written into ``folder``."""
    precision, best = PEER_WAYS[name]
    spec = {**spec, "precision": precision, "best": best, "threads": flags.threads, "device": flags.device}
    command = [flags.peer_python, "-m", "side_by_side.peer.lane", _written(folder, name, spec)]
    return Lane(name, "peer", precision, command, work, path_of_peer())


def peer_ways(device: str) -> List[str]:
    """Return the ways in which the peer is measured: not in bf16 if the CPU would only emulate it."""
    emulates = device == "cpu" and not has_bf16(cpu_level())
    return [name for name, (precision, _) in PEER_WAYS.items() if not (emulates and precision == "bf16")]


def _written(folder: Path, name: str, spec: Dict[str, Any]) -> str:
    path = folder / f"{name.replace(' ', '_')}.json"
    path.write_text(json.dumps(spec), encoding="utf-8")
    return str(path)


def ways_of(config_class: type, device: str) -> Dict[str, Tuple[str, Dict[str, Any]]]:
    """Return {name of a way: (precision, its flags)} that ``config_class`` can be run in, on this machine.

    On a GPU bf16 is mixed precision; on a CPU it is that of the fused kernels.
    """
    ways: Dict[str, Tuple[str, Dict[str, Any]]] = {"plain fp32": ("fp32", {"kernels": "plain"})}
    if device == "gpu":
        trains = "use_amp" in {each.name for each in fields(config_class)}
        half = {"use_amp": True, "amp_dtype": "bfloat16"} if trains else {"precision": "bf16"}
        return {**ways, "mixed bf16": ("bf16", half)}
    kernels = open_kernels()
    if kernels.library is not None:
        ways["fused fp32"] = ("fp32", {"kernels": "fused"})
    if kernels.has_bf16:
        ways["fused bf16"] = ("bf16", {"kernels": "fused", "precision": "bf16"})
    return ways


def peer_model(config_file: Path) -> Dict[str, Any]:
    """Return the sizes of a model's config.json as keyword arguments of transformers' BertConfig."""
    config = json.loads(config_file.read_text(encoding="utf-8"))
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    taken = {name: config[name] for name in (*names, "max_position_embeddings")}
    taken["hidden_act"] = config.get("hidden_act", "gelu")
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    return {**taken, **dropout, "type_vocab_size": config.get("type_vocab_size", 2), "num_labels": 2}


def save_batches(path: Path, batches: List[Dict[str, np.ndarray]]) -> None:
    """Write batches for the peer: the array ``key`` of batch i as key.i, but for what is None."""
    named = ((f"{key}.{i}", array) for i, batch in enumerate(batches) for key, array in batch.items())
    np.savez(path, **{name: array for name, array in named if array is not None})
