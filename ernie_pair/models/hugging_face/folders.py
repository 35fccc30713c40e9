"""The folder of a model that transformers loads with from_pretrained, written and read.

config.json  model.safetensors  vocab.txt  tokenizer.json  tokenizer_config.json  special_tokens_map.json

tokenizer.json is the tokenization of `WordPiece` in the format of the library `tokenizers`. The rule of each
character, a table there, is a class of a regular expression here: what vanishes is taken out, what stands
alone and what is space splits, and the WordPiece model cuts the words between. "[MASK]", "[SEP]" and their
like in a text are text where tokenizer_config.json says split_special_tokens.

In config.json the settings that affect the output are converted or refused:

theirs  {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "layer_norm_eps": 1e-12,
         "position_embedding_type": "absolute", "id2label": {"0": "different", "1": "same"}, ...}
ours    {"model_type": "bert", "layer_norm_eps": 1e-12, "num_labels": 2, "id2label": {...}, ...}
"""

import io
import pickle
import re
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece as WordCutter

from data_tools.text.folder_tokenizer import FAST_TOKENIZER, OWN_FAMILY, SPECIAL_TOKENS, VOCAB
from data_tools.text.wordpiece import (
    ALONE,
    COMPOSITE,
    CONTROL_TOKENS,
    MAX_WORD_LENGTH,
    SPACE,
    VANISHES,
    WordPiece,
    character_kinds,
)
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.core.files.json_file import is_number, parse_json_object, read_json_object, shown, write_json
from ernie_pair.models.hugging_face.counterparts import (
    COMPUTED,
    COUNTERPARTS,
    EPSILON,
    SPECIFIC,
    Counterpart,
    find_family,
    from_their_names,
    to_their_names,
    unsupported_type,
)
from ernie_pair.weights.weight_files import (
    Arrays,
    PlainUnpickler,
    as_float32,
    read_weights,
    unwrapped,
    write_for_torch,
)

