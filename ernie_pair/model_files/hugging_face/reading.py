"""The files of a model that transformers saved: one safetensors file, or several with an index.

model.safetensors
model-00001-of-00002.safetensors, ..., model.safetensors.index.json: {"weight_map": {name: file}}
pytorch_model.bin, pytorch_model.bin.index.json      the same in pickles of torch, read without torch
"""

from pathlib import Path
from typing import Dict, List, Optional

from data_tools.base.errors import CheckpointError
from data_tools.files.json_file import parse_json_object, read_json_object
from ernie_pair.model_files.hugging_face.names import from_their_names
from ernie_pair.model_files.hugging_face.torch_pickle import read_torch_pickle
from ernie_pair.weights.weight_files import Arrays, read_weights

SAFETENSORS, PICKLE, INDEX = "model.safetensors", "pytorch_model.bin", ".index.json"
THEIR_FILES = (f"{SAFETENSORS}{INDEX}", PICKLE, f"{PICKLE}{INDEX}")
LARGEST_HEADER = 100 << 20  # what safetensors itself allows


def is_their_file(path: Path, is_their_config: bool) -> bool:
    """Return whether transformers wrote a file of weights: by its name or, of safetensors, by its metadata.

    ``is_their_config`` decides where the metadata say nothing.
    """
    if path.name in THEIR_FILES:
        return True
    if path.name != SAFETENSORS:
        return False
    made_by = metadata_of(path).get("format")
    return made_by == "pt" or (made_by is None and is_their_config)


def metadata_of(path: Path) -> Dict[str, object]:
    """Return what the header of a safetensors file says of itself; nothing of a damaged one."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length) if length <= LARGEST_HEADER else b""
    try:
        metadata = parse_json_object(text).get("__metadata__")
    except ValueError:  # whoever reads the arrays says what is wrong
        return {}
    return metadata if isinstance(metadata, dict) else {}


def find_their_weights(folder: Path) -> Optional[Path]:
    """Return the file of weights that only transformers has; None: there is none."""
    return next((folder / name for name in THEIR_FILES if (folder / name).is_file()), None)


def weight_files(path: Path) -> List[Path]:
    """Return the files that hold the weights of ``path``: itself, or those that an index names.

    Raises CheckpointError when it is no index, or names what is not a file beside it.
    """
    return [path, *sorted(set(_shards_of(path).values()))] if path.name.endswith(INDEX) else [path]


def read_their_weights(path: Path, family: str) -> Arrays:
    """Read the weights of a model of transformers, under the names and orientations of PaddleNLP.

    Raises CheckpointError when a file is missing, damaged, or not what its index promises.
    """
    if not path.name.endswith(INDEX):
        return from_their_names(_read_one(path), family)
    shards, found = _shards_of(path), {}
    for file in sorted(set(shards.values())):
        found.update(_read_one(file))
    missing = [name for name in shards if name not in found]
    if missing:
        raise CheckpointError(
            f"{path}: {missing[0]} is not in {shards[missing[0]].name}; copy the model again"
        )
    return from_their_names(found, family)


def _read_one(path: Path) -> Arrays:
    return read_weights(path) if path.suffix == ".safetensors" else read_torch_pickle(path)


def _shards_of(index: Path) -> Dict[str, Path]:
    """Return {name of an array: the file that holds it}."""
    cure = "copy the model again"
    places = read_json_object(index, cure, CheckpointError).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{index}: no weight_map in it; {cure}")
    for file in places.values():
        if not isinstance(file, str) or Path(file).name != file or not (index.parent / file).is_file():
            raise CheckpointError(f"{index}: {str(file)[:100]} is no file beside it; {cure}")
    return {name: index.parent / file for name, file in places.items()}
