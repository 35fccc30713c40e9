"""Builds the program of each strategy for a GPU, which needs none, and prints its op counts as JSON.

build_gpu_programs.py PROCESSES
"""

import json
import os
import sys
from collections import Counter
from contextlib import nullcontext

PROCESSES = int(sys.argv[1])
if PROCESSES > 1:  # the words of the launcher, to the first of several processes
    places = [f"127.0.0.1:{6170 + rank}" for rank in range(PROCESSES)]
    os.environ.update(
        PADDLE_TRAINERS_NUM=str(PROCESSES),
        PADDLE_TRAINER_ID="0",
        PADDLE_TRAINER_ENDPOINTS=",".join(places),
        PADDLE_CURRENT_ENDPOINT=places[0],
    )

import paddle  # noqa: E402 - reads the variables above
from tiny_pretrain import SIZES, VOCAB  # noqa: E402

from ernie_pair.device.paddle_patches.static_fleet import without_nccl  # noqa: E402
from ernie_pair.model_files.spec import parse_spec  # noqa: E402
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig  # noqa: E402
from ernie_pair.pretrain.graph.model import ernie_config  # noqa: E402
from ernie_pair.pretrain.graph.program import build_program  # noqa: E402
from ernie_pair.pretrain.graph.strategy import start_fleet  # noqa: E402
from ernie_pair.pretrain.graph.zero1 import updates_of  # noqa: E402

WATCHED = {
    *("cast", "matmul_v2", "softmax", "layer_norm", "dropout", "seed", "adamw", "sqrt", "conditional_block"),
    *("check_finite_and_unscale", "update_loss_scaling", "c_allreduce_sum", "c_broadcast", "coalesce_tensor"),
}
AMP, MERGE = {"use_amp": True}, {"global_batch_size": 4 * 4 * PROCESSES}
STRATEGIES = {
    "float32": {},
    "float16 O1": AMP,
    "float16 O2": {**AMP, "amp_level": "O2"},
    "bfloat16 O1": {**AMP, "amp_dtype": "bfloat16"},
    "bfloat16 O1, skip": {**AMP, "amp_dtype": "bfloat16", "on_nan": "skip"},
    "skip what is not finite": {"on_nan": "skip"},
    "gradient merge": MERGE,
    "recompute": {"use_recompute": True},
    "float16 O1, gradient merge, recompute": {**AMP, **MERGE, "use_recompute": True},
}


def counts(flags):
    shard = {"sharding_degree": PROCESSES, "use_sharding": PROCESSES > 1}
    paths = {name: "unused" for name in ("model_name_or_path", "input_dir", "output_dir")}
    config = PretrainConfig(**paths, device="gpu", micro_batch_size=4, **shard, **flags)
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    main = build_program(
        config, ernie_config(parse_spec({"vocab_size": len(VOCAB), **SIZES}), **dropout)
    ).main
    block, _ = updates_of(main)
    run = [op for part in {0: main.global_block(), block.idx: block}.values() for op in part.ops]
    found = Counter(op.type for op in run if op.type in WATCHED)
    return {"all": len(run), **dict(sorted(found.items()))}


# A CPU build cannot exchange NCCL's ids; the program is the same.
meets = nullcontext() if paddle.is_compiled_with_cuda() else without_nccl()
start_fleet("gpu", PROCESSES)
with meets:
    print("\n" + json.dumps({name: counts(flags) for name, flags in STRATEGIES.items()}))