UNUSED = "[unused of "  # begins the name of an id whose token stands twice
SURROGATES = slice(0xD800, 0xE000)  # no text of `tokenizers` holds one
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer_config.json"
WRITTEN = (CONFIG, WEIGHTS, VOCAB, FAST_TOKENIZER, TOKENIZER, SPECIAL_TOKENS)
MODEL_STATE = "model_state.pdparams"
OWN_FILES = (CONFIG, TOKENIZER, VOCAB, FAST_TOKENIZER, MODEL_STATE)
# What torch calls a storage of each type; bfloat16 comes as its bits.
STORAGES = {
    "FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "BFloat16Storage": "<u2",
    "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "i1",
    "ByteStorage": "u1", "BoolStorage": "?",
}  # fmt: skip
# What torch before 1.6 begins a file with.
MAGIC_BEFORE_ZIP, VERSION_BEFORE_ZIP = 0x1950A86A20F9469CFC6C, 1001
CURE = "save the model again as safetensors: model.save_pretrained(folder, safe_serialization=True)"
PICKLE, INDEX = "pytorch_model.bin", ".index.json"
THEIR_FILES = (f"{WEIGHTS}{INDEX}", PICKLE, f"{PICKLE}{INDEX}")
LARGEST_HEADER = 100 << 20  # what safetensors itself allows
PROBLEM, REGRESSION = "problem_type", "regression"  # what transformers calls a model with one output
OF_SCORES = ("num_labels", PROBLEM, "label_range", "pair_target")  # the keys of such a model; see `labels`
ACTIVATION = "score_activation"  # the same
# Where sentence-transformers keeps what its CrossEncoder makes of the outputs: from version 4 on, and before.
ACTIVATIONS = {"Sigmoid": "sigmoid", "Identity": "identity"}
CROSS_ENCODER, ACTIVATION_FN = "sentence_transformers", "activation_fn"
CROSS_ENCODER_CONFIG = "config_sentence_transformers.json"
OLD_ACTIVATION_FN = "sbert_ce_default_activation_function"
ACTIVATION_PATHS = {  # of torch, by our names of activations
    "tanh": "torch.nn.modules.activation.Tanh",
    "identity": "torch.nn.modules.linear.Identity",
    "relu": "torch.nn.modules.activation.ReLU",
    "gelu": "torch.nn.modules.activation.GELU",
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
    "silu": "torch.nn.modules.activation.SiLU",
}
CARRIED = (  # under one name and with one meaning in both
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings",
    "type_vocab_size", "initializer_range", "pad_token_id", "classifier_dropout",
)  # fmt: skip
# What transformers calls otherwise.
SAME_ACTIVATIONS = {"gelu_python": "gelu", "gelu_fast": "gelu_new", "gelu_pytorch_tanh": "gelu_new"}
THEIR_DEFAULTS = {"type_vocab_size": 2, "max_position_embeddings": 512, "hidden_act": "gelu"}
HARMLESS = {  # of what would change the answer, the values that do not
    "position_embedding_type": (None, "absolute"),
    "is_decoder": (None, False),
    "add_cross_attention": (None, False),
    "pruned_heads": (None, {}),
    "quantization_config": (None,),
    "problem_type": (None, "single_label_classification", REGRESSION),
}
MOST_EPSILON = 0.001  # of Paddle's layer norm
KINDS = ("ForSequenceClassification", "ForPreTraining", "ForMaskedLM", "Model")
_UNNAMED = re.compile(r"LABEL_\d+")


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
    made = Tokenizer(WordCutter(vocab, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_LENGTH))
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

    Raises CheckpointError when it is damaged, or asks for more than tensors.
    """
    if path.suffix == ".safetensors":
        return read_weights(path)
    try:
        with open(path, "rb") as file:
            if not zipfile.is_zipfile(file):
                file.seek(0)
                return _read_before_zip(file, path.stat().st_size)
        with zipfile.ZipFile(path) as archive:
            pickled = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            _refuse_packed(archive, [pickled], path)
            tensors = _tensors_in(io.BytesIO(archive.read(pickled)))
            begin = f"{pickled[: -len('data.pkl')]}data/"
            stored = {tensor.key: f"{begin}{tensor.key}" for tensor in tensors.values()}
            _refuse_packed(archive, stored.values(), path)
            contents = {key: archive.read(name) for key, name in stored.items()}
            return {str(name): _array_of(tensor, contents[tensor.key]) for name, tensor in tensors.items()}
    except CheckpointError as error:
        raise CheckpointError(f"{path} is refused: {error.message}; {CURE}") from None
    except Exception as error:  # a damaged archive or pickle raises nearly anything
        raise CheckpointError(f"{path} cannot be read ({error.__class__.__name__}); {CURE}") from None


def _tensors_in(pickled: BinaryIO) -> Dict[str, _Tensor]:
    tensors = _TorchUnpickler(pickled).load()
    if not isinstance(tensors, dict) or not all(isinstance(t, _Tensor) for t in tensors.values()):
        raise CheckpointError("it holds more than named tensors")
    return tensors


def _read_before_zip(file: BinaryIO, size: int) -> Arrays:
    """Read what torch wrote before version 1.6, a pickle after the other, and then the storages one by one.

    They are a number that names the form, its version, facts of the machine, the tensors, and the keys of the
    storages; each of these is its length, int64, and its numbers.
    """
    magic, version, machine = (PlainUnpickler(file).load() for _ in range(3))
    if (magic, version) != (MAGIC_BEFORE_ZIP, VERSION_BEFORE_ZIP):
        raise CheckpointError("it is no file of torch")
    if machine.get("little_endian") is not True:
        raise CheckpointError("it was written by a machine of another byte order")
    tensors = _tensors_in(file)
    kinds = {tensor.key: tensor.kind for tensor in tensors.values()}
    contents: Dict[str, bytes] = {}
    for key in PlainUnpickler(file).load():
        length = int.from_bytes(file.read(8), "little", signed=True) * kinds[key].itemsize
        if not 0 <= length <= size - file.tell():
            raise CheckpointError("a storage is longer than the file")
        contents[key] = file.read(length)
    return {str(name): _array_of(tensor, contents[tensor.key]) for name, tensor in tensors.items()}


def _refuse_packed(archive: zipfile.ZipFile, names: Iterable[str], path: Path) -> None:
    if sum(archive.getinfo(name).file_size for name in names) > path.stat().st_size:
        raise CheckpointError("it is packed, as torch never does")


def _array_of(tensor: _Tensor, content: bytes) -> np.ndarray:
    """Return the numbers of a tensor, in an order of its own where it is a transposed view."""
    numbers = np.frombuffer(content, tensor.kind)
    last = tensor.offset + sum((size - 1) * step for size, step in zip(tensor.size, tensor.stride))
    is_inside = min(tensor.size, default=1) > 0 and 0 <= tensor.offset <= last < len(numbers)
    is_inside = is_inside and float(np.prod(tensor.size, dtype=np.float64)) <= len(numbers)
    if not is_inside or len(tensor.size) != len(tensor.stride) or min(tensor.stride, default=0) < 0:
        raise CheckpointError("a tensor lies outside of its storage")
    steps = tuple(step * numbers.itemsize for step in tensor.stride)
    view = np.lib.stride_tricks.as_strided(numbers[tensor.offset :], tensor.size, steps, writeable=False)
    return np.asarray(view, order="C")  # a number on its own keeps its shape


def _rebuild(storage: Any, offset: int, size: tuple, stride: tuple, *_: object) -> _Tensor:
    key, kind = storage
    if not all(type(number) is int for number in (offset, *size, *stride)):
        raise CheckpointError("a tensor whose sizes are no numbers")
    return _Tensor(key, kind, offset, size, stride)


OF_TORCH: Dict[tuple, Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
    ("torch._utils", "_rebuild_tensor"): _rebuild,  # of torch 0.3
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
        kind, storage_type, key, _, _, *views = pid
        if (
            kind != "storage"
            or any(view is not None for view in views)
            or not isinstance(storage_type, np.dtype)
            or not isinstance(key, str)
        ):
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
    """Return the files of the weights: ``path``, or those of its index. Raises CheckpointError."""
    return [path, *sorted(set(_shards_of(path).values()))]


def read_their_weights(path: Path, family: str) -> Arrays:
    """Read weights of transformers under PaddleNLP's names. Raises CheckpointError if they are not whole."""
    found: Arrays = {}
    shards = _shards_of(path)
    for file in sorted(set(shards.values())) or [path]:
        found.update(read_file_of_torch(file))
    missing = [name for name in shards if name not in found]
    if missing:
        raise CheckpointError(
            f"{path}: {missing[0]} is not in {shards[missing[0]].name}; copy the model again"
        )
    return from_their_names(unwrapped(found, str(path)), family)


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


