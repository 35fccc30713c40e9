"""A folder of sentence-transformers: modules.json and what it names, read and written without the library.

    modules.json    [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
                     {"idx": 1, "name": "1", "path": "1_Pooling", "type": "....models.Pooling"}, ...]
    1_Pooling/config.json    {"word_embedding_dimension": 384, "pooling_mode_mean_tokens": true, ...}
    2_Dense/config.json      {"in_features": 384, "out_features": 256, "bias": true, ...}
    sentence_bert_config.json              {"max_seq_length": 256, "do_lower_case": false}
    config_sentence_transformers.json      {"prompts": {"query": "query: "}, "similarity_fn_name": "cosine"}

Version 6 names the classes otherwise, has embedding_dimension and pooling_mode in place of a flag for each
mode, and leaves max_seq_length to the tokenizer. What is not computed here is refused by its name.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.core.files.json_file import is_whole_number, parse_json, read_json_object, shown, write_json
from ernie_pair.models.embedding_json import (
    MAX_TEXT_LENGTH,
    MIN_TEXT_LENGTH,
    NORMALIZE,
    SIMILARITIES,
    EmbeddingSettings,
    Step,
    bad_poolings,
    full_prompts,
    read_embedding,
)
from ernie_pair.models.hugging_face import ACTIVATION_PATHS
from ernie_pair.models.spec import CONFIG, EMBEDDING, MODULES, ModelSpec, find_config, flag_in
from ernie_pair.weights.torch_files import read_torch_file
from ernie_pair.weights.weight_files import Arrays, as_float32, write_for_torch

SETTINGS = "config_sentence_transformers.json"
_OLD_NAMES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
TRANSFORMER_FILES = tuple(f"sentence_{name}_config.json" for name in _OLD_NAMES)
HINT = "copy the model again, or take another one"
KINDS = ("Transformer", "Pooling", "Dense", "Normalize")
SENTENCE, DEFAULT_TEMPERATURE = "sentence_embedding", 0.05
# {flag of old: pooling}, in the order in which several of them are concatenated.
FLAGS = {
    "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max", "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean", "pooling_mode_lasttoken": "lasttoken",
}  # fmt: skip
DENSE = "dense."  # begins our names of the weights of dense steps
DENSE_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
# What sentence_bert_config.json may say besides: the values with which it changes nothing.
HARMLESS: Dict[str, Tuple[Any, ...]] = {
    "transformer_task": (None, "feature-extraction"),
    "module_output_name": (None, "token_embeddings"),
    "query_length": (None,), "document_length": (None,), "query_expansion": (None,),
    "tokenizer_name_or_path": (None,),
    "processing_kwargs": (None, {}), "config_args": (None, {}), "config_kwargs": (None, {}),
    "modality_config": (None, {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}),
}  # fmt: skip
TOKENIZER_KEYS, MODEL_KEYS = ("tokenizer_args", "processor_kwargs"), ("model_args", "model_kwargs")
IDLE = ("add_pooling_layer", "attn_implementation", "torch_dtype", "dtype", "use_safetensors")


@dataclass(frozen=True)
class SentenceFolder:
    """What a folder of sentence-transformers says of itself.

    ``width``: that of the hidden states which the pooling takes; ``dense``: the folder of each dense step;
    ``stated``: how vectors are made, with max_seq_len 0 where the tokenizer says it.
    """

    folder: Path
    width: int
    dense: Tuple[Path, ...]
    stated: EmbeddingSettings

    def settings(self, spec: ModelSpec) -> EmbeddingSettings:
        """Return how vectors are made with the encoder of ``spec``."""
        length = self.stated.max_seq_len or spec.trained_length or spec.max_positions
        return replace(self.stated, max_seq_len=min(length, spec.max_positions))

    def dense_arrays(self) -> Arrays:
        """Return the weights of the dense steps under our names, float32, of [inputs, outputs].

        Raises CheckpointError when they are missing, damaged or of another shape than their config.json says.
        """
        renamed: Arrays = {}
        width = self.width * len(self.stated.poolings)
        steps = [step for step in self.stated.steps if step.kind == "dense"]
        for number, (step, folder) in enumerate(zip(steps, self.dense)):
            path = next((folder / name for name in DENSE_WEIGHTS if (folder / name).is_file()), None)
            if path is None:
                raise CheckpointError(f"{folder} has neither {' nor '.join(DENSE_WEIGHTS)}; {HINT}")
            arrays = as_float32(read_torch_file(path), str(path))
            shapes: Dict[str, Tuple[int, ...]] = {"linear.weight": (step.width, width)}
            shapes.update({"linear.bias": (step.width,)} if step.bias else {})
            if step.residual and step.width != width:
                shapes["residual.weight"] = (step.width, width)
            found = {name: array.shape for name, array in arrays.items()}
            if found != shapes:
                raise CheckpointError(
                    f"{folder}: it holds {found}, and its {CONFIG} asks for {shapes}; {HINT}"
                )
            renamed.update({f"{DENSE}{number}.{name}": array.T for name, array in arrays.items()})
            width = step.width
        return renamed


def is_sentence_folder(folder: Path) -> bool:
    """Return whether sentence-transformers wrote ``folder``."""
    return (folder / MODULES).is_file()


def find_encoder_folder(folder: Path) -> Path:
    """Return where the encoder of ``folder`` lies: in sentence-transformers' first module, or itself."""
    modules = [] if find_config(folder) is not None else _read_modules(folder)
    return modules[0][1] if modules else folder


