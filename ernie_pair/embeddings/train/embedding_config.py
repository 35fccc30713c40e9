"""The flags of training an embedding model."""

from dataclasses import dataclass
from typing import Optional

from ernie_pair.core.cli.options import (
    check_names,
    data_option,
    evaluation_option,
    file_option,
    kept_data_option,
    kept_optimisation_option,
    model_folder_option,
    model_option,
    names_in,
    new_model_option,
    optimisation_option,
    tokens_option,
)
from ernie_pair.core.errors import InputError
from ernie_pair.embeddings.embed_config import AUTO, check_two_classes
from ernie_pair.embeddings.retrieval import METRICS
from ernie_pair.models.embedding_json import POOLING_NAMES, check_pooling
from ernie_pair.models.families import FAMILIES
from ernie_pair.models.labels import parse_label_range
from ernie_pair.models.spec import MIN_PAIR_LENGTH
from ernie_pair.models.temperature import LARGEST, SMALLEST
from ernie_pair.pairs.config.pair_config import MODEL_NAME_HELP
from ernie_pair.pairs.data.pair_records import LABEL_MAP_HELP, RowFlags
from ernie_pair.training.run_flags import TrainingFlags, best_metric_option

USUAL_LENGTH = 64  # tokens of a text
PAIRS, SIMCSE, GIST, GRADED, TAUGHT = "pairs", "simcse", "gist", ("cosent", "angle"), ("margin_mse", "kl")
OBJECTIVES = (PAIRS, SIMCSE, GIST, *GRADED, *TAUGHT)


