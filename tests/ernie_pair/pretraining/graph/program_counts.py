"""Builds the programs of some layouts and prints how often each operator is in them, and how they attend.

program_counts.py PROCESSES
"""

import json
import sys
from collections import Counter
from unittest.mock import patch

from gpu_program import build, pretend_processes

PROCESSES = int(sys.argv[1])
pretend_processes(PROCESSES)
BF16 = {"use_amp": True, "amp_dtype": "bfloat16"}
LAYOUTS = {
    "plain": {},
    "bfloat16 O1": BF16,
    "recompute": {"use_recompute": True},
    "skip": {"on_nan": "skip"},
    "accumulation": {"global_batch_size": 4 * 4 * PROCESSES},
    "lamb": {"optimizer": "lamb"},
}


def counts(flags):
    program = build(PROCESSES, **flags)
    found = {"parameters": len(program.update.slots), "owned": len(program.update.owned) // 4}
    for name, built in {"main": program.main, "update": program.mover, "test": program.test}.items():
        ops = [op.name().rpartition(".")[2] for op in built.global_block().ops] if built is not None else []
        found[name] = dict(Counter(ops))
    return found


import paddle  # noqa: E402 - after the processes

from ernie_pair.models.networks import kernel_path  # noqa: E402

# What a card decides: that it is new enough, and by which kernel it attends. Here that is the plain one.
sdpa, asked = sys.modules["paddle.nn.functional.sdpa"], []


def attended(**flags):
    """Return the types of the queries that Paddle's attention is asked with, each with its dropout."""
    asked.clear()
    build(PROCESSES, **BF16, **flags)
    return [[str(one.dtype[0]), one.dropout] for one in asked]


paddle.enable_static()
found = {name: counts(flags) for name, flags in LAYOUTS.items()}
with (
    patch.object(kernel_path, "gpu_capability", lambda: (8, 0)),
    patch.object(sdpa, "select_sdp_for_sdpa", lambda one: asked.append(one) or "math"),
):
    flash = {
        "plain": attended(attention_dropout=0.0),
        "recompute": attended(attention_dropout=0.0, use_recompute=True),
        "dropout": attended(),
    }
print("\n" + json.dumps([found, flash]))
