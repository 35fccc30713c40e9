"""The flags of distillation: a student, and what it learns from its teacher."""

from dataclasses import dataclass
from typing import Literal

from ernie_pair.core.cli.options import (
    file_option,
    kept_optimisation_option,
    model_folder_option,
    model_option,
    optimisation_option,
)
from ernie_pair.core.errors import InputError
from ernie_pair.models.labels import CLASSIFICATION
from ernie_pair.pairs.config.pair_config import PairConfig
from ernie_pair.pairs.targets.metrics import AUTO, METRICS
from ernie_pair.training.run_flags import best_metric_option


@dataclass(frozen=True)
class StudentConfig(PairConfig):
    """A student and what it learns from its teacher; for `distill` with pairs from Python."""

    MOST_CLASSES = 0

    teacher: str = model_folder_option(
        help="a trained pair classifier: its folder, or the output folder of a run for its best model"
    )
    unlabelled_file: str = file_option(
        "", help="additional training pairs, whose labels are ignored; empty: none", usual=True
    )
    model_name_or_path: str = model_folder_option(
        "", help="pretrained model to build the student from; empty: build it from the teacher"
    )
    layers: int = model_option(
        0,
        help="encoder layers of the student; 0: half of the teacher's, or all of --model_name_or_path",
        unit="layers",
        at_least=0,
        usual=True,
    )
    hidden_size: int = model_option(
        0, help="width of the student's hidden states; 0: as in the model it is built from", at_least=0
    )
    heads: int = model_option(
        0, help="attention heads per layer; 0: heads keep their width", unit="heads", at_least=0
    )
    intermediate_size: int = model_option(
        0, help="width inside the feed-forward blocks; 0: in proportion to hidden_size", at_least=0
    )
    temperature: float = kept_optimisation_option(
        2.0, help="divisor of the logits of teacher and student before they are compared", above=0, usual=True
    )
    soft_weight: float = kept_optimisation_option(
        0.5,
        help="weight of the soft targets in the loss of a labelled pair; the rest is the weight of its label",
        at_least=0,
        at_most=1,
    )
    hidden_weight: float = kept_optimisation_option(
        0.0,
        help="weight of the squared difference of the hidden states in the loss; 0: they are not compared",
        at_least=0,
        usual=True,
    )
    layer_map: Literal["uniform", "last"] = kept_optimisation_option(
        "uniform",
        help="for --hidden_weight: compare with every k-th layer of the teacher, or with its last layers",
        only_with="hidden_weight",
    )
    teacher_logits: Literal["auto", "cached", "on_the_fly"] = optimisation_option(
        "auto",
        help="cached: run the teacher once before training and cache its logits; on_the_fly: run it in every "
        "step; auto: cached, unless --hidden_weight or --streaming needs it in every step",
    )
    best_metric: str = best_metric_option("the dev file", choices=(*METRICS, AUTO))

    def __post_init__(self):
        super().__post_init__()
        theirs = "the classes of a student are those of its teacher"
        if self.label_map:
            raise InputError(f"--label_map: {theirs}, whatever the files call them; leave it out")
        if self.target not in ("auto", CLASSIFICATION):
            raise InputError(f"--target {self.target}: {theirs}; leave it out")
        if self.label_range:
            raise InputError(f"--label_range {self.label_range}: {theirs}; leave it out")
        if self.soft_weight == 0 and not self.hidden_weight:
            raise InputError(
                "--soft_weight 0 without --hidden_weight learns nothing from the teacher; "
                "use ernie-pair train"
            )
        self._refuse_hidden_states()
        if self.streaming and self.unlabelled_file:
            raise InputError(
                "--unlabelled_file is read whole, and --streaming true reads one file; put the pairs into "
                "--train_file, where a row needs no label"
            )
        if self.teacher_logits == "cached" and (self.streaming or self.hidden_weight):
            reason = "--streaming true never has all rows" if self.streaming else "--hidden_weight asks it"
            raise InputError(
                f"--teacher_logits cached: {reason}, so the teacher answers in every step; leave it out"
            )

    def _refuse_hidden_states(self) -> None:
        if not self.hidden_weight:
            return
        if self.to_static is True:
            raise InputError(
                "--to_static true: a compiled program returns no hidden states, which --hidden_weight "
                "compares; leave one of them out"
            )
        for name in ("rdrop_alpha", "symmetric"):
            if getattr(self, name) not in (0.0, "none"):
                raise InputError(
                    f"--hidden_weight compares the states of one pass, and --{name} {getattr(self, name)} "
                    "runs every pair twice; leave one of them out"
                )

    @property
    def asks_in_each_step(self) -> bool:
        """Return whether the teacher runs in every step instead of once before training."""
        wants_it = self.streaming or bool(self.hidden_weight)
        return self.teacher_logits == "on_the_fly" or (self.teacher_logits == "auto" and wants_it)


@dataclass(frozen=True)
class DistillConfig(StudentConfig):
    """Distill a trained pair classifier into a smaller or narrower one. Start it again to resume."""

    EXAMPLE = "--teacher output/best --layers 4 --train_file train.tsv --dev_file dev.tsv --output_dir small"

    train_file: str = file_option(
        help="pairs: .tsv, .csv, .xlsx, .jsonl, ... or a set such as lcqmc; a row may lack its label"
    )
    dev_file: str = file_option(help="labelled pairs for choosing the best model: a file or a set")
