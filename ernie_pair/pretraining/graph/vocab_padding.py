"""The rows that the program adds to the vocabulary, so that its matrices are a multiple of 8 wide.

Half-precision matrix units need it. Files never hold those rows: they are cut on the way out and put
back on the way in. They have no effect on the rest of the graph: the bias of an added token is -1e4 (which
float16 can hold), so its probability is exactly 0 in float32, and so are its gradients; bias and moments
do not change, and the values in its row of the embedding affect nothing. Cutting the logits
instead would copy [P, V] numbers in each pass and give the loss a width that is no multiple of 8.
"""

import numpy as np

from ernie_pair.models.hugging_face import DECODER
from ernie_pair.weights.weight_files import Arrays

MULTIPLE = 8
NEVER_LOGIT = -1e4
EMBEDDING = "embeddings.word_embeddings.weight"


def padded_size(vocab_size: int) -> int:
    """Return the rows of the program's vocabulary: the next multiple of 8."""
    return -(-vocab_size // MULTIPLE) * MULTIPLE


def pad_vocabulary(arrays: Arrays, vocab_size: int) -> Arrays:
    """Pad a file's arrays to the program's; names are structured, or end in a slot: `NAME/moment1_0`."""
    padded = dict(arrays)
    for name, array in arrays.items():
        if _has_a_row_per_token(name) and array.shape[:1] == (vocab_size,):
            parameter, _, slot = name.partition("/")
            is_bias = parameter.endswith("bias") and "moment" not in slot  # or its float32 copy at O2
            shape = padded_size(vocab_size) - vocab_size, *array.shape[1:]
            added = np.full(shape, NEVER_LOGIT if is_bias else 0.0, array.dtype)
            padded[name] = np.concatenate([array, added])
    return padded


def cut_vocabulary(arrays: Arrays, vocab_size: int) -> Arrays:
    """Cut the arrays of the program, or of a file with the added rows, to what our files hold."""
    padded = padded_size(vocab_size)
    return {
        name: array[:vocab_size] if _has_a_row_per_token(name) and array.shape[:1] == (padded,) else array
        for name, array in arrays.items()
    }


def _has_a_row_per_token(name: str) -> bool:
    parameter = name.partition("/")[0]
    return parameter.endswith(EMBEDDING) or parameter.startswith(DECODER)