@dataclass(frozen=True)
class EmbeddingConfig(RowFlags, TrainingFlags):
    """Settings for training an embedding model; the data are given to the command or the trainer."""

    MOST_CLASSES = 2

    objective: str = kept_optimisation_option(
        "pairs",
        help="pairs: the two texts of a pair with label 1 belong together; simcse: a text belongs to itself "
        "under different dropout; gist: pairs, without negatives that --teacher takes for matches; cosent, "
        "angle: the order of graded pairs; margin_mse, kl: the scores of --teacher; or one for each of "
        "several files, separated by commas",
        usual=True,
    )
    teacher: str = model_folder_option(
        "",
        help="for margin_mse and kl: a pair classifier, a ranker or a published cross-encoder, whose scores "
        "are learned; for gist: an embedding model",
    )
    sampling_weights: str = data_option(
        "",
        help="shares of the steps that are of each of several training files, for example 0.7,0.3; empty: by "
        "their numbers of pairs",
    )
    pooling: str = model_option(
        AUTO,
        help=f"hidden states that form the vector: {POOLING_NAMES}, or "
        "several joined by +; auto: as the files of the model say, otherwise mean",
        resume="fixed",
        usual=True,
    )
    dims: str = model_option(
        "",
        help="lengths to which vectors may be truncated (Matryoshka), for example 64,128; empty: none",
        resume="fixed",
        usual=True,
    )
    temperature: float = kept_optimisation_option(
        0.05, help="divisor of the cosines before the softmax", at_least=SMALLEST, at_most=LARGEST
    )
    hard_negatives: int = kept_optimisation_option(
        1,
        help="hard negatives per pair in a step: texts of label 0, or from --negatives_file",
        unit="texts",
        at_least=0,
        usual=True,
    )
    gradient_accumulation_steps: int = optimisation_option(
        1,
        help="forward passes of --batch_size pairs in one step; negatives come from the whole step",
        unit="batches",
        at_least=1,
        resume="layout",
    )
    model_type: Optional[str] = new_model_option(
        None, help="model family; none: taken from config.json", choices=FAMILIES, resume="fixed"
    )
    label_map: str = kept_data_option("", help=LABEL_MAP_HELP)
    label_range: str = data_option(
        "",
        help="lowest and highest score of graded pairs, for example 0,5, those of the dev file among them; "
        "empty: 0,5, and the dev pairs are graded if all training pairs are",
    )
    bucket: bool = kept_data_option(True, help="batch texts of similar length together, to reduce padding")
    max_seq_len: int = tokens_option(
        0,
        help="tokens per text, [CLS] and [SEP] included; 0: as the files of an embedding model say, or "
        f"{USUAL_LENGTH}",
        resume="fixed",
        usual=True,
    )
    eval_batch_size: int = evaluation_option(
        64, help="texts in one forward pass of an evaluation", unit="texts", at_least=1, resume="same"
    )
    best_metric: str = best_metric_option("the dev pairs", choices=(*METRICS, AUTO))

    def __post_init__(self):
        super().__post_init__()
        assert self.chosen_dims is not None  # refused where they are none
        if self.pooling != AUTO:
            check_pooling(self.pooling)
        if 0 < self.max_seq_len < MIN_PAIR_LENGTH:  # tokenizer_config.json remembers it, and may start pairs
            raise InputError(
                f"--max_seq_len {self.max_seq_len} is below {MIN_PAIR_LENGTH}; use {USUAL_LENGTH}"
            )
        check_two_classes(self.label_map)
        assert self.score_range  # refused where it is none
        fault = f" is none; use {', '.join(OBJECTIVES)}, or several, separated by commas"
        check_names("objective", self.objectives, OBJECTIVES, fault)
        is_taught, is_guided = not set(TAUGHT).isdisjoint(self.objectives), GIST in self.objectives
        is_unfit = (is_taught or is_guided) != bool(self.teacher) or is_taught and not self.hard_negatives
        if is_unfit or is_taught and is_guided:  # whose teachers are of two kinds
            raise InputError(
                f"--objective {self.objective} --teacher {self.teacher or '-'}: {' and '.join(TAUGHT)} need "
                "a teacher of pairs and --hard_negatives, gist an embedding model as --teacher, and no other "
                "takes one; change one of them"
            )
        if SIMCSE in self.objectives and not self.dropout:
            raise InputError(
                "--objective simcse compares two passes that differ by their dropout, and --dropout 0.0 "
                "leaves them equal; use --dropout 0.1"
            )
        if self.pairs_per_step(1) < 2:
            raise InputError(
                "--batch_size 1 leaves a pair no negatives in its step; use 2 or more, 64 for example"
            )

    @property
    def objectives(self) -> tuple[str, ...]:
        """Return the objective of each training file, or the one of all of them."""
        return tuple(name.strip() for name in self.objective.split(","))

    @property
    def score_range(self) -> tuple[float, float]:
        """Return the lowest and the highest score of graded pairs. Raises InputError."""
        return parse_label_range(self.label_range) or (0.0, 5.0)

    @property
    def has_graded_dev(self) -> bool:
        """Return whether the labels of the dev pairs are scores."""
        return bool(self.label_range) or set(self.objectives) <= set(GRADED)

    @property
    def chosen_dims(self) -> tuple[int, ...]:
        """Return the lengths in ``dims``, ascending, each once. Raises InputError for what is no length."""
        words = names_in(self.dims)
        if not all(word.isdecimal() and 0 < int(word) < 10**6 for word in words):
            raise InputError(
                f"--dims {self.dims} contains something that is not a length; write 64,128,312 for example"
            )
        return tuple(sorted({int(word) for word in words}))


@dataclass(frozen=True)
class TrainEmbeddingConfig(EmbeddingConfig):
    """Train an encoder whose vectors are close for texts that belong together. Start it again to resume."""

    EXAMPLE = "--model_name_or_path ernie-gram-zh --train_file lcqmc --dev_file lcqmc --output_dir output"

    model_name_or_path: str = model_folder_option(help=MODEL_NAME_HELP)
    train_file: str = file_option(
        help="labelled pairs, pairs that belong together, or rows of query, pos and neg or anchor, positive "
        "and negative: a file, or a set such as lcqmc; for simcse also a .txt file with one text per line; "
        "or several, separated by commas: each step is of one of them"
    )
    dev_file: str = file_option(
        help="pairs as of --train_file; each first text searches for its match among all second texts; "
        "graded pairs are measured by spearman"
    )
    negatives_file: str = file_option(
        "", help="pairs of a training text and a hard negative for it; labels are ignored", usual=True
    )