def list_module_files(folder: Path) -> List[Path]:
    """Return the files in the folders of the modules that ``folder`` names, but not those in itself."""
    places = {place for _, place in _read_modules(folder)} - {folder}
    found = [path for place in sorted(places) if place.is_dir() for path in place.iterdir()]
    return sorted(path for path in found if path.is_file() and not path.name.startswith("."))


def read_sentence_folder(folder: Path) -> Optional[SentenceFolder]:
    """Read modules.json and what it names; None: it is not there. Raises InputError, naming the file."""
    modules = _read_modules(folder)
    if not modules:
        return None
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or set(kinds[2:]) & {"Transformer", "Pooling"}:
        raise InputError(
            f"{folder / MODULES}: its modules are {', '.join(kinds)}, and only a Transformer, a Pooling, and "
            f"then Dense and Normalize are computed; take another model"
        )
    (_, encoder), (_, pooling) = modules[:2]
    width, names, includes_prompt = _read_pooling(pooling)
    steps: List[Step] = []
    inside = width * len(names)
    for kind, place in modules[2:]:
        steps.append(_read_step(kind, place, inside))
        inside = steps[-1].width or inside
    cut, stated = _read_settings(folder)
    if cut is not None and cut < inside:
        steps.append(Step("truncate", cut))
        inside = cut
    length, lower_case = _read_transformer(encoder)
    settings = EmbeddingSettings(
        pooling="+".join(names), dim=inside, dims=(inside,), max_seq_len=length,
        temperature=DEFAULT_TEMPERATURE, steps=tuple(steps), lower_case=lower_case,
        includes_prompt=includes_prompt, **stated,
    )  # fmt: skip
    dense = tuple(place for kind, place in modules if kind == "Dense")
    return SentenceFolder(folder, width, dense, settings)


def read_vector_settings(folder: Path, spec: ModelSpec) -> Optional[EmbeddingSettings]:
    """Return what embedding.json or modules.json say; None: neither. Raises InputError where they differ."""
    own, found = read_embedding(folder), read_sentence_folder(folder)
    if found is None or (own is not None and own.is_exported):
        return own
    theirs = found.settings(spec)
    if own is None:
        return theirs
    for key in ("pooling", "dim", "max_seq_len", "steps", "prompts", "default_prompt", "similarity"):
        ours, other = getattr(own, key), getattr(theirs, key)
        if key == "prompts":  # the library writes empty ones for query and document
            ours, other = full_prompts(own), full_prompts(theirs)
        if ours != other:
            raise InputError(
                f"{folder}: {key} is {ours} in {EMBEDDING} and {other} in {MODULES} and its files; remove "
                f"{EMBEDDING} if the model was changed with sentence-transformers, or else {MODULES}"
            )
    return own


def _read_modules(folder: Path) -> List[Tuple[str, Path]]:
    """Return (kind, its folder) of each module of a folder of sentence-transformers; none of another."""
    path = folder / MODULES
    if not is_sentence_folder(folder):
        return []
    found = read_json_object(path, HINT, parse=parse_json)
    if not isinstance(found, list) or not found or not all(isinstance(one, dict) for one in found):
        raise InputError(f"{path}: it is no list of modules; {HINT}")
    modules = []
    for one in found:
        kind, place = one.get("type"), one.get("path")
        if not isinstance(place, str) or Path(place).is_absolute() or ".." in Path(place).parts:
            raise InputError(f"{path}: path is {shown(place)}, which is no folder in it; {HINT}")
        library, _, name = kind.rpartition(".") if isinstance(kind, str) else ("", "", "")
        is_theirs = library.split(".")[0] == "sentence_transformers"
        if not is_theirs or name not in KINDS:
            raise InputError(
                f"{path}: the module {shown(name if is_theirs else kind)} is not computed here, only "
                f"{', '.join(KINDS)} of sentence-transformers; take another model"
            )
        modules.append((name, folder / place))
    return modules


