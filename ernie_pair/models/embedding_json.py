"""The file embedding.json, which marks a model folder as an embedding model.

    {"format": 2, "pooling": "mean", "dim": 312, "dims": [64, 128, 312], "max_seq_len": 64,
     "temperature": 0.05}

The poolings are those of sentence-transformers, by their names there.

``dims`` are the lengths to which a vector may be truncated, the last of them ``dim``, see Kusupati et al.
2022 (Matryoshka). An exported model also records its files, and the largest difference from the trained
model:

    {..., "model_sha256": "5f0c...", "files": {"model.onnx": SHA-256, ...}, "parity": {"onnx": 3.1e-07}}

One with int8 weights has model.int8.onnx instead of model.onnx and a model_sha256 of its own, so that its
vectors are not confused with those of the float model, and records their cosines with these:

    {..., "int8": {"texts": 24, "mean_cosine": 0.9991, "least_cosine": 0.9978}}

What models of other makers do besides has a key only where it is not the default:

    {..., "pooling": "cls+mean", "steps": [{"kind": "dense", "width": 256, "activation": "tanh"}],
     "prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt": "query",
     "similarity": "dot", "lower_case": true, "includes_prompt": false}
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from data_tools.text.characters import lowered
from data_tools.text.folder_tokenizer import FAST_TOKENIZER
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.json_file import is_texts, is_whole_number, read_json_object, shown
from ernie_pair.models.spec import CONFIG, EMBEDDING, TOKENIZER, VOCAB, json_bytes
from ernie_pair.models.temperature import is_temperature

EMBEDDING_FORMAT = 2
EXPORTED = ("model.onnx", "model.int8.onnx", "model.gpu.onnx", VOCAB, FAST_TOKENIZER, CONFIG, TOKENIZER)
POOLINGS = ("mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
POOLING_NAMES = ", ".join(POOLINGS)
ACTIVATIONS = ("tanh", "identity", "relu", "gelu", "sigmoid", "silu")
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
SEARCHED = SIMILARITIES[:2]
ROLES = {"query": ("query",), "passage": ("document", "passage", "corpus")}  # names of their prompts
MIN_TEXT_LENGTH, MAX_TEXT_LENGTH = 3, 1 << 20
MAX_DIM, MAX_TEXTS = 10**5, 1 << 40  # beyond any vector, and any count of them
MAX_POOLINGS = MAX_STEPS = 16
HINT = "use the embedding.json of the folder that ernie-pair wrote, or train again"
Files = Dict[str, str]  # name: SHA-256


@dataclass(frozen=True)
class Step:
    """What is done with a vector after the pooling.

    ``kind``: dense, a layer of ``width`` outputs; normalize, to length 1; or truncate, to ``width`` numbers.
    The rest is of a dense layer; ``residual``: its input, projected where the width differs, is added.
    """

    kind: str
    width: int = 0
    bias: bool = True
    activation: str = ACTIVATIONS[0]
    residual: bool = False


NORMALIZE = Step("normalize")


@dataclass(frozen=True)
class EmbeddingSettings:
    """The content of embedding.json; only an exported model has ``model_sha256`` and ``files``.

    ``pooling``: one of POOLINGS, or several joined by +, whose vectors are concatenated. ``prompts``: {name:
    what is put before a text}; ``default_prompt``: the name of that of a text without a role, or empty.
    ``lower_case``: texts are lower-cased before the tokenizer reads them. ``includes_prompt``: whether the
    tokens of the prompt take part in the pooling.
    """

    pooling: str
    dim: int
    dims: Tuple[int, ...]
    max_seq_len: int
    temperature: float
    model_sha256: str = ""
    files: Files = field(default_factory=dict)
    steps: Tuple[Step, ...] = (NORMALIZE,)
    prompts: Dict[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    similarity: str = SIMILARITIES[0]
    lower_case: bool = False
    includes_prompt: bool = True

    @property
    def is_exported(self) -> bool:
        """Return whether they belong to an exported model."""
        return bool(self.model_sha256)

    @property
    def poolings(self) -> Tuple[str, ...]:
        """Return the names of the poolings, in the order in which their vectors are concatenated."""
        return tuple(self.pooling.split("+"))

    @property
    def is_unit(self) -> bool:
        """Return whether vectors have length 1; they have it at each of ``dims``."""
        return self.steps[-1:] == (NORMALIZE,)

    @property
    def has_unit_products(self) -> bool:
        """Return whether vectors are compared at length 1; otherwise by the products of what they are."""
        return self.is_unit or self.similarity == SIMILARITIES[0]

    @property
    def graph_steps(self) -> Tuple[Step, ...]:
        """Return the steps that the model computes: a last normalization follows the choice of the length."""
        return self.steps[:-1] if self.is_unit else self.steps

    def chosen_dim(self, asked: int, where: str) -> int:
        """Return the length of a vector: ``asked``, or full length for 0. Raises InputError."""
        if asked and asked not in self.dims:
            known = ", ".join(map(str, self.dims))
            raise InputError(
                f"--dim {asked}: {where} was trained for vectors of length {known}; use one of these"
            )
        return asked or self.dim

    def prompt_named(self, name: str, where: str) -> str:
        """Return the prompt of that name, for '' the default one. Raises InputError for an unknown name."""
        if not name:
            return self.prompts.get(self.default_prompt, "")
        if name not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            raise InputError(
                f"--prompt_name {name}: {where} has no such prompt; its prompts are: {known}. Give one of "
                "them, or the text itself with --prompt"
            )
        return self.prompts[name]

    def prompt_of(self, role: str) -> str:
        """Return the prompt of a ``role``, query or passage: its own, or else the default one.

        Sentence-transformers saves an empty prompt "document" beside a full one named "passage".
        """
        own = [self.prompts[name] for name in ROLES[role] if name in self.prompts]
        return next(filter(None, own), "") if own else self.prompts.get(self.default_prompt, "")

    def texts_read(self, texts: Sequence[str], prompt: str) -> List[str]:
        """Return what the tokenizer reads of ``texts``: each after ``prompt``, in lower case if that is said.

        As sentence-transformers did until version 5, whose folders say so: "[MASK]" is in lower case too, and
        a last sigma of a word is ς. Version 6 leaves control tokens, and writes σ.
        """
        whole = [prompt + text for text in texts] if prompt else list(texts)
        return list(map(lowered, whole)) if self.lower_case else whole

    def check_prompt(self, prompt: str, where: str) -> None:
        """Raise InputError for a prompt whose tokens the pooling would have to leave out."""
        if prompt and not self.includes_prompt:
            raise InputError(
                f"{where} leaves the tokens of a prompt out of its pooling (include_prompt false), which is "
                "not computed here; ask it without a prompt, or take another model"
            )

    def check_search(self, where: str) -> None:
        """Raise InputError where vectors are compared otherwise than by cosines or products."""
        if self.similarity not in SEARCHED:
            raise InputError(
                f"{where} compares vectors by their {self.similarity} distance, and only "
                f"{' and '.join(SEARCHED)} are computed here; take another model"
            )

    def beyond_pooling(self) -> Dict[str, Any]:
        """Return {key: value} of the steps, prompts and similarity that are not the default."""
        usual = {item.name: item.default for item in fields(self)}
        names = ("steps", "prompts", "default_prompt", "similarity", "lower_case", "includes_prompt")
        found = {name: getattr(self, name) for name in names}
        found = {name: value for name, value in found.items() if value not in (usual[name], {})}
        return {**found, **({"steps": list(map(asdict, self.steps))} if "steps" in found else {})}

    def to_json(self, **more: object) -> str:
        """Return the text of embedding.json, with further values ``more``."""
        names = ("pooling", "dim", "dims", "max_seq_len", "temperature", "model_sha256", "files")
        first = {name: getattr(self, name) for name in names if getattr(self, name) not in ("", {})}
        return json_bytes({"format": EMBEDDING_FORMAT, **first, **self.beyond_pooling(), **more}).decode()


def read_embedding(folder: Path) -> Optional[EmbeddingSettings]:
    """Return the settings in ``folder`` or None. Raises InputError if damaged or of a later format."""
    path = folder / EMBEDDING
    if not path.exists():
        return None
    found = read_json_object(path, HINT)
    form = found.get("format")
    found = {key: found[key] for key in EmbeddingSettings.__dataclass_fields__ if key in found}
    steps, pooling = found.get("steps", [asdict(NORMALIZE)]), found.get("pooling")
    dim, dims = found.get("dim"), found.get("dims")
    files, prompts = found.get("files") or {}, found.get("prompts") or {}
    model_sha256 = found.get("model_sha256") or ""
    is_sound = {
        f"format {form!r}, which is not {EMBEDDING_FORMAT}": form == EMBEDDING_FORMAT,
        "pooling": isinstance(pooling, str) and not bad_poolings(pooling.split("+")),
        "dim": is_whole_number(dim, 1, MAX_DIM),
        "dims": isinstance(dims, list)
        and dims[-1:] == [dim]
        and all(is_whole_number(one, 1) for one in dims)
        and sorted(set(dims)) == dims,
        "max_seq_len": is_whole_number(found.get("max_seq_len"), MIN_TEXT_LENGTH, MAX_TEXT_LENGTH),
        "temperature": is_temperature(found.get("temperature")),
        "model_sha256": isinstance(model_sha256, str),
        "files": isinstance(files, dict) and {*files} <= {*EXPORTED} and is_texts(list(files.values())),
        "steps": isinstance(steps, list) and len(steps) <= MAX_STEPS and all(map(_is_step, steps)),
        "prompts": isinstance(prompts, dict) and is_texts(list(prompts.values())),
        "default_prompt": found.get("default_prompt", "") in ("", *prompts),
        "similarity": found.get("similarity", SIMILARITIES[0]) in SIMILARITIES,
        **{key: isinstance(found.get(key, True), bool) for key in ("lower_case", "includes_prompt")},
    }
    for key, sound in is_sound.items():
        if not sound:
            raise InputError(f"{path}: wrong or missing: {key}; {HINT}")
    found.update(
        pooling=pooling, dims=tuple(dims or ()), files=files, prompts=prompts, model_sha256=model_sha256
    )
    return EmbeddingSettings(**{**found, "steps": tuple(Step(**step) for step in steps)})


def check_pooling(pooling: str) -> None:
    """Raise InputError for a --pooling that is not computed here."""
    wrong = bad_poolings(pooling.split("+"))
    if wrong:
        raise InputError(f"--pooling {pooling}: {wrong}; use one of them, or several joined by +")


def bad_poolings(names: List[str]) -> str:
    """Return why the poolings ``names`` cannot be computed, in words; '' where they can."""
    unknown = [name for name in names if name not in POOLINGS]
    if unknown:
        return f"{shown(unknown[0])} is not one of {', '.join(POOLINGS)}"
    return f"{len(names)} poolings are more than {MAX_POOLINGS}" if len(names) > MAX_POOLINGS else ""


def _is_step(found: Any) -> bool:
    if not isinstance(found, dict) or not set(found) <= set(Step.__dataclass_fields__):
        return False
    least = 0 if found.get("kind") == NORMALIZE.kind else 1
    return (
        found.get("kind") in ("dense", "truncate", NORMALIZE.kind)
        and is_whole_number(found.get("width", 0), least, MAX_DIM)
        and found.get("activation", ACTIVATIONS[0]) in ACTIVATIONS
        and all(isinstance(found.get(key, True), bool) for key in ("bias", "residual"))
    )


def width_after(pooling: str, hidden_size: int, steps: Tuple[Step, ...]) -> int:
    """Return how many numbers a vector has after ``steps``, for hidden states of ``hidden_size``."""
    return next((step.width for step in reversed(steps) if step.width), hidden_size * len(pooling.split("+")))


def full_prompts(settings: EmbeddingSettings) -> Dict[str, str]:
    """Return the prompts that are not empty; that of passages, which may stand there twice, once."""
    full = {name: text for name, text in settings.prompts.items() if text}
    if full.get("document") == full.get("passage"):
        full.pop("document", None)
    return full


def compute_fingerprint(model_sha256: str, settings: EmbeddingSettings, dim: int) -> str:
    """Return what identifies vectors, in hex: only vectors of the same fingerprint can be compared.

    ``model_sha256`` is the hash of the weights, the vocabulary and the sizes; ``dim`` the length in use. An
    exported model has the fingerprint of the model that it was made from: their outputs agree. Which of its
    prompts a model was asked with is no part of it: queries and passages have different ones.
    """
    known_by: List[Any] = [EMBEDDING_FORMAT, model_sha256, settings.pooling, dim, settings.max_seq_len]
    default = settings.prompts.get(settings.default_prompt, "")
    beyond = {**settings.beyond_pooling(), "prompts": full_prompts(settings), "default_prompt": default}
    beyond = {key: value for key, value in beyond.items() if value not in ({}, "")}
    known_by += [beyond] if beyond else []
    return hashlib.sha256(json.dumps(known_by, sort_keys=True).encode()).hexdigest()
