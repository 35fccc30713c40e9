"""Write the folder of a model that transformers loads with from_pretrained.

config.json  model.safetensors  vocab.txt  tokenizer.json  tokenizer_config.json  special_tokens_map.json
"""

from pathlib import Path
from typing import Dict, NamedTuple

from data_tools.files.json_file import write_json
from data_tools.text.folder_tokenizer import OWN_CLASS
from data_tools.text.wordpiece import CONTROL_TOKENS, WordPiece
from ernie_pair.model_files.hugging_face.fast_tokenizer import build_fast_tokenizer
from ernie_pair.model_files.hugging_face.names import to_their_names
from ernie_pair.model_files.hugging_face.settings import kind_of, to_their_config
from ernie_pair.model_files.spec import ModelSpec
from ernie_pair.model_files.tokenizer_files import tokenizer_files
from ernie_pair.weights.weight_files import Arrays, as_float32, safetensors_parts

CONFIG, WEIGHTS, VOCAB = "config.json", "model.safetensors", "vocab.txt"
FAST_TOKENIZER, TOKENIZER = "tokenizer.json", "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
WRITTEN = (CONFIG, WEIGHTS, VOCAB, FAST_TOKENIZER, TOKENIZER, SPECIAL_TOKENS)
NO_LENGTH = int(1e30)  # what transformers writes where a tokenizer has no longest text


class ModelParts(NamedTuple):
    """What a folder is made of, in the words of PaddleNLP.

    ``arrays``: its weights under its names; ``max_seq_len``: tokens per pair in training, 0 where it is not
    said; ``where``: what messages call the model.
    """

    spec: ModelSpec
    arrays: Arrays
    vocab_file: Path
    max_seq_len: int
    where: str


def write_their_folder(folder: Path, parts: ModelParts) -> None:
    """Fill ``folder`` with the files of transformers for a model of PaddleNLP.

    Raises InputError for a setting, and CheckpointError for a weight, that no class of transformers has.
    """
    kind, spec = kind_of(parts.arrays), parts.spec
    config = to_their_config(spec.config, spec.family, parts.arrays, parts.where, kind)
    arrays = as_float32(to_their_names(parts.arrays, spec.family, parts.where), parts.where)
    write_json(folder / CONFIG, config)
    with open(folder / WEIGHTS, "wb") as file:
        for part in safetensors_parts(arrays, {"format": "pt"}):
            file.write(part)
    if spec.tokenizer.is_folders:
        for name, content in tokenizer_files(parts.vocab_file, spec, parts.max_seq_len).items():
            (folder / name).write_bytes(content)
        return
    write_vocabulary(folder / VOCAB, parts.vocab_file, config["vocab_size"])
    tokenizer = WordPiece.from_file(folder / VOCAB, spec.lower_case)
    build_fast_tokenizer(tokenizer).save(str(folder / FAST_TOKENIZER))
    write_json(folder / TOKENIZER, _tokenizer_settings(tokenizer, parts.max_seq_len))
    write_json(folder / SPECIAL_TOKENS, _special_tokens())


def write_vocabulary(path: Path, vocab_file: Path, vocab_size: int) -> None:
    """Write the first ``vocab_size`` lines: twins beyond the rows of a model mark the words of a corpus."""
    lines = vocab_file.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:vocab_size]))


def _tokenizer_settings(tokenizer: WordPiece, max_seq_len: int) -> Dict[str, object]:
    """Return the content of tokenizer_config.json.

    The class is that which takes tokenizer.json as it is; BertTokenizer cuts symbols otherwise. Control
    tokens in a text are text.
    """
    return {
        "tokenizer_class": OWN_CLASS,
        "split_special_tokens": True,
        "do_lower_case": tokenizer.lower_case,
        "model_max_length": max_seq_len or NO_LENGTH,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        **_special_tokens(),
    }


def _special_tokens() -> Dict[str, str]:
    return {f"{token.strip('[]').lower()}_token": token for token in CONTROL_TOKENS}
