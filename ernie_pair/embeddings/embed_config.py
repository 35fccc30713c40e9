"""The flags for using an embedding model: embed, evaluate and export."""

from dataclasses import dataclass, replace
from typing import Literal, Optional, Tuple

from data_tools.text.file_content import ENCODINGS
from data_tools.text.texts import INPUT_HELP, TextFlags, columns_in
from ernie_pair.core.cli.options import (
    OverwriteFlag,
    classes_option,
    data_option,
    devices_option,
    file_option,
    model_folder_option,
    model_option,
    names_in,
    precision_option,
    tokens_option,
)
from ernie_pair.core.errors import InputError
from ernie_pair.core.installation import TRAINING
from ernie_pair.inference.embedder import EmbedderOptions
from ernie_pair.inference.exported_model import GPU
from ernie_pair.inference.ray_flags import RayFlags
from ernie_pair.inference.token_rows import BatchTokensFlag
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.models.embedding_json import POOLING_NAMES, check_pooling
from ernie_pair.models.labels import parse_label_map
from ernie_pair.pairs.data.pair_records import ENCODING_HELP, LABEL_MAP_HELP, RowFlags
from ernie_pair.runtime.device import AskDeviceFlag

MODEL_HELP = (
    "an embedding model, trained or exported: its folder, or the output folder of a run for its best model"
)
AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class EmbedderFlags(AskDeviceFlag, BatchTokensFlag, KernelFlags):
    """How an embedding model computes vectors; a part of the commands."""

    dim: int = model_option(
        0,
        help="length of the vectors, one of those that the model was trained for; 0: full length",
        unit="numbers",
        at_least=0,
    )
    pooling: str = model_option(
        AUTO,
        help=f"pooling for a model without embedding.json: {POOLING_NAMES}, "
        "or several joined by +; auto: that of sentence-transformers' files, otherwise mean",
    )
    max_seq_len: int = tokens_option(
        0, help="maximum tokens per text for a model without embedding.json; 0: what the model's files say"
    )
    batch_size: int = devices_option(64, help="texts in one forward pass", unit="texts", at_least=1)

    def __post_init__(self):
        super().__post_init__()
        if self.pooling != AUTO:
            check_pooling(self.pooling)

    @property
    def options(self) -> EmbedderOptions:
        """Return them as `open_embedder` takes them."""
        pooling = "" if self.pooling == AUTO else self.pooling
        return EmbedderOptions(self.dim, pooling, self.max_seq_len, 0, self.batch_size, self.batch_tokens)


@dataclass(frozen=True)
class EmbedConfig(OverwriteFlag, RayFlags, TextFlags, EmbedderFlags):
    """Compute the vectors of the texts in a file, and write them for memory mapping."""

    EXAMPLE = "--model_path output/best --input_file texts.txt --output_dir vectors"

    model_path: str = model_folder_option(help=MODEL_HELP)
    input_file: str = file_option(help=INPUT_HELP, stdin=(".txt", ".jsonl"))
    output_dir: str = data_option(help="folder to create, with vectors.npy and vectors.json", writes="FOLDER")
    dtype: Literal["float16", "int8"] = precision_option(
        "float16", help="type of the stored numbers; int8: with one scale per text"
    )
    format: Literal["npy", "parquet"] = data_option(
        "npy",
        help="parquet: also write vectors.parquet, with id, text, vector and --payload_columns",
        needs={"parquet": {"pyarrow": ""}},
    )
    payload_columns: str = data_option(
        "", help="columns that ride along there, separated by commas", only_with="format=parquet"
    )
    prompt_name: str = data_option(
        "",
        help="put the prompt of this name before each text, for example query or passage; empty: the model's "
        "default prompt, if it has one",
    )
    prompt: Optional[str] = data_option(
        None, help="put this text before each text, in place of a prompt of the model"
    )
    encoding: str = data_option("utf-8", help=ENCODING_HELP, choices=ENCODINGS)

    def __post_init__(self):
        super().__post_init__()
        for name in {"id", "text", "vector"}.intersection(self.payload):
            raise InputError(f"--payload_columns {name}: vectors.parquet has its own {name}; rename it")
        if self.prompt is not None and self.prompt_name:
            raise InputError("--prompt and --prompt_name exclude each other; give one of them")

    @property
    def payload(self) -> Tuple[str, ...]:
        """Return the columns that ride along."""
        return columns_in(self.payload_columns)

    @property
    def options(self) -> EmbedderOptions:
        """Return them as `open_embedder` takes them."""
        return replace(super().options, prompt=self.prompt, prompt_name=self.prompt_name)