def with_cross_encoder(config: Dict[str, Any], folder: Path) -> Dict[str, Any]:
    """Return the config.json of transformers with what a CrossEncoder in ``folder`` wrote beside it.

    config_sentence_transformers.json, since version 5: {"model_type": "CrossEncoder", "activation_fn": ...}.
    Raises InputError for a prompt, which would stand before every pair.
    """
    path = folder / CROSS_ENCODER_CONFIG
    stated = read_json_object(path, "copy the model again") if path.is_file() else {}
    if stated.get("model_type") != "CrossEncoder":
        return config
    if stated.get("default_prompt_name"):
        raise InputError(
            f"{path}: default_prompt_name is {shown(stated['default_prompt_name'])}, and pairs are scored "
            "without a prompt; remove it, or take another model"
        )
    path_of_class = stated.get(ACTIVATION_FN)
    return {**config, CROSS_ENCODER: {ACTIVATION_FN: path_of_class}} if path_of_class else config


def from_their_config(config: Mapping[str, Any], where: str, wanted: str = "") -> Dict[str, Any]:
    """Return the config.json of PaddleNLP for one of transformers.

    ``wanted``: the family that is asked for; bert is an ERNIE without task embedding as well. Raises
    InputError naming ``where``, the key and the value that PaddleNLP's class cannot take.
    """
    family = _family_in(config, where, wanted)
    peer = COUNTERPARTS[family]
    for key, value, reason in _problems_of(config, peer):
        raise InputError(f"{where}: {key} is {shown(value)}, and {reason}")
    keys = _keys_of(peer).items()
    carried = {ours: config[theirs] for ours, theirs in keys if config.get(theirs) is not None}
    missing = {k: v for k, v in {**THEIR_DEFAULTS, **peer.defaults}.items() if k not in carried}
    if family == "distilbert":
        missing.pop("type_vocab_size", None)
    if "hidden_act" in carried:
        carried["hidden_act"] = SAME_ACTIVATIONS.get(carried["hidden_act"], carried["hidden_act"])
    eps = _eps_in(config)
    named = str((config.get("architectures") or [""])[0])
    kind = next((kind for kind in KINDS if named.endswith(kind)), KINDS[-1])
    if family == "ernie_gram" and kind != KINDS[0]:  # PaddleNLP has no class for its heads
        kind = KINDS[-1]
    # What PaddleNLP's class asks for, and would otherwise take from a published model.
    own: Dict[str, object] = {"use_relative_position": True} if family == "nezha" else {}
    if family == "ernie_gram":
        own["embedding_size"] = carried.get("hidden_size", 768)
    return {
        "model_type": family,
        "architectures": [peer.own_class_start + kind.replace("PreTraining", "Pretraining")],
        **missing,
        **carried,
        **own,
        "layer_norm_eps": eps,
        **({} if peer.layer_norm_eps in (None, eps) else {EPSILON: eps}),
        **_labels_in(config),
    }


