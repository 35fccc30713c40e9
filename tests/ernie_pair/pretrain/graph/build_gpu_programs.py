"""Builds the program of each strategy for a GPU, which needs none, and prints its op counts as JSON.

build_gpu_programs.py PROCESSES
"""

import json
import sys
from collections import Counter

from gpu_program import build, ops_of, pretend_processes, start

PROCESSES = int(sys.argv[1])
pretend_processes(PROCESSES)

WATCHED = {
    *("cast", "matmul_v2", "softmax", "layer_norm", "dropout", "seed", "adamw", "lamb", "sqrt"),
    "conditional_block",
    *("check_finite_and_unscale", "update_loss_scaling", "c_allreduce_sum", "c_broadcast", "coalesce_tensor"),
    *("flash_attn", "flash_attn_grad", "fused_gemm_epilogue", "fused_softmax_mask"),
}
AMP, MERGE = {"use_amp": True, "amp_dtype": "float16"}, {"global_batch_size": 4 * 4 * PROCESSES}
PLAIN, WIDE = {"fused_ops": "none"}, {"amp_fp32_ops": "softmax,layer_norm,gelu"}
STRATEGIES = {
    "float32": PLAIN,
    "float16 O1": {**AMP, **PLAIN},
    "float16 O1, more in float32": {**AMP, **PLAIN, **WIDE},
    "float16 O2": {**AMP, **PLAIN, "amp_level": "O2"},
    "float16 O2, recompute": {**AMP, **PLAIN, "amp_level": "O2", "use_recompute": True},
    "bfloat16 O1": {**AMP, **PLAIN, "amp_dtype": "bfloat16"},
    "bfloat16 O1, skip": {**AMP, **PLAIN, "amp_dtype": "bfloat16", "on_nan": "skip"},
    "skip what is not finite": {**PLAIN, "on_nan": "skip"},
    "gradient merge": {**MERGE, **PLAIN},
    "recompute": {**PLAIN, "use_recompute": True},
    "float16 O1, gradient merge, recompute": {**AMP, **MERGE, **PLAIN, "use_recompute": True},
    "float16 O2, lamb, recompute": {
        **{**AMP, **PLAIN, "amp_level": "O2"},
        **{"use_recompute": True, "optimizer": "lamb"},
    },
    "bfloat16 O1, recompute": {**AMP, **PLAIN, "amp_dtype": "bfloat16", "use_recompute": True},
}
FUSED = {  # a build for CPUs does not know all of these ops
    "float16 O1, 7.5, fused": {**AMP, "capability": (7, 5)},
    "float16 O1, fused": AMP,
    "float16 O2, fused": {**AMP, "amp_level": "O2"},
    "bfloat16 O1, recompute, fused": {**AMP, "amp_dtype": "bfloat16", "use_recompute": True},
    "float16 O1, gradient merge, recompute, fused": {**AMP, **MERGE, "use_recompute": True},
}


def counts(flags):
    ops = [op.type for _, op in ops_of(build(PROCESSES, **flags).main)]
    return {"all": len(ops), **dict(sorted(Counter(op for op in ops if op in WATCHED).items()))}


with start(PROCESSES):
    print("\n" + json.dumps({name: counts(flags) for name, flags in {**STRATEGIES, **FUSED}.items()}))
