"""Programs of pretraining for a GPU, which can be built and read without one.

``pretend_processes`` comes before the first import of Paddle.
"""

import os
from collections import Counter
from contextlib import nullcontext


def pretend_processes(processes: int) -> None:
    """Say in the launcher's words that this is the first of several processes."""
    if processes > 1:
        places = [f"127.0.0.1:{6170 + rank}" for rank in range(processes)]
        os.environ.update(
            PADDLE_TRAINERS_NUM=str(processes),
            PADDLE_TRAINER_ID="0",
            PADDLE_TRAINER_ENDPOINTS=",".join(places),
            PADDLE_CURRENT_ENDPOINT=places[0],
        )


def start(processes: int):
    """Start fleet; returns the context in which programs are built."""
    import paddle

    from ernie_pair.pretrain.graph.strategy import start_fleet
    from ernie_pair.runtime.paddle_patches.static_programs import without_nccl

    start_fleet("gpu", processes)
    # A CPU build cannot exchange NCCL's ids; the program is the same.
    return nullcontext() if paddle.is_compiled_with_cuda() else without_nccl()


def build(processes: int, capability=(8, 0), **flags):
    """The programs of a tiny ERNIE on a GPU of ``capability``; the state is sharded where processes are."""
    from tiny_pretrain import SIZES, VOCAB

    from ernie_pair.models.spec import parse_spec
    from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
    from ernie_pair.pretrain.graph.fusion import choose_fused
    from ernie_pair.pretrain.graph.model import ernie_config
    from ernie_pair.pretrain.graph.program import build_program

    paths = {name: "unused" for name in ("model_name_or_path", "input_dir", "output_dir")}
    layout = {"sharding_degree": processes, "use_sharding": processes > 1}
    config = PretrainConfig(**paths, **{"device": "gpu", "micro_batch_size": 4, **layout, **flags})
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    settings = ernie_config(parse_spec({"vocab_size": len(VOCAB), **SIZES}), **dropout)
    head_size = SIZES["hidden_size"] // SIZES["num_attention_heads"]
    return build_program(config, settings, fused=choose_fused(config, head_size, capability))


def ops_of(main):
    """The ops that a step runs, with the block that each stands in."""
    from ernie_pair.pretrain.graph.strategy import updates_of

    block, _ = updates_of(main)
    return [(part, op) for part in {0: main.global_block(), block.idx: block}.values() for op in part.ops]


def collectives_of(main):
    """{"c_allreduce_sum float32": how many, ...}."""
    return Counter(
        f"{op.type} {str(block._var_recursive(op.output_arg_names[0]).dtype).partition('.')[2].lower()}"
        for block, op in ops_of(main)
        if op.type in ("c_allreduce_sum", "c_broadcast")
    )