def to_their_config(
    config: Mapping[str, Any], family: str, arrays: Arrays, where: str, kind: str
) -> Dict[str, Any]:
    """Return the config.json of transformers for a model of ``family``.

    ``config``: that of PaddleNLP; ``arrays``: its weights under PaddleNLP's names, which say the sizes that
    ``config`` leaves out; ``kind``: one of KINDS. Raises InputError for what no class of transformers does.
    """
    if family not in COUNTERPARTS:
        raise InputError(
            f"{where}: transformers has no model that computes what {family or 'this'} does; take one of "
            f"{', '.join(COUNTERPARTS)}"
        )
    peer = COUNTERPARTS[family]
    tables = {
        "vocab_size": "word_embeddings",
        "max_position_embeddings": "position_embeddings",
        "type_vocab_size": "token_type_embeddings",
    }
    config = dict(config)
    for key, table in tables.items():
        rows = [len(array) for name, array in arrays.items() if name.endswith(f"embeddings.{table}.weight")]
        if rows and rows[0]:
            config.setdefault(key, rows[0])
    _refuse_other_than_theirs(config, peer, where)
    carried = {theirs: config[ours] for ours, theirs in _keys_of(peer).items() if ours in config}
    if "pad_token_id" in peer.defaults:  # which is not 0, PaddleNLP's
        carried.setdefault("pad_token_id", 0)
    eps = config.get(EPSILON, peer.layer_norm_eps or config.get("layer_norm_eps", SPECIFIC))
    described = {key: config[key] for key in ("id2label", "label2id") if config.get(key)}
    if config.get(PROBLEM) == REGRESSION and config.get("num_labels") == 1:
        described = {key: config[key] for key in OF_SCORES if config.get(key) is not None}
        # CrossEncoder would take the sigmoid of the output.
        path = ACTIVATION_PATHS[config.get(ACTIVATION, "identity")]
        described[CROSS_ENCODER] = {ACTIVATION_FN: path}
    elif not described and config.get("num_labels", 2) != 2:
        described = {"num_labels": config["num_labels"]}
    return {
        "architectures": [peer.class_start + kind],
        "model_type": peer.model_type,
        OWN_FAMILY: family,
        **carried,
        **({} if family == "distilbert" else {"layer_norm_eps": eps, "position_embedding_type": "absolute"}),
        **described,
        "torch_dtype": "float32",
    }


def kind_of(arrays: Mapping[str, object]) -> str:
    """Return which of KINDS the weights of PaddleNLP's names make."""
    heads = ("classifier.", "cls.seq_relationship.", "cls.predictions.", "")
    return next(kind for kind, head in zip(KINDS, heads) if any(name.startswith(head) for name in arrays))


def _family_in(config: Mapping[str, Any], where: str, wanted: str) -> str:
    their_type, own = config.get("model_type"), config.get(OWN_FAMILY)
    if own in COUNTERPARTS and COUNTERPARTS[own].model_type == their_type:
        return own
    family = find_family(their_type) if isinstance(their_type, str) else ""
    if not family:
        raise unsupported_type(their_type, where, {peer.model_type for peer in COUNTERPARTS.values()})
    if family == "ernie" and wanted == "bert" and not config.get("use_task_id"):
        return wanted  # the same arithmetic
    return family


