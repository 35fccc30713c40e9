"""The flags of pair training: rows, model, target, step; and what they can be combined with.

A trained model keeps its target in its config.json: whoever uses it, or trains it on, says it no more.
"""

import re
from dataclasses import dataclass
from typing import Literal, Optional, Union

from ernie_pair.core.cli.options import (
    check_unset,
    data_option,
    defaults_of,
    devices_option,
    evaluation_option,
    file_option,
    kept_data_option,
    kept_optimisation_option,
    model_folder_option,
    model_option,
    new_model_option,
)
from ernie_pair.core.errors import InputError
from ernie_pair.models.families import FAMILIES
from ernie_pair.models.labels import (
    CLASSIFICATION,
    MAX_WORDS,
    RANKING,
    Labels,
    parse_label_map,
    parse_label_range,
)
from ernie_pair.models.spec import MIN_PAIR_LENGTH, ModelSpec
from ernie_pair.pairs.data.pair_records import LABEL_MAP_HELP, RowFlags
from ernie_pair.pairs.targets.metrics import ALL_METRICS, AUTO, BALANCED, LOWER_IS_BETTER, parse_class_weights
from ernie_pair.runtime.gpu import Card, check_gpu_capability
from ernie_pair.training.run_flags import TrainingFlags, best_metric_option

# Loss of the candidates of a query: module:Class of a `RankingLoss`; loaded for training alone.
RANKING_LOSSES = {
    "listwise": "ernie_pair.pairs.train.loss:ListwiseLoss",
    "listnet": "ernie_pair.pairs.train.loss:ListNetLoss",
    "ranknet": "ernie_pair.pairs.train.loss:RankNetLoss",
    "lambdarank": "ernie_pair.pairs.train.loss:LambdaRankLoss",
    "margin": "ernie_pair.pairs.train.loss:MarginLoss",
}
METRIC_NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")
MODEL_NAME_HELP = "a name (ernie-gram-zh, hfl/chinese-macbert-base) or a model folder"


