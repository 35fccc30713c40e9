"""Names that Paddle makes up (embedding_0.w_0, linear_12.b_0) -> structured ones, by the order of making.

The numbers run through a whole process, so they may begin anywhere and have gaps; within a kind they
rise in the order in which the layers were made, and that order is the model's own.
"""

import re
from typing import Dict, Iterable, List, NamedTuple, Optional

from data_tools.errors import CheckpointError
from ernie_pair.weights import Arrays, is_state

KINDS = ("embedding", "linear", "layer_norm")  # what an ERNIE is made of
_NAME = re.compile(r"([a-z][a-z_]*)_(\d+)\.([wb])_0")


class Module(NamedTuple):
    kind: str
    number: int
    names: Dict[str, str]  # w, b -> what the parameter is called


def is_numbered(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def names_by_order(found: Arrays, parameters: Dict[str, object], decoder_bias: str, where: str) -> Arrays:
    """``found`` under structured names: the n-th layer of a kind in it is the n-th of that kind in the model.

    Some versions of PaddleNLP count the decoder of the masked tokens among the linear layers, some
    make it otherwise; it is told by its bias, one number per token. Its weight, which the tie with
    the embedding replaced, is passed over, as is the state of the optimizer. Raises CheckpointError
    when the file holds more or fewer layers of a kind than the model.
    """
    arrays = {name: array for name, array in found.items() if not is_state(name)}
    strange = [name for name in arrays if not is_numbered(name)]
    if strange:
        raise CheckpointError(f"{where}: {strange[0]} is no name of an ERNIE's parameter; give other weights")
    ours = {parameter.name: name for name, parameter in reversed(list(parameters.items()))}
    model, file = _modules(ours), _modules(arrays)
    own_decoder = next(m for m in model if parameters[decoder_bias].name in m.names.values())
    decoder = _decoder_of(file, arrays, where)
    structured = {decoder_bias: arrays[decoder.names["b"]]}
    for kind in KINDS:
        theirs = [m for m in file if m.kind == kind and m is not decoder]
        wanted = [m for m in model if m.kind == kind and m is not own_decoder]
        _refuse_other_layers(kind, theirs, wanted, where)
        for one, other in zip(theirs, wanted):
            structured.update({ours[other.names[part]]: arrays[name] for part, name in one.names.items()})
    return structured


def _modules(names: Iterable[str]) -> List[Module]:
    """In the order of their numbers."""
    modules: Dict[tuple, Module] = {}
    for name in names:
        kind, number, part = _NAME.fullmatch(name).groups()
        modules.setdefault((kind, int(number)), Module(kind, int(number), {})).names[part] = name
    return [modules[key] for key in sorted(modules)]


def _decoder_of(modules: List[Module], arrays: Arrays, where: str) -> Module:
    embedding = next((arrays[m.names["w"]].shape for m in modules if m.kind == "embedding"), (0, 0))
    candidates = [m for m in modules if _is_decoder(m, arrays, embedding)]
    if len(candidates) != 1:
        raise CheckpointError(
            f"{where}: {len(candidates)} layers look like the decoder of {embedding[0]} tokens, where one is "
            "wanted; give the weights of a whole ERNIE of pretraining"
        )
    return candidates[0]


def _is_decoder(module: Module, arrays: Arrays, embedding: tuple) -> bool:
    weight: Optional[str] = module.names.get("w")
    bias = module.names.get("b")
    return (
        bias is not None
        and arrays[bias].shape == embedding[:1]
        and (weight is None or arrays[weight].shape == embedding)
    )


def _refuse_other_layers(kind: str, theirs: List[Module], wanted: List[Module], where: str) -> None:
    if [sorted(m.names) for m in theirs] != [sorted(m.names) for m in wanted]:
        raise CheckpointError(
            f"{where} holds {len(theirs)} layers of the kind {kind} ({_listed(theirs)}), the model of "
            f"config.json has {len(wanted)}; give weights of this config"
        )


def _listed(modules: List[Module]) -> str:
    names = [name for module in modules for name in module.names.values()]
    return f"{names[0]} to {names[-1]}" if names else "none"