def _problems_of(config: Mapping[str, Any], peer: Counterpart) -> Iterator[Tuple[str, object, str]]:
    """Yield (key, value, what to do) of what PaddleNLP's class cannot take."""
    count = _count_in(config)
    if config.get(PROBLEM) == REGRESSION and count > 1:
        yield PROBLEM, REGRESSION, f"it is not possible with {count} outputs; take another model"
    for key, harmless in HARMLESS.items():
        if key in config and config[key] not in harmless:
            yield key, config[key], "PaddleNLP's models do not support it; take another model"
    stated = _activation_stated(config)
    if count > 1 and stated.rpartition(".")[2] == "Sigmoid":
        reason = (
            f"classes are given probabilities that add to 1, not {count} of their own; take another model"
        )
        yield ACTIVATION_FN, stated, reason
    if (
        count == 1
        and stated
        and not (stated.startswith("torch.nn.") and stated.rpartition(".")[2] in ACTIVATIONS)
    ):
        paths = (ACTIVATION_PATHS[name] for name in ACTIVATIONS.values())
        made_by = f"scores are made by {' or '.join(paths)}; write one of these"
        yield ACTIVATION_FN, stated, made_by
    key = peer.keys.get("hidden_act", "hidden_act")
    named = config.get(key, "gelu")
    if not isinstance(named, str) or SAME_ACTIVATIONS.get(named, named) not in peer.activations:
        yield key, named, f"shown to be equal are {' and '.join(peer.activations)}; take another model"
    eps = _eps_in(config)
    if not is_number(eps, 0, MOST_EPSILON):
        yield "layer_norm_eps", eps, f"Paddle computes with 0 to {MOST_EPSILON}; correct it"


def _eps_in(config: Mapping[str, Any]):
    has_key = config.get("model_type") != "distilbert"
    return config.get("layer_norm_eps", SPECIFIC) if has_key else SPECIFIC


def _keys_of(peer: Counterpart) -> Dict[str, str]:
    """Return {key of config.json here: there} of all that is carried over."""
    return {key: peer.keys.get(key, key) for key in (*CARRIED, *peer.also)}


def _labels_in(config: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the keys that count and name the classes, 2 by default; LABEL_0 and its like are no names.

    One label of a classifier is a score, of CrossEncoder unless transformers or this package say regression.
    """
    if _count_in(config) == 1:
        named = config.get("architectures") or [KINDS[0]]
        if not str(named[0]).endswith(KINDS[0]):  # an encoder: the label is that of no head
            return {"num_labels": 2}
        kept = {key: config[key] for key in OF_SCORES if config.get(key) is not None}
        made_by = ACTIVATIONS.get(_activation_stated(config).rpartition(".")[2], "")
        if OWN_FAMILY in config:
            made_by = made_by if made_by == "sigmoid" else ""
        elif not made_by and config.get(PROBLEM) != REGRESSION:
            made_by = "sigmoid"
        if made_by == "sigmoid":
            kept["label_range"] = [0.0, 1.0]
        kept.update({ACTIVATION: made_by} if made_by else {})
        return {**kept, "num_labels": 1, PROBLEM: REGRESSION}
    names = config.get("id2label")
    if not isinstance(names, dict) or not names:
        return {"num_labels": config.get("num_labels", 2)}
    if all(_UNNAMED.fullmatch(str(name)) for name in names.values()):
        return {"num_labels": len(names)}
    more = {"label2id": config["label2id"]} if config.get("label2id") else {}
    return {"num_labels": len(names), "id2label": names, **more}


def _activation_stated(config: Mapping[str, Any]) -> str:
    """Return the class, as torch.nn.modules.activation.Sigmoid, that CrossEncoder is to use; empty: none."""
    newer = config.get(CROSS_ENCODER)
    stated = newer.get(ACTIVATION_FN) if isinstance(newer, dict) else None
    return str(stated or config.get(OLD_ACTIVATION_FN) or "")


def _count_in(config: Mapping[str, Any]) -> int:
    names = config.get("id2label")
    return len(names) if isinstance(names, dict) and names else config.get("num_labels", 2)


def _refuse_other_than_theirs(config: Mapping[str, Any], peer: Counterpart, where: str) -> None:
    if config.get("model_class"):
        raise InputError(
            f"{where}: a model of the class {shown(config['model_class'])}, which transformers has not; keep "
            "--save_format paddle"
        )
    equal = f"shown to be equal in transformers are {' and '.join(peer.activations)}"
    takes = [  # what it takes, the first value where it is left out
        ("pooling", ("cls",), "no class of transformers classifies that; train with --pooling cls"),
        *((key, (only,), f"transformers supports only {shown(only)}") for key, only in peer.fixed.items()),
        ("hidden_act", peer.activations, equal),
    ]
    for key, values, reason in takes:
        value = config.get(key, values[0])
        if value not in values:
            raise InputError(f"{where}: {key} is {shown(value)}, and {reason}")
