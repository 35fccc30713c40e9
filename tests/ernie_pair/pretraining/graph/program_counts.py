"""Builds the programs of some layouts and prints how often each operator is in them, as JSON.

program_counts.py PROCESSES
"""

import json
import sys
from collections import Counter

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

paddle.enable_static()
print("\n" + json.dumps({name: counts(flags) for name, flags in LAYOUTS.items()}))