def _read_config(place: Path) -> Dict[str, Any]:
    if not (place / CONFIG).is_file():
        raise InputError(f"{place} has no {CONFIG}, and {MODULES} names that folder; {HINT}")
    return read_json_object(place / CONFIG, HINT)


def _read_pooling(place: Path) -> Tuple[int, List[str], bool]:
    """Return the width of the hidden states, the names of the poolings, and whether prompts are pooled."""
    found = _read_config(place)
    width = found.get("embedding_dimension", found.get("word_embedding_dimension"))
    modes = found.get("pooling_mode")
    if modes is None:
        modes = [name for flag, name in FLAGS.items() if found.get(flag)] or ["mean"]
        others = [key for key in found if key.startswith("pooling_mode_") and key not in FLAGS and found[key]]
        modes += [key.removeprefix("pooling_mode_") for key in others]
    modes = [modes] if isinstance(modes, str) else modes
    if not is_whole_number(width, 1, 10**5) or not isinstance(modes, list) or not modes:
        raise InputError(f"{place / CONFIG}: no width of the hidden states or no pooling in it; {HINT}")
    if bad_poolings(modes):
        raise InputError(f"{place / CONFIG}: the pooling {bad_poolings(modes)}; take another model")
    return width, modes, flag_in(found, "include_prompt", True, place / CONFIG)


def _read_step(kind: str, place: Path, inside: int) -> Step:
    is_dense = kind == "Dense"
    found = _read_config(place) if is_dense or (place / CONFIG).is_file() else {}  # old folders have none
    for key in ("module_input_name", "module_output_name"):
        if found.get(key) not in (None, SENTENCE):
            raise InputError(
                f"{place / CONFIG}: {key} is {shown(found[key])}, and only {SENTENCE} is computed here; take "
                "another model"
            )
    if not is_dense:
        return NORMALIZE
    named = found.get("activation_function", ACTIVATION_PATHS["tanh"])
    short = {name.rpartition(".")[2]: own for own, name in ACTIVATION_PATHS.items()}
    parts = named.split(".") if isinstance(named, str) else [""]
    if parts[0] != "torch" or parts[-1] not in short:
        raise InputError(
            f"{place / CONFIG}: activation_function {shown(named)} is not computed here, only "
            f"{', '.join(short)} of torch; take another model"
        )
    bias, residual = found.get("bias", True), found.get("use_residual", False)
    sizes = [is_whole_number(found.get(key), 1, 10**5) for key in ("in_features", "out_features")]
    if not all(sizes) or not isinstance(bias, bool) or not isinstance(residual, bool):
        raise InputError(f"{place / CONFIG}: wrong in_features, out_features, bias or use_residual; {HINT}")
    width = found["in_features"]
    if width != inside:
        raise InputError(f"{place / CONFIG}: in_features is {width}, and vectors have {inside}; {HINT}")
    return Step("dense", found["out_features"], bias, short[parts[-1]], residual)


def _read_transformer(place: Path) -> Tuple[int, bool]:
    """Return the longest input, 0 where the tokenizer says it, and whether texts are lower-cased first."""
    path = next((place / name for name in TRANSFORMER_FILES if (place / name).is_file()), None)
    found = read_json_object(path, HINT) if path else {}
    length: Any = found.get("max_seq_length")
    refused = {str(path): {key: found[key] for key in HARMLESS if found.get(key) not in HARMLESS[key]}}
    for key in (*TOKENIZER_KEYS, *MODEL_KEYS):
        idle = ("model_max_length",) if key in TOKENIZER_KEYS else IDLE
        inner = found.get(key) or {}
        if not isinstance(inner, dict):
            raise InputError(f"{path}: {key} is {shown(inner)}; {HINT}")
        length = inner.get("model_max_length", length)
        refused[f"{path}: {key}"] = {name: inner[name] for name in inner if name not in idle}
    for where, values in refused.items():
        for key, value in values.items():
            if value is not None and key != "trust_remote_code":
                raise InputError(
                    f"{where}: {key} is {shown(value)}, which is not computed here; take another model"
                )
    if length is not None and not is_whole_number(length, MIN_TEXT_LENGTH, MAX_TEXT_LENGTH):
        raise InputError(
            f"{path}: max_seq_length is {shown(length)}, and a text has {MIN_TEXT_LENGTH} or more; {HINT}"
        )
    return int(length or 0), flag_in(found, "do_lower_case", False, path)


