"""The folder of a model that transformers loads with from_pretrained, written and read.

config.json  model.safetensors  vocab.txt  tokenizer.json  tokenizer_config.json  special_tokens_map.json

tokenizer.json is the tokenization of `WordPiece` in the format of the library `tokenizers`. The rule of each
character, a table there, is a class of a regular expression here: what vanishes is taken out, what stands
alone and what is space splits, and the WordPiece model cuts the words between. "[MASK]", "[SEP]" and their
like in a text are text where tokenizer_config.json says split_special_tokens.
"""

import io
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece as WordCutter

from data_tools.files.errors import CheckpointError
from data_tools.files.json_file import parse_json_object, read_json_object, write_json
from data_tools.text.wordpiece import (
    ALONE,
    COMPOSITE,
    CONTROL_TOKENS,
    LONGEST_WORD,
    SPACE,
    VANISHES,
    WordPiece,
    character_kinds,
)
from ernie_pair.models.hugging_face.counterparts import (
    COMPUTED,
    COUNTERPARTS,
    from_their_names,
    to_their_names,
)
from ernie_pair.models.hugging_face.settings import kind_of, to_their_config
from ernie_pair.weights.weight_files import Arrays, PlainUnpickler, as_float32, read_weights, write_for_torch

UNUSED = "[unused of "  # begins the name of an id whose token stands twice
SURROGATES = slice(0xD800, 0xE000)  # no text of `tokenizers` holds one
CONFIG, WEIGHTS, VOCAB = "config.json", "model.safetensors", "vocab.txt"
FAST_TOKENIZER, TOKENIZER = "tokenizer.json", "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
WRITTEN = (CONFIG, WEIGHTS, VOCAB, FAST_TOKENIZER, TOKENIZER, SPECIAL_TOKENS)
MODEL_STATE = "model_state.pdparams"
OWN_FILES = (CONFIG, TOKENIZER, VOCAB, FAST_TOKENIZER, MODEL_STATE)
# What torch calls a storage of each type; bfloat16 comes as its bits.
STORAGES = {
    "FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "BFloat16Storage": "<u2",
    "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "i1",
    "ByteStorage": "u1", "BoolStorage": "?",
}  # fmt: skip
CURE = "save the model again as safetensors: model.save_pretrained(folder, safe_serialization=True)"
PICKLE, INDEX = "pytorch_model.bin", ".index.json"
THEIR_FILES = (f"{WEIGHTS}{INDEX}", PICKLE, f"{PICKLE}{INDEX}")
LARGEST_HEADER = 100 << 20  # what safetensors itself allows


def build_fast_tokenizer(tokenizer: WordPiece) -> Tokenizer:
    """Return the tokenizer that makes ``tokenizer``'s ids in transformers; a pair: [CLS] a [SEP] b [SEP]."""
    kinds = character_kinds(tokenizer.lower_case).copy()
    kinds[SURROGATES] = SPACE + len(CONTROL_TOKENS)  # of no kind
    vanishing, space = _class_of(kinds == VANISHES), _class_of(kinds == SPACE)
    alone = _class_of((kinds == ALONE) | (kinds == COMPOSITE))
    # The id of a token that occurs twice, whose later id is used, gets a name. No text is cut into it:
    # brackets stand alone.
    holes = set(range(tokenizer.vocab_size)) - set(tokenizer.vocab.values())
    vocab = {**tokenizer.vocab, **{f"{UNUSED}{index}]": index for index in sorted(holes)}}
    made = Tokenizer(WordCutter(vocab, unk_token="[UNK]", max_input_chars_per_word=LONGEST_WORD))
    steps: List[normalizers.Normalizer] = [normalizers.Replace(Regex(vanishing), "")]
    if tokenizer.lower_case:  # accents are characters of their own after NFD
        steps += [normalizers.Lowercase(), normalizers.NFD(), normalizers.Replace(Regex(vanishing), "")]
    made.normalizer = normalizers.Sequence(steps)
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(space), "removed"), pre_tokenizers.Split(Regex(alone), "isolated")]
    )
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", tokenizer.cls_id), ("[SEP]", tokenizer.sep_id)],
    )
    made.decoder = decoders.WordPiece()
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL_TOKENS])
    return made