@dataclass(frozen=True)
class EvaluateEmbeddingConfig(OverwriteFlag, RowFlags, EmbedderFlags):
    """Measure how well the texts of labelled pairs find their matches by vector similarity."""

    EXAMPLE = "--model_path output/best --input_file test.tsv"
    MOST_CLASSES = 2

    model_path: str = model_folder_option(help=MODEL_HELP)
    input_file: str = file_option(
        help="labelled pairs, pairs that belong together, or rows of query, pos and neg or anchor and "
        "positive: files, folders, or a set such as lcqmc (its dev part)",
        stdin=(".tsv", ".jsonl"),
    )
    output_file: str = data_option(
        "",
        help="JSON file to keep recall, mrr, ndcg and spearman for each length; empty: none",
        writes="FILE",
    )
    dims: str = model_option(
        "", help="lengths to measure besides --dim, for example 64,128; all: those of training"
    )
    same_text: Literal["leave_out", "keep"] = data_option(
        "leave_out",
        help="a text of the corpus that equals the query and is none of its matches; keep: it is searched as "
        "well, as sentence-transformers does",
    )
    label_map: str = data_option("", help=LABEL_MAP_HELP)
    label_range: str = data_option(
        "", help="for graded pairs: lowest and highest score, for example 0,5; empty: labels are 0 and 1"
    )
    at_precision: float = classes_option(
        0.95, help="report the threshold that gives this precision, and its recall", above=0, at_most=1
    )
    save_threshold: bool = data_option(
        False, help="write that threshold into the folder of the model, where mine and Python obey it"
    )

    def __post_init__(self):
        super().__post_init__()
        check_two_classes(self.label_map)
        if self.dims != "all" and not all(word.isdecimal() for word in names_in(self.dims)):
            raise InputError(
                f"--dims {self.dims} contains something that is not a length; write 64,128, or all"
            )


@dataclass(frozen=True)
class ExportEmbeddingConfig(OverwriteFlag):
    """Export a folder that computes the same vectors without the training code, and check them."""

    EXAMPLE = "--model_path output/best --output_dir exported"
    NEEDS = {**TRAINING, "onnxruntime": ""}

    model_path: str = model_folder_option(
        help="an embedding model, trained here or published: its folder, or a run for its best model"
    )
    output_dir: str = data_option(
        help="folder to create, with model.onnx, embedding.json and the files of the tokenizer",
        writes="FOLDER",
    )
    quantize: Literal["none", "int8"] = precision_option(
        "none", help="int8: store int8 weights, smaller and faster; the drift of the vectors is reported"
    )
    format: Literal["onnx", "onnx-gpu"] = model_option(
        "onnx", help="onnx-gpu: also write a file of operators that only a GPU has"
    )
    precision: Literal["auto", "fp16", "bf16", "fp32"] = precision_option(
        "auto", help="of the file for a GPU, auto: fp16; its drift is reported", only_with="format=onnx-gpu"
    )

    def __post_init__(self):
        super().__post_init__()
        if self.quantize == "int8" and self.format == GPU:
            raise InputError(
                "--quantize int8 and --format onnx-gpu make other vectors each; export a folder for each"
            )

    @property
    def gpu_precision(self) -> str:
        """Return the precision of the file for a GPU."""
        return "fp16" if self.precision == "auto" else self.precision


def check_two_classes(label_map: str) -> None:
    """Raise InputError for --label_map of other than two classes."""
    if label_map and sorted(set(parse_label_map(label_map).classes.values())) != [0, 1]:
        raise InputError(f"--label_map {label_map} does not name two classes; write 0=different,1=same")
