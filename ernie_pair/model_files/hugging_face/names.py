"""Parameter names and orientations: those of PaddleNLP and those of transformers.

A linear weight is [in, out] in Paddle and [out, in] in torch; embeddings, norms, biases and convolutions have
one shape in both. The decoder of the masked tokens is tied to the word embedding in both, and stands in a
file of transformers under its bias alone.
"""

import re
from typing import Dict, List, Mapping, Tuple

import numpy as np

from data_tools.base.errors import CheckpointError
from ernie_pair.model_files.hugging_face.counterparts import COUNTERPARTS, NUMBER, Counterpart
from ernie_pair.weights.weight_files import Arrays

WORDS = "embeddings.word_embeddings.weight"
TABLES = ("_embeddings", "decoder")  # how the modules end whose weights are tables, not to be transposed
WRAPPERS = ("module.", "_orig_mod.")  # before all names of a model that was wrapped: DataParallel, compile
OLD_ENDINGS = {"gamma": "weight", "beta": "bias"}  # of norms, in files of TensorFlow's time
# Tables of positions that every model computes, which older versions wrote down.
COMPUTED = ("embeddings.position_ids", "embeddings.token_type_ids")
DECODER, DECODER_BIAS, BIAS = (
    "cls.predictions.decoder",
    "cls.predictions.decoder_bias",
    "cls.predictions.bias",
)
_INDEX = re.compile(r"(?<=\.)\d+(?=\.)")


def from_their_names(found: Arrays, family: str) -> Arrays:
    """Return the arrays of a file of transformers as PaddleNLP names and turns them.

    What has no place in this family keeps its name. Both names of the tied decoder are given, where there is
    one.
    """
    peer = COUNTERPARTS[family]
    modules = {theirs: ours for ours, theirs in {**peer.modules, **peer.heads}.items()}
    for wrapper in WRAPPERS:
        if all(name.startswith(wrapper) for name in found):
            found = {name[len(wrapper) :]: array for name, array in found.items()}
    prefix = prefix_in(found)
    renamed: Arrays = {}
    for name, array in found.items():
        if name.endswith(COMPUTED):
            continue
        name, is_inside = _without_prefix(_with_new_ending(name), prefix, peer.modules.values())
        ours = _renamed(name, modules)
        if ours is None:
            renamed[(peer.own_prefix if is_inside else "") + name] = array
        else:
            renamed[(peer.own_prefix if is_inside else "") + ours] = _turned(ours, array)
    return _with_tied_decoder(renamed, peer)


def to_their_names(arrays: Arrays, family: str, where: str) -> Arrays:
    """Return the arrays of a model of PaddleNLP as transformers names and turns them.

    Raises CheckpointError for a name that has no place there.
    """
    peer = COUNTERPARTS[family]
    modules = {**peer.modules, **peer.heads}
    is_whole = any(name.startswith(peer.own_prefix) for name in arrays)
    renamed: Arrays = {}
    for name, array in arrays.items():
        if name.endswith(COMPUTED):
            continue
        if name.startswith(DECODER) and DECODER in modules:
            if array.ndim == 1:
                renamed[BIAS] = array
            continue
        inside, is_inside = _without_prefix(name, peer.own_prefix if is_whole else "", peer.modules)
        theirs = _renamed(inside, modules)
        if is_inside and inside.startswith(peer.unused):
            continue
        if theirs is None:
            raise CheckpointError(
                f"{where}: {name} has no place in {peer.class_start}Model of transformers; only whole models "
                f"of {family} are written for it"
            )
        renamed[(peer.prefix if is_inside else "") + theirs] = _turned(inside, array)
    return renamed


def prefix_in(found: Mapping[str, object]) -> str:
    """Return what the names inside the encoder begin with: 'bert.', or '' of an encoder on its own."""
    return next((name[: -len(WORDS)] for name in found if name.endswith(WORDS)), "")


def missing_names(arrays: Mapping[str, object], family: str, num_layers: int) -> List[str]:
    """Return which parameters of an encoder of PaddleNLP's names ``arrays`` lack, in order."""
    peer = COUNTERPARTS[family]
    modules = [module for module in peer.modules if module not in peer.optional]
    layers = 1 if family == "albert" else num_layers  # its layers share their weights
    numbered = [module.replace(NUMBER, str(number)) for number in range(layers) for module in modules]
    names = [f"{peer.own_prefix}{module}.weight" for module in dict.fromkeys(numbered)]
    return [name for name in names if name not in arrays]


def own_heads(family: str) -> Tuple[str, ...]:
    """Return what PaddleNLP's names of the heads begin with that transformers has as well."""
    heads = COUNTERPARTS[family].heads
    return tuple(f"{module}." for module in heads) + ((DECODER_BIAS,) if DECODER in heads else ())


def _with_new_ending(name: str) -> str:
    module, _, ending = name.rpartition(".")
    return f"{module}.{OLD_ENDINGS[ending]}" if ending in OLD_ENDINGS else name


def _without_prefix(name: str, prefix: str, modules) -> Tuple[str, bool]:
    """Return a name without what names inside the encoder begin with, and whether it is inside.

    Of an encoder on its own, ``prefix`` '', all that begins like one of its ``modules`` is inside.
    """
    if prefix:
        return (name[len(prefix) :], True) if name.startswith(prefix) else (name, False)
    begins = {module.split(".")[0] for module in modules}
    return name, name.split(".")[0] in begins


def _renamed(name: str, modules: Dict[str, str]):
    """Return the other name of a parameter by {module: other module}; None: it has none."""
    module, _, ending = name.rpartition(".")
    numbers = iter(_INDEX.findall(f"{module}."))
    other = modules.get(_INDEX.sub(NUMBER, f"{module}.")[:-1])
    if other is None or ending not in ("weight", "bias"):
        return None
    return f"{re.sub(NUMBER, lambda _: next(numbers), other)}.{ending}"


def _turned(own_name: str, array: np.ndarray) -> np.ndarray:
    """Return the array of the other framework: a linear weight transposed, all else as it is."""
    is_linear = array.ndim == 2 and not own_name.rpartition(".")[0].endswith(TABLES)
    return np.ascontiguousarray(array.T) if is_linear else array


def _with_tied_decoder(arrays: Arrays, peer: Counterpart) -> Arrays:
    """Return the arrays with the decoder of the masked tokens under all names that PaddleNLP has for it."""
    bias = arrays.pop(BIAS, arrays.get(f"{DECODER}.bias"))
    words = f"{peer.own_prefix}{WORDS}"
    if bias is None or DECODER not in peer.heads or words not in arrays:
        return arrays
    decoder = {f"{DECODER}.weight": arrays[words], **{f"{DECODER}.bias": bias, DECODER_BIAS: bias}}
    return {**decoder, **arrays}