def _class_of(is_in: np.ndarray) -> str:
    """Return the regular expression of the characters for which ``is_in``, bool [0x110000], is true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_in.astype(np.int8), [0]])))
    spans = zip(edges[0::2].tolist(), (edges[1::2] - 1).tolist())
    ranges = (f"\\x{{{a:X}}}" if a == b else f"\\x{{{a:X}}}-\\x{{{b:X}}}" for a, b in spans)
    return f"[{''.join(ranges)}]"


def write_their_folder(
    folder: Path,
    family: str,
    config: Mapping[str, Any],
    tokenizer: Mapping[str, bytes],
    arrays: Arrays,
    where: str,
) -> None:
    """Fill ``folder`` with the files of transformers for a model of PaddleNLP; ``where``: its name in errors.

    ``config`` is the content of its config.json, ``arrays`` are its weights under its names. Raises
    InputError for a setting, and CheckpointError for a weight, that no class of transformers has.
    """
    config = to_their_config(config, family, arrays, where, kind_of(arrays))
    write_for_torch(folder / WEIGHTS, as_float32(to_their_names(arrays, family, where), where))
    _write_beside(folder, config, tokenizer)


def _write_beside(folder: Path, config: Mapping[str, Any], tokenizer: Mapping[str, bytes]) -> None:
    write_json(folder / CONFIG, dict(config))
    for name, content in tokenizer.items():
        (folder / name).write_bytes(content)


def write_own_folder(
    folder: Path, config: Mapping[str, Any], tokenizer: Mapping[str, bytes], arrays: Arrays
) -> None:
    """Fill ``folder`` with config.json, the files ``tokenizer`` {name: content} and model_state.pdparams."""
    _write_beside(folder, config, tokenizer)
    wide = as_float32(arrays, str(folder))
    peer = COUNTERPARTS[config["model_type"]]
    if peer.keeps_positions:
        positions = np.arange(config["max_position_embeddings"], dtype=np.int64)
        wide[f"{peer.own_prefix}{COMPUTED[0]}"] = positions[None]
    write_weights(folder, wide)


def write_weights(folder: Path, weights: Arrays) -> None:
    """Write model_state.pdparams, a pickle of {name: array} as `paddle.save` writes a state dict."""
    arrays = {id(array): np.ascontiguousarray(array) for array in weights.values()}
    with open(folder / MODEL_STATE, "wb") as file:  # which holds an array under two names once
        pickle.dump({name: arrays[id(weights[name])] for name in sorted(weights)}, file, protocol=4)


class _Tensor(NamedTuple):
    """A tensor of the pickle before its numbers are read."""

    key: str
    kind: np.dtype
    offset: int
    size: Tuple[int, ...]
    stride: Tuple[int, ...]


def read_file_of_torch(path: Path) -> Arrays:
    """Read {name: array} from a safetensors file or a pytorch_model.bin; bfloat16 comes as uint16.

    Raises CheckpointError when it is damaged, of the form before torch 1.6, or asks for more than tensors.
    """
    if path.suffix == ".safetensors":
        return read_weights(path)
    try:
        with zipfile.ZipFile(path) as archive:
            pickled = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            _refuse_packed(archive, [pickled], path)
            tensors = _TorchUnpickler(io.BytesIO(archive.read(pickled))).load()
            if not isinstance(tensors, dict) or not all(isinstance(t, _Tensor) for t in tensors.values()):
                raise CheckpointError("it holds more than named tensors")
            begin = f"{pickled[: -len('data.pkl')]}data/"
            stored = {tensor.key: f"{begin}{tensor.key}" for tensor in tensors.values()}
            _refuse_packed(archive, stored.values(), path)
            contents = {key: archive.read(name) for key, name in stored.items()}
            return {str(name): _array_of(tensor, contents[tensor.key]) for name, tensor in tensors.items()}
    except CheckpointError as error:
        raise CheckpointError(f"{path} is refused: {error.message}; {CURE}") from None
    except Exception as error:  # a damaged archive or pickle raises nearly anything
        raise CheckpointError(f"{path} cannot be read ({error.__class__.__name__}); {CURE}") from None


def _refuse_packed(archive: zipfile.ZipFile, names: Iterable[str], path: Path) -> None:
    if sum(archive.getinfo(name).file_size for name in names) > path.stat().st_size:
        raise CheckpointError("it is packed, as torch never does")


def _array_of(tensor: _Tensor, content: bytes) -> np.ndarray:
    """Return the numbers of a tensor, in an order of its own where it is a transposed view."""
    numbers = np.frombuffer(content, tensor.kind)
    last = tensor.offset + sum((size - 1) * step for size, step in zip(tensor.size, tensor.stride))
    is_inside = min(tensor.size, default=1) > 0 and 0 <= tensor.offset <= last < len(numbers)
    if not is_inside or len(tensor.size) != len(tensor.stride) or min(tensor.stride, default=0) < 0:
        raise CheckpointError("a tensor lies outside of its storage")
    if np.prod(tensor.size, dtype=np.float64) > len(numbers):
        raise CheckpointError("a tensor is larger than its storage")
    steps = tuple(step * numbers.itemsize for step in tensor.stride)
    view = np.lib.stride_tricks.as_strided(numbers[tensor.offset :], tensor.size, steps, writeable=False)
    return np.ascontiguousarray(view)


def _rebuild(storage: Any, offset: int, size: tuple, stride: tuple, *_: object) -> _Tensor:
    key, kind = storage
    if not all(type(number) is int for number in (offset, *size, *stride)):
        raise CheckpointError("a tensor whose sizes are no numbers")
    return _Tensor(key, kind, offset, size, stride)


OF_TORCH: Dict[tuple, Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
    ("collections", "OrderedDict"): OrderedDict,
    **{("torch", name): np.dtype(kind) for name, kind in STORAGES.items()},
}


class _TorchUnpickler(PlainUnpickler):
    """The unpickler of plain arrays, with the few names of torch that stand for tensors."""

    def find_class(self, module, name):
        if (module, name) not in OF_TORCH:
            raise CheckpointError(f"blocked global {module}.{name}")
        return OF_TORCH[module, name]

    def persistent_load(self, pid):
        kind, storage_type, key, *_ = pid
        if kind != "storage" or not isinstance(storage_type, np.dtype) or not isinstance(key, str):
            raise CheckpointError("a storage of another kind")
        return key, storage_type


def is_their_file(path: Path, is_their_config: bool) -> bool:
    """Return whether transformers wrote a file of weights: by its name or, of safetensors, by its metadata.

    ``is_their_config`` decides where the metadata say nothing.
    """
    if path.name != WEIGHTS:
        return path.name in THEIR_FILES
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
    return [path, *sorted(set(_shards_of(path).values()))]


def read_their_weights(path: Path, family: str) -> Arrays:
    """Read the weights of a model of transformers, under the names and orientations of PaddleNLP.

    Raises CheckpointError when a file is missing, damaged, or not what its index promises.
    """
    found: Arrays = {}
    shards = _shards_of(path)
    for file in sorted(set(shards.values())) or [path]:
        found.update(read_file_of_torch(file))
    missing = [name for name in shards if name not in found]
    if missing:
        raise CheckpointError(
            f"{path}: {missing[0]} is not in {shards[missing[0]].name}; copy the model again"
        )
    return from_their_names(found, family)


def _shards_of(index: Path) -> Dict[str, Path]:
    """Return {name of a weight: its file} of an index, nothing of another file."""
    if not index.name.endswith(INDEX):
        return {}
    cure = "copy the model again"
    places = read_json_object(index, cure, CheckpointError).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{index}: no weight_map in it; {cure}")
    for file in places.values():
        if not isinstance(file, str) or Path(file).name != file or not (index.parent / file).is_file():
            raise CheckpointError(f"{index}: {str(file)[:100]} is no file beside it; {cure}")
    return {name: index.parent / file for name, file in places.items()}