@dataclass(frozen=True)
class PairConfig(RowFlags, TrainingFlags):
    """Settings for training a pair classifier; the data are given in `TrainConfig` or to `PairTrainer`."""

    MOST_CLASSES = MAX_WORDS

    class_weights: str = kept_optimisation_option(
        "",
        help="weight of each class in the loss, for example 1,2.5; balanced: computed from the training "
        "labels",
        affects="loss, classes",
    )
    rdrop_alpha: float = kept_optimisation_option(
        0.0,
        help="R-Drop: run every pair twice and add this times the divergence to the loss; 0: off",
        at_least=0,
        affects="loss, classes",
    )
    symmetric: Literal["none", "average", "consistency"] = kept_optimisation_option(
        "none",
        help="run every pair in both orders; average: train and score with the mean of the logits; "
        "consistency: add the divergence of the two orders to the loss, and score in one order",
        affects="loss",
    )
    symmetric_alpha: float = kept_optimisation_option(
        1.0,
        help="for --symmetric consistency: weight of the divergence of the two orders",
        at_least=0,
        only_with="symmetric=consistency",
    )
    fgm_epsilon: float = kept_optimisation_option(
        0.0,
        help="FGM: length of the adversarial step on the word embeddings, for example 1; 0: off",
        at_least=0,
        affects="encoder, loop",
    )
    sharding: Literal["none", "stage2"] = devices_option(
        "none",
        help="stage2: split gradients and optimizer state over the GPUs (ZeRO stage 2)",
        resume="layout",
        affects="encoder",
    )
    to_static: Union[bool, Literal["auto"]] = devices_option(
        "auto",
        help="compile the forward pass into one program instead of running op by op; auto: on a GPU, where "
        "possible",
        affects="encoder",
    )
    model_type: Optional[str] = new_model_option(
        None, help="model family; none: taken from config.json", choices=FAMILIES, resume="fixed"
    )
    model_class: str = new_model_option(
        "", help="your own subclass of PairClassifier, package.module:Class", resume="fixed"
    )
    pooling: Literal["cls", "mean", "cosine"] = new_model_option(
        "cls",
        help="input of the classifier: the pooled output of the encoder, the mean of its hidden states, or "
        "how similar those of both texts are, each read alone, which few labels are enough for",
        resume="fixed",
    )
    match_embeddings: Union[bool, Literal["auto"]] = new_model_option(
        "auto",
        help="tell the encoder which tokens stand in the other text too, and in how long a run; auto: true "
        "for random weights and your own pretraining, otherwise as in the model",
        resume="fixed",
    )
    target: Literal["auto", "classification", "regression", "ranking"] = model_option(
        "auto",
        help="regression: the label is a score; ranking: labels from 0 to 3 grade the candidates of a query; "
        "auto: as in the model's config.json",
        usual=True,
    )
    ranking_loss: str = kept_optimisation_option(
        "listwise",
        choices=RANKING_LOSSES,
        help="for ranking, over all candidates of a query: softmax against their share of the labels, or "
        "ListNet; over two of them: RankNet, LambdaRank, which weighs by nDCG, or a --margin",
        affects="loss, ranking",
    )
    margin: float = kept_optimisation_option(
        1.0,
        help="for --ranking_loss margin: how much higher the score of a better candidate must be",
        above=0,
        affects="ranking",
        only_with="ranking_loss=margin",
    )
    most_candidates: int = kept_optimisation_option(
        16,
        help="for ranking: maximum candidates per query in a batch of --batch_size queries; the others take "
        "turns; 0: no maximum",
        unit="pairs",
        at_least=0,
        affects="ranking",
    )
    query: str = kept_data_option(
        "",
        help="for ranking: the column that identifies the query of a row; empty: the first text",
        affects="ranking",
    )
    label_range: str = data_option(
        "",
        help="for regression: lowest and highest label, for example 0,5; empty: as in the model, or no "
        "limits",
    )
    label_map: str = data_option("", help=LABEL_MAP_HELP, affects="classes", usual=True)
    cache_dir: str = data_option(
        "", help="a folder for the encoded pairs; empty: OUTPUT_DIR/cache", writes="FOLDER"
    )
    streaming: bool = data_option(
        False, help="never hold the whole training file in memory; needs --max_steps"
    )
    shuffle_buffer: int = data_option(
        10_000, help="rows of a streamed file to shuffle together", unit="pairs", at_least=1
    )
    bucket: bool = data_option(True, help="batch pairs of similar length together, to reduce padding")
    max_seq_len: int = kept_data_option(
        128,
        help="tokens per pair, [CLS] and [SEP] included",
        unit="tokens",
        at_least=MIN_PAIR_LENGTH,
        usual=True,
    )
    greater_is_better: Optional[bool] = evaluation_option(
        None, help="whether a greater best_metric is better; none: yes, unless it is the loss or an error"
    )

    def __post_init__(self):
        super().__post_init__()
        parse_class_weights(self.class_weights)
        if self.symmetric != "none" and self.rdrop_alpha:
            raise InputError(
                f"--symmetric {self.symmetric} runs every pair in both orders, and --rdrop_alpha "
                f"{self.rdrop_alpha} twice in one; leave one of them out"
            )
        if self.most_candidates == 1:
            raise InputError("--most_candidates 1 leaves nothing to compare; use 2 or more, or 0 for all")
        if self.fgm_epsilon and self.weights_are_half:
            raise InputError(
                f"--fgm_epsilon {self.fgm_epsilon} moves the embedding by less than the narrow weights of "
                "--amp_level O2 can tell apart; use O1"
            )
        self._refuse_sharding()
        parse_label_range(self.label_range)
        if not METRIC_NAME.fullmatch(self.best_metric):
            raise InputError(
                f"--best_metric {self.best_metric} names a folder: use letters, digits, _ and - alone"
            )
        if self.streaming and not self.max_steps:
            raise InputError("--streaming true does not know the number of rows; pass --max_steps")
        for name in ("evaluation_strategy", "save_strategy") if self.streaming else ():
            if getattr(self, name) == "epoch":
                raise InputError(
                    f"--streaming true has no epochs, and --{name} epoch waits for them; use steps"
                )
        if self.streaming and self.class_weights == BALANCED:
            raise InputError(
                "--class_weights balanced counts the labels of all training pairs, and --streaming true "
                "never has them all; give the numbers, 1,2.5 for example"
            )
        if self.rdrop_alpha and not self.dropout:
            raise InputError(
                f"--rdrop_alpha {self.rdrop_alpha} compares two passes that differ by their dropout, and "
                "--dropout 0.0 leaves them equal; use --dropout 0.1, or --rdrop_alpha 0"
            )
        if self.fgm_epsilon and (self.freeze != "none" or self.freeze_layers > 0):
            raise InputError(
                "--fgm_epsilon steps along the gradient of the word embedding, which is frozen; leave "
                "--fgm_epsilon out, or freeze nothing"
            )

    def _refuse_sharding(self) -> None:
        if self.sharding == "none":
            return
        if self.fgm_epsilon:
            raise InputError(
                "--fgm_epsilon needs the embedding's gradient on every process, and --sharding stage2 leaves "
                "it on one; use --sharding none"
            )
        if self.device == "cpu":
            raise InputError(
                "--sharding stage2 needs GPUs: Paddle splits the state over NCCL alone; use --sharding none"
            )

    @property
    def scored_as(self) -> str:
        """Return how the pairs of an evaluation are scored; see `pair_symmetry`."""
        return "average" if self.symmetric == "average" else "none"

    @property
    def passes_of_a_pair(self) -> int:
        """Return how often a step lets each pair pass forward."""
        return (2 if self.rdrop_alpha or self.symmetric != "none" else 1) * (2 if self.fgm_epsilon else 1)

    def refuse_on(self, card: Card) -> None:
        """Raise InputError if ``card`` has no units for what is asked.

        The dynamic graph needs them for float16 too; a program of the static one computes without.
        """
        super().refuse_on(card)
        if self.computes_in_half:
            cure = "use another type, or --use_amp false"
            check_gpu_capability(card.capability, self.amp_dtype, f"--amp_dtype {self.amp_dtype}", cure)

    @property
    def lower_is_better(self) -> bool:
        """Return whether a lower ``best_metric`` is better."""
        if self.greater_is_better is None:
            return self.best_metric in LOWER_IS_BETTER
        return not self.greater_is_better


