"""Builds the program of every strategy for GPUs and prints the types of its collectives as JSON.

build_collectives.py PROCESSES
"""

import json
import sys
from itertools import product

from gpu_program import build, collectives_of, pretend_processes, start

PROCESSES = int(sys.argv[1])
pretend_processes(PROCESSES)

NO_SHARDS = {"dp_degree": PROCESSES, "sharding_degree": 1, "use_sharding": False}
MERGE, RECOMPUTE = {"global_batch_size": 4 * 4 * PROCESSES}, {"use_recompute": True}
LAYOUTS = {
    "plain": NO_SHARDS,
    "merge": {**NO_SHARDS, **MERGE},
    "recompute": {**NO_SHARDS, **RECOMPUTE},
    "sharding": {},
    "sharding, merge": MERGE,
    "sharding, recompute": RECOMPUTE,
    "sharding, merge, recompute": {**MERGE, **RECOMPUTE},
}
PRECISIONS = {
    "float16 O1": {"use_amp": True, "amp_dtype": "float16"},
    "bfloat16 O1": {"use_amp": True, "amp_dtype": "bfloat16"},
    "float16 O2": {"use_amp": True, "amp_dtype": "float16", "amp_level": "O2"},
}


def collectives():
    for (layout, first), (precision, second) in product(LAYOUTS.items(), PRECISIONS.items()):
        if "merge" in layout and "O2" in precision:
            continue  # refused
        like_float16 = PROCESSES == 1 or precision == "bfloat16 O1" and "," in layout
        if precision != "float16 O1" and like_float16 and "all" not in sys.argv:
            continue
        ways = [("float32", "auto")]
        if PROCESSES > 1 and layout in ("plain", "sharding"):
            ways.append(("half", "auto"))
        if PROCESSES > 1 and "sharding" in layout and "recompute" not in layout and precision == "float16 O1":
            ways.append(("float32", "none"))
        for sums, fused in ways:
            program = build(PROCESSES, **first, **second, reduce_dtype=sums, fused_ops=fused)
            yield f"{layout}; {precision}; {sums}; {fused}", collectives_of(program.main)


with start(PROCESSES):
    print("\n" + json.dumps(dict(collectives())))
