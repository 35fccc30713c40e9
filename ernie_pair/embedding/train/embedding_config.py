"""The flags of training an embedding model."""

from dataclasses import dataclass
from typing import Literal, Optional, Tuple

from data_tools.files.errors import InputError
from data_tools.options.options import Options, names_in, option
from ernie_pair.embedding.embed_config import AUTO, own_pooling
from ernie_pair.embedding.retrieval import METRICS
from ernie_pair.inference.token_rows import SHORTEST_PAIR
from ernie_pair.models.embedding_json import POOLING_NAMES
from ernie_pair.models.labels import parse_label_map
from ernie_pair.models.spec import FAMILIES
from ernie_pair.pair.config.run_flags import RowFlags
from ernie_pair.train.run_flags import TrainingFlags

USUAL_LENGTH = 64  # tokens of a text


@dataclass(frozen=True)
class ContrastiveFlags(Options):
    """The objective, and what a step compares."""

    objective: Literal["pairs", "simcse"] = option(
        "pairs",
        help="pairs: the two texts of a pair with label 1 belong together; simcse: a text belongs to itself "
        "under different dropout",
        group="optimisation",
        resume="same",
    )
    pooling: str = option(
        AUTO,
        help=f"hidden states that form the vector: {POOLING_NAMES}, cls (the same as first_token), or "
        "several joined by +; auto: as the files of the model say, otherwise mean",
        group="model",
        resume="fixed",
    )
    dims: str = option(
        "",
        help="lengths to which vectors may be truncated (Matryoshka), for example 64,128; empty: none",
        group="model",
        resume="fixed",
    )
    temperature: float = option(
        0.05, help="divisor of the cosines before the softmax", group="optimisation", above=0, resume="same"
    )
    hard_negatives: int = option(
        1,
        help="hard negatives per pair in a step: texts of label 0, or from --negatives_file",
        group="optimisation",
        unit="texts",
        at_least=0,
        resume="same",
    )
    gradient_accumulation_steps: int = option(
        1,
        help="forward passes of --batch_size pairs in one step; negatives come from the whole step",
        group="optimisation",
        unit="batches",
        at_least=1,
        resume="layout",
    )

    @property
    def chosen_dims(self) -> Tuple[int, ...]:
        """Return the lengths in ``dims``, ascending, each once. Raises InputError for what is no length."""
        words = names_in(self.dims)
        if not all(word.isdecimal() and 0 < int(word) < 10**6 for word in words):
            raise InputError(
                f"--dims {self.dims} contains something that is not a length; write 64,128,312 for example"
            )
        return tuple(sorted({int(word) for word in words}))


@dataclass(frozen=True)
class EmbeddingConfig(ContrastiveFlags, RowFlags, TrainingFlags):
    """Settings for training an embedding model; the data are given to the command or the trainer."""

    model_type: Optional[str] = option(
        None,
        help="model family; none: taken from config.json",
        group="model",
        choices=FAMILIES,
        resume="fixed",
    )
    dropout: float = option(
        0.1,
        help="dropout of hidden states and attention weights",
        group="model",
        at_least=0,
        below=1,
        resume="same",
    )
    label_map: str = option(
        "",
        help="names of the labels in the files, for example 0=different,1=same; 1 means a match",
        group="data",
        resume="same",
    )
    bucket: bool = option(
        True, help="batch texts of similar length together, to reduce padding", group="data", resume="same"
    )
    max_seq_len: int = option(
        0,
        help="tokens per text, [CLS] and [SEP] included; 0: as the files of an embedding model say, or "
        f"{USUAL_LENGTH}",
        group="data",
        unit="tokens",
        at_least=0,
        resume="fixed",
    )
    save_format: Literal["paddle", "hf", "both"] = option(
        "paddle",
        help="format of the best model: for PaddleNLP, for sentence-transformers (hf), or both (hf in "
        "hugging_face/)",
        group="checkpoints",
    )
    eval_batch_size: int = option(
        64,
        help="texts in one forward pass of an evaluation",
        group="evaluation",
        unit="texts",
        at_least=1,
        resume="same",
    )
    best_metric: str = option(
        "recall_at_10",
        help="metric on the dev pairs that chooses the best model",
        group="evaluation",
        choices=METRICS,
        resume="fixed",
    )

    def __post_init__(self):
        super().__post_init__()
        assert self.chosen_dims is not None  # refused where they are none
        assert self.pooling == AUTO or own_pooling(self.pooling)  # the same
        if 0 < self.max_seq_len < SHORTEST_PAIR:  # tokenizer_config.json remembers it, and may start pairs
            raise InputError(f"--max_seq_len {self.max_seq_len} is below {SHORTEST_PAIR}; use {USUAL_LENGTH}")
        if self.label_map and sorted(set(parse_label_map(self.label_map).classes.values())) != [0, 1]:
            raise InputError(
                f"--label_map {self.label_map} does not name two classes; write 0=different,1=same"
            )
        if self.objective == "simcse" and not self.dropout:
            raise InputError(
                "--objective simcse compares two passes that differ by their dropout, and --dropout 0.0 "
                "leaves them equal; use --dropout 0.1"
            )
        if self.pairs_per_step(1) < 2:
            raise InputError(
                "--batch_size 1 leaves a pair no negatives in its step; use 2 or more, 64 for example"
            )


@dataclass(frozen=True)
class TrainEmbeddingConfig(EmbeddingConfig):
    """Train an encoder whose vectors are close for texts that belong together. Start it again to resume."""

    EXAMPLE = "--model_name_or_path ernie-gram-zh --train_file lcqmc --dev_file lcqmc --output_dir output"

    model_name_or_path: str = option(
        help="a built-in name (ernie-gram-zh, ernie-1.0) or a model folder", group="model"
    )
    train_file: str = option(
        help="labelled pairs: a file, or a set such as lcqmc; for simcse also a .txt file with one text per "
        "line",
        group="data",
    )
    dev_file: str = option(
        help="labelled pairs; each first text searches for its match among all second texts", group="data"
    )
    negatives_file: str = option(
        "", help="pairs of a training text and a hard negative for it; labels are ignored", group="data"
    )
