"""Match the arrays of a file with the parameters of a model, by their names."""

from typing import Dict, Mapping, Tuple, Union

import numpy as np

from data_tools.base.errors import CheckpointError
from ernie_pair.weights.static_names import Parameter
from ernie_pair.weights.weight_files import Arrays, refuse_mismatch

Prefixes = Union[str, Tuple[str, ...]]


def match_parameters(
    parameters: Mapping[str, Parameter],
    found: Arrays,
    where: str,
    *,
    may_miss: Prefixes = "",
    may_have: Prefixes = "",
) -> Arrays:
    """Match the arrays of a file with the parameters of a model, by structured names, all or nothing.

    ``parameters``: {structured name: parameter}; two names of one (tied) parameter are aliases and
    the file, ``where``, may use either. Names that start with ``may_miss`` may be missing from it,
    names in it that start with ``may_have`` are ignored; empty: none. Returns {parameter.name:
    array}. Raises CheckpointError naming what is missing, unknown or of another shape.
    """
    chosen: Arrays = {}
    unknown: Arrays = {}
    for name, array in found.items():
        if name not in parameters:
            if not (may_have and name.startswith(may_have)):
                unknown[name] = array
            continue
        key = parameters[name].name
        if key in chosen and not np.array_equal(chosen[key], array):
            raise CheckpointError(
                f"{where}: {name} is tied to another name but differs from it; fix the file"
            )
        chosen[key] = array
    first_names: Dict[str, str] = {}
    for name, parameter in parameters.items():
        first_names.setdefault(parameter.name, name)
    wanted = {
        first_names[parameter.name]: tuple(parameter.shape)
        for parameter in parameters.values()
        if parameter.name in chosen or not (may_miss and first_names[parameter.name].startswith(may_miss))
    }
    named = {first_names[key]: array for key, array in chosen.items()}
    refuse_mismatch(wanted, {**named, **unknown}, where)
    return chosen