def _read_settings(folder: Path) -> Tuple[Optional[int], Dict[str, Any]]:
    """Return truncate_dim, and prompts and similarity under our names, that the folder states."""
    path = folder / SETTINGS
    found = read_json_object(path, HINT) if path.is_file() else {}
    made_as = found.get("model_type", "SentenceTransformer")
    if made_as != "SentenceTransformer":
        raise InputError(
            f"{path}: it is a {shown(made_as)}, which makes no vectors of texts; take another model"
        )
    prompts, default = found.get("prompts") or {}, found.get("default_prompt_name") or ""
    texts = prompts.values() if isinstance(prompts, dict) else [0]
    similarity, cut = found.get("similarity_fn_name") or SIMILARITIES[0], found.get("truncate_dim")
    is_sound = {
        "prompts": all(isinstance(text, (str, type(None))) for text in texts),
        # Those two exist, empty, in every model.
        "default_prompt_name": default in ("", "query", "document", *prompts),
        "similarity_fn_name": similarity in SIMILARITIES,
        "truncate_dim": cut is None or is_whole_number(cut, 1),
    }
    for key, sound in is_sound.items():
        if not sound:
            raise InputError(f"{path}: {key} cannot be {shown(found[key])}; correct it")
    return cut, {
        "prompts": {name: text or "" for name, text in prompts.items()},
        "default_prompt": default if default in prompts else "",
        "similarity": similarity,
    }


def _module_folders(settings: EmbeddingSettings) -> List[str]:
    """Return the names of the folders that `write_sentence_files` makes: 1_Pooling, 2_Normalize."""
    kinds = ["Pooling", *(step.kind.capitalize() for step in settings.steps if step.kind != "truncate")]
    return [f"{number}_{kind}" for number, kind in enumerate(kinds, 1)]


def list_written(settings: Optional[EmbeddingSettings]) -> List[str]:
    """Return the names of all that `write_sentence_files` writes, with the folders on the way."""
    if settings is None:
        return []
    places = _module_folders(settings)
    files = [f"{place}/{CONFIG}" for place in places if not place.endswith("_Normalize")]
    files += [f"{place}/{DENSE_WEIGHTS[0]}" for place in places if place.endswith("_Dense")]
    return [MODULES, TRANSFORMER_FILES[0], SETTINGS, EMBEDDING, *places, *files]


def write_sentence_files(folder: Path, settings: EmbeddingSettings, width: int, arrays: Arrays) -> None:
    """Write modules.json and what it names beside a model of transformers in ``folder``, and embedding.json.

    ``width``: that of the hidden states; ``arrays``: the weights of the dense steps, as `dense_arrays`
    returns them. The names are those of version 3, which every later one reads. The prompt of passages stands
    under "document" as well: version 6 looks for no other name while that one is there.
    """
    places, modules = _module_folders(settings), []
    for number, place in enumerate(["", *places]):
        kind = f"sentence_transformers.models.{place.rpartition('_')[2] or 'Transformer'}"
        modules.append({"idx": number, "name": str(number), "path": place, "type": kind})
        (folder / place).mkdir(exist_ok=not place)
    write_json(folder / MODULES, modules)
    flags = {flag: name in settings.poolings for flag, name in FLAGS.items()}
    pooling: Dict[str, object] = {"word_embedding_dimension": width, **flags}
    in_order = tuple(name for flag, name in FLAGS.items() if flags[flag])
    if in_order != settings.poolings:  # an order of its own, which only version 6 reads
        pooling = {"embedding_dimension": width, "pooling_mode": list(settings.poolings)}
    write_json(folder / places[0] / CONFIG, {**pooling, "include_prompt": settings.includes_prompt})
    inside, number = width * len(settings.poolings), 0
    for place, step in zip(places[1:], settings.steps):
        if step.kind == "dense":
            begins = f"{DENSE}{number}."
            own = {name[len(begins) :]: arrays[name].T for name in arrays if name.startswith(begins)}
            write_for_torch(folder / place / DENSE_WEIGHTS[0], own)
            sizes = {"in_features": inside, "out_features": step.width, "bias": step.bias}
            dense = {**sizes, "activation_function": ACTIVATION_PATHS[step.activation]}
            write_json(
                folder / place / CONFIG, {**dense, **({"use_residual": True} if step.residual else {})}
            )
            inside, number = step.width, number + 1
    length = {"max_seq_length": settings.max_seq_len, "do_lower_case": settings.lower_case}
    write_json(folder / TRANSFORMER_FILES[0], length)
    cut = [step.width for step in settings.steps if step.kind == "truncate"]
    passage = settings.prompts.get("passage")
    is_only = passage and not settings.prompts.get("document")
    stated: Dict[str, object] = {
        "model_type": "SentenceTransformer",
        "prompts": {**settings.prompts, "document": passage} if is_only else settings.prompts,
        "default_prompt_name": settings.default_prompt or None,
        "similarity_fn_name": settings.similarity,
    }
    write_json(folder / SETTINGS, {**stated, "truncate_dim": cut[0]} if cut else stated)
    (folder / EMBEDDING).write_text(settings.to_json(), encoding="utf-8")