@dataclass(frozen=True)
class TrainConfig(PairConfig):
    """Fine-tune ErnieGram, ERNIE, BERT or a similar model on sentence pairs. Start it again to resume."""

    EXAMPLE = "--model_name_or_path ernie-gram-zh --train_file lcqmc --dev_file lcqmc --output_dir output"

    model_name_or_path: str = model_folder_option(help=MODEL_NAME_HELP, affects="run")
    train_file: str = file_option(
        help="labelled pairs: .tsv, .csv, .xlsx, .jsonl, ... or a set such as lcqmc"
    )
    dev_file: str = file_option(help="labelled pairs for choosing the best model: a file or a set")
    best_metric: str = best_metric_option("the dev file", choices=(*ALL_METRICS, AUTO))


def chosen_labels(config, spec: ModelSpec) -> Labels:
    """Return what is learned, as ``config`` says, else ``spec``. Raises InputError for contradictions."""
    target = spec.target if config.target == "auto" else config.target
    if target == CLASSIFICATION:
        if config.label_range:
            raise InputError(
                f"--label_range {config.label_range} is for scores, and this model has classes; pass "
                "--target regression as well, or leave it out"
            )
        if config.label_map:
            return parse_label_map(config.label_map)
        return spec.labels if spec.target == CLASSIFICATION else Labels.numbered(2)
    if target == RANKING:
        return Labels.of_candidates()
    limits = parse_label_range(config.label_range)
    if limits is None and spec.target == target:
        return spec.labels
    return Labels.scores(limits)


def refuse_unfit_flags(config, labels: Labels) -> None:
    """Raise InputError for a flag of training that a model for ``labels`` has no use of."""
    refuse_class_flags(config, labels, "this")
    if config.symmetric != "none" and not labels.has_classes:
        raise InputError(
            f"--symmetric {config.symmetric} compares the logits of classes, and this is a model for "
            f"{labels.target}; leave it out, and score both orders when you predict"
        )
    if labels.target == RANKING:
        if config.streaming:
            raise InputError(
                "--streaming true never has all candidates of a query, and --target ranking takes them "
                "together; leave it out"
            )
        if config.label_range:
            raise InputError(f"--label_range {config.label_range} is for regression; leave it out")
        return
    check_unset(
        config,
        defaults_of(PairConfig, "ranking"),
        f" is for --target ranking, not {labels.target}; leave it out",
    )


def refuse_query(query: str, labels: Labels) -> None:
    """Raise InputError for a column of queries where nothing is ranked."""
    if query and labels.target != RANKING:
        raise InputError(f"--query {query} is for a ranking model, not one for {labels.target}; leave it out")


def refuse_class_flags(config, labels: Labels, where: str) -> None:
    """Raise InputError for a flag of ``config`` that a model for ``labels`` has no use of."""
    if labels.has_classes:
        return
    fault = f" is for classes, and {where} is a model for {labels.target}; leave it out"
    check_unset(config, defaults_of(config, "classes"), fault)
