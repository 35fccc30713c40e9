"""ErnieForPretraining in the graph that is being built, and what its parameters are called."""

from typing import Dict, List, NamedTuple

import paddle
import paddle.nn.functional as F
from paddlenlp.transformers import ErnieConfig, ErnieForPretraining

NO_LABEL = -1
TASKS = ("lm", "sop")


class Outputs(NamedTuple):
    """Static variables. P masked slots, B samples, V vocabulary."""

    lm_logits_PV: paddle.Tensor
    sop_logits_B2: paddle.Tensor
    layers: List[str]  # the name of each encoder layer's output


class Sums(NamedTuple):
    """Sums over the labelled tokens and samples of one pass; float32 []."""

    lm_loss: paddle.Tensor
    lm_correct: paddle.Tensor
    sop_loss: paddle.Tensor
    sop_correct: paddle.Tensor


def ernie_config(
    settings: Dict, *, hidden_dropout_prob: float, attention_probs_dropout_prob: float
) -> ErnieConfig:
    """The configuration of config.json with the dropout of this run."""
    dropout = {
        "hidden_dropout_prob": hidden_dropout_prob,
        "attention_probs_dropout_prob": attention_probs_dropout_prob,
    }
    return ErnieConfig.from_dict({**settings, **dropout})


def build_ernie(config: ErnieConfig) -> ErnieForPretraining:
    """The model, with parameter names that depend on nothing built before."""
    with paddle.utils.unique_name.guard():
        return ErnieForPretraining(config)


def run_ernie(model: ErnieForPretraining, feeds: Dict[str, paddle.Tensor]) -> Outputs:
    """The forward pass over the arrays of ``data_tools.collate``.

    The model itself adds -1e4 to the attention scores of padding: no mask is fed.
    """
    layers: List[str] = []
    hooks = [
        layer.register_forward_post_hook(lambda _, __, output: layers.append(output.name))
        for layer in model.ernie.encoder.layers
    ]
    lm_logits, sop_logits = model(
        input_ids=feeds["input_ids"],
        token_type_ids=feeds["token_type_ids"],
        masked_positions=feeds["masked_positions"],
    )
    for hook in hooks:
        hook.remove()
    return Outputs(lm_logits, sop_logits, layers)


def sum_losses(outputs: Outputs, feeds: Dict[str, paddle.Tensor]) -> Sums:
    """Cross entropy and hits, summed over what has a label: filling slots count for nothing."""
    lm = _sums(outputs.lm_logits_PV, feeds["masked_lm_labels"])
    sop = _sums(outputs.sop_logits_B2, feeds["next_sentence_labels"])
    return Sums(*lm, *sop)


def _sums(logits: paddle.Tensor, labels: paddle.Tensor):
    loss = F.cross_entropy(logits, labels, ignore_index=NO_LABEL, reduction="none")
    hits = paddle.cast(paddle.argmax(logits, axis=-1) == labels, "float32")
    return paddle.sum(loss), paddle.sum(hits)
