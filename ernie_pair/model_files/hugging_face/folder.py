"""Write the folder of a model that transformers loads with from_pretrained.

config.json  model.safetensors  vocab.txt  tokenizer.json  tokenizer_config.json  special_tokens_map.json
"""

from pathlib import Path
from typing import Any, Mapping, NamedTuple

from data_tools.files.json_file import write_json
from ernie_pair.model_files.hugging_face.names import to_their_names
from ernie_pair.model_files.hugging_face.settings import kind_of, to_their_config
from ernie_pair.weights.weight_files import Arrays, as_float32, safetensors_parts

CONFIG, WEIGHTS, VOCAB = "config.json", "model.safetensors", "vocab.txt"
FAST_TOKENIZER, TOKENIZER = "tokenizer.json", "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
WRITTEN = (CONFIG, WEIGHTS, VOCAB, FAST_TOKENIZER, TOKENIZER, SPECIAL_TOKENS)


class ModelParts(NamedTuple):
    """What a folder is made of, in the words of PaddleNLP.

    ``config``: the content of its config.json; ``arrays``: its weights under its names; ``tokenizer``: {name:
    content} of the files of its tokenizer; ``where``: what messages call the model.
    """

    family: str
    config: Mapping[str, Any]
    arrays: Arrays
    tokenizer: Mapping[str, bytes]
    where: str


def write_their_folder(folder: Path, parts: ModelParts) -> None:
    """Fill ``folder`` with the files of transformers for a model of PaddleNLP.

    Raises InputError for a setting, and CheckpointError for a weight, that no class of transformers has.
    """
    kind = kind_of(parts.arrays)
    config = to_their_config(parts.config, parts.family, parts.arrays, parts.where, kind)
    arrays = as_float32(to_their_names(parts.arrays, parts.family, parts.where), parts.where)
    write_json(folder / CONFIG, config)
    with open(folder / WEIGHTS, "wb") as file:
        for part in safetensors_parts(arrays, {"format": "pt"}):
            file.write(part)
    for name, content in parts.tokenizer.items():
        (folder / name).write_bytes(content)
