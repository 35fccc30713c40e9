"""The result file of a command that runs a model, and when it may be written."""

import logging
from functools import cached_property
from pathlib import Path
from typing import Callable, Dict, Iterator, Optional, Sequence

import numpy as np

from data_tools.files.atomic_folder import content_of
from data_tools.files.errors import InputError, counted
from data_tools.files.progress import CountProgress
from data_tools.files.results import Results, settings_of
from ernie_pair.inference.token_rows import WINDOW, open_tokenizer
from ernie_pair.models.labels import Labels
from ernie_pair.models.networks.classifier_weights import load_classifier
from ernie_pair.models.networks.kernel_path import casting, choose_path
from ernie_pair.models.networks.row_answers import logits_of
from ernie_pair.models.temperature import read_calibration, score_pairs
from ernie_pair.pair.config.ask_config import AskConfig
from ernie_pair.pair.data.encoded_pairs import encode_texts
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.data.pair_records import Columns, RowRules
from ernie_pair.pair.data.pair_source import CheckedPairs, PairSource
from ernie_pair.pair.data.rejected import rejected_beside, tell_rejected
from ernie_pair.runtime.device import start_device
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import launched_world
from ernie_pair.train.process_group import join_process_group

INPUTS = ("model_path", "model", "input_file", "calibrate_on", "tune_on", "dev_file", "test_file")
OUTPUTS = ("output_file", "report", "robustness_file")


def refuse_unusable(path: Path) -> None:
    """Raise InputError, before the work, when no file can be written at ``path``."""
    if path.is_dir():
        raise InputError(f"--output_file {path} is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise InputError(f"--output_file {path}: its folder {path.parent} does not exist; make it first")


def results_of(command: str, config, more: Sequence[Path] = (), but: str = "") -> Results:
    """Return the output_file of ``config``, and ``more``, as results of its model and its files of pairs.

    ``but``: a file in the model's folder that is no input; what only tells of the model is none either.
    Raises InputError when no file can be written there.
    """
    refuse_unusable(Path(config.output_file))
    inputs: Dict[str, Sequence[Path]] = {
        name: [path for path in content_of(getattr(config, name)) if path.name != but]
        for name in INPUTS
        if hasattr(config, name)
    }
    named = {name: getattr(config, name) for name, files in inputs.items() if not files}  # sets, models
    settings = {**settings_of(config, *INPUTS, *OUTPUTS, "batch_size"), **named}
    outputs = [Path(config.output_file), *more]
    return Results(command, outputs, inputs, settings, config.overwrite, asked=more)


logger = logging.getLogger(__name__)


class InferenceModel:
    """A trained model, opened by every process of the run.

    Raises InputError when the flags cannot be followed.
    """

    def __init__(self, config: AskConfig):
        self.world = launched_world()
        start_console(self.world)
        refuse_unusable(Path(config.output_file))
        device = start_device(config.device, self.world)
        logger.info("on %s, %s", device, counted(self.world.size, "process", "processes"))
        self.config = config
        self.model, vocab_file = load_classifier(config.model_path, config.model_class)
        self.kernels = choose_path(self.model, config, config.device, casts=True)
        if config.device == "cpu" or self.kernels.is_cast:
            logger.info("%s", self.kernels.describe())
        self.max_seq_len = config.max_seq_len or self.model.spec.inference_length
        self.tokenizer = open_tokenizer(vocab_file, self.model.spec, self.max_seq_len)
        self.calibration = read_calibration(Path(config.model_path), self.num_classes)

    @property
    def num_classes(self) -> int:
        """Return the number of classes C."""
        return self.model.num_classes

    @property
    def labels(self) -> Labels:
        """Return the names of the classes, and the words that files use for them."""
        return self.model.spec.labels

    @cached_property
    def process_group(self):
        """Return the process group, joined when first asked for, after what each process reads on its own.

        From then on all its processes compute with the same kernels.
        """
        group, own = join_process_group(self.world), self.kernels
        self.kernels = choose_path(
            self.model, self.config, self.config.device, group.size, group.all_reduce, casts=True
        )
        if self.kernels.name != own.name:
            logger.info("%s", self.kernels.describe())
        return group

    def read(self, flag: str) -> Pairs:
        """Read the labelled pairs of a file, or of the part `dev` of a set, named by ``flag``.

        Raises InputError.
        """
        return self._read(flag, "dev", self.labels)

    def read_texts(self, flag: str) -> Pairs:
        """Read the pairs of a file, labelled or not, or of the part `test` of a set, named by ``flag``.

        Raises InputError.
        """
        return self._read(flag, "test", None)

    def check(self, flag: str) -> CheckedPairs:
        """Check the pairs of a file, labelled or not, or of the part `test` of a set, named by ``flag``.

        Raises InputError.
        """
        return CheckedPairs(
            self._source(flag, "test", None), self._told(flag) if self.world.is_first else None
        )

    def _read(self, flag: str, split: str, labels: Optional[Labels]) -> Pairs:
        source = self._source(flag, split, labels)
        pairs = source.read()
        if self.world.is_first:
            tell_rejected(source.name, pairs.bad, len(pairs), self._told(flag))
        return pairs

    def _source(self, flag: str, split: str, labels: Optional[Labels]) -> PairSource:
        named = self.config.text_a, self.config.text_b, self.config.label
        columns = Columns(*named, getattr(self.config, "query", ""))
        name = getattr(self.config, flag)
        return PairSource(flag, name, split, labels, columns, RowRules.of(self.config))

    def _told(self, flag: str) -> Optional[Path]:
        """Return where the rows left out of the file of ``flag`` are written; two may have one file name."""
        other = "" if flag == "input_file" else f".{flag}"
        return rejected_beside(self.config.output_file, other)

    def logits(self, pairs: Pairs, symmetric: str) -> np.ndarray:
        """Return the logits of the pairs, float32 [N, C], the same on every process.

        See ``logits_of``, and `pair_symmetry` for ``symmetric``.
        """
        return score_pairs(self._logits_of_texts, pairs.left, pairs.right, symmetric)

    def logits_by_window(self, pairs: CheckedPairs, symmetric: str) -> Iterator[np.ndarray]:
        """Yield the logits of all pairs, float32 [at most WINDOW, C], in their order; see ``logits``."""
        orders = 1 if symmetric == "none" else 2
        with CountProgress(pairs.count, "pair", shown=self.world.is_first) as progress:

            def score(left: Sequence[str], right: Sequence[str]) -> np.ndarray:
                return self._logits_of_texts(left, right, lambda rows: progress.advance(rows / orders))

            for window in pairs.windows(WINDOW):
                yield score_pairs(score, window.left, window.right, symmetric)

    def _logits_of_texts(
        self, left: Sequence[str], right: Sequence[str], asked: Optional[Callable[[int], None]] = None
    ) -> np.ndarray:
        rows = encode_texts(left, right, None, self.tokenizer, self.max_seq_len)
        with casting(self.kernels):
            return logits_of(self.model, rows, self.config.batch_size, self.process_group, asked)
