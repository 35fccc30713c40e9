"""What a classifier is asked with and answers, as PaddleNLP's classes are.

B batch, S sequence, C classes.
"""

from typing import Optional

import paddle
from paddle.nn import functional as F

from data_tools.base.errors import InputError
from ernie_pair.model_files.labels import CLASSIFICATION, RANKING


@paddle.jit.not_to_static
def refuse_other_inputs(position_ids, attention_mask, input_ids, pad_id: int) -> None:
    """Raise InputError for positions, and for a mask that is not that of the padding of ids int64 [B, S]."""
    if position_ids is not None:
        raise InputError("position_ids: the model counts the positions itself; leave them out")
    if attention_mask is None:
        return
    is_token_BS = input_ids != pad_id
    is_same_shape = list(attention_mask.shape) == list(is_token_BS.shape)
    if not (is_same_shape and bool((attention_mask.astype("bool") == is_token_BS).all())):
        raise InputError(
            "attention_mask is not 1 on the tokens and 0 on the padding, [B, S]; the model masks its padding "
            "itself: leave it out"
        )


@paddle.jit.not_to_static
def output_with_loss(logits_BC, labels, return_dict: Optional[bool], target: str):
    """Return (loss, logits), or with ``return_dict`` PaddleNLP's object of both; without labels no loss.

    The loss is the mean cross entropy of classes [B], or the mean squared error of scores [B]. Raises
    InputError for labels of a model for ranking, whose loss is one of all candidates of a query.
    """
    from ernie_pair.device.paddle_patches.paddlenlp_import import import_transformers

    loss = None
    if labels is not None and target == RANKING:
        raise InputError(
            "labels: a model for ranking learns from all candidates of a query, which PairTrainer brings "
            "together; leave them out"
        )
    if labels is not None and target == CLASSIFICATION:
        loss = F.cross_entropy(logits_BC, labels.reshape([-1]).astype("int64"))
    elif labels is not None:
        loss = F.mse_loss(logits_BC.reshape([-1]), labels.reshape([-1]).astype(logits_BC.dtype))
    if not return_dict:
        return loss, logits_BC
    import_transformers()
    from paddlenlp.transformers.model_outputs import SequenceClassifierOutput

    return SequenceClassifierOutput(loss=loss, logits=logits_BC)
