"""Programs of pretraining for a GPU, which can be built and read without one.

``pretend_processes`` comes before the first import of Paddle.
"""

import os


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


def build(processes: int, attention_dropout: float = 0.1, **flags):
    from tiny_pretrain import SIZES, VOCAB

    from ernie_pair.models.spec import parse_spec
    from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
    from ernie_pair.pretraining.graph.model import ernie_config
    from ernie_pair.pretraining.graph.program import build_program

    paths = {name: "unused" for name in ("model_name_or_path", "input_dir", "output_dir")}
    layout = {"sharding_degree": processes, "use_sharding": processes > 1}
    config = PretrainConfig(**paths, **{"device": "gpu", "micro_batch_size": 4, **layout, **flags})
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": attention_dropout}
    settings = ernie_config(parse_spec({"vocab_size": len(VOCAB), **SIZES}), **dropout)
    return build_program(config, settings)
