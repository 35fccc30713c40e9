"""A trained model ready for inference, as evaluation and prediction open it."""

from pathlib import Path
from typing import Sequence

import numpy as np

from ernie_pair.device.device import quiet_libraries, start_device
from ernie_pair.engine.run_log import start_console
from ernie_pair.model_files.labels import Labels
from ernie_pair.model_files.pair_symmetry import score_pairs
from ernie_pair.model_files.temperature import read_calibration
from ernie_pair.pair.config.ask_config import AskConfig
from ernie_pair.pair.data.encoded_pairs import encode_texts, open_tokenizer
from ernie_pair.pair.data.pair_columns import Columns
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.data.pair_records import RowRules
from ernie_pair.pair.data.pair_source import PairSource
from ernie_pair.pair.data.rejected import ENDING, tell_rejected
from ernie_pair.pair.evaluation.result_file import refuse_unusable
from ernie_pair.pair.model.classifier import load_classifier
from ernie_pair.pair.model.logits import logits_of
from ernie_pair.pair.process_group import join_process_group
from ernie_pair.processes.world import launched_world


class InferenceModel:
    """A trained model, opened by every process of the run.

    Raises InputError when the flags cannot be followed.
    """

    def __init__(self, config: AskConfig):
        self.world = launched_world()
        start_console(self.world)
        quiet_libraries()
        refuse_unusable(Path(config.output_file))
        start_device(config.device, self.world)
        self.config = config
        self.model, vocab_file = load_classifier(config.model_path, config.model_class)
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

    @property
    def process_group(self):
        """Return the process group, joined when first asked for, after what each process reads by itself."""
        return join_process_group(self.world)

    def read(self, name: str, labelled: bool) -> Pairs:
        """Read the pairs of a file, or those of a set: `dev` when ``labelled``, otherwise `test`.

        Raises InputError.
        """
        labels = self.labels if labelled else None
        columns = Columns(self.config.text_a, self.config.text_b, self.config.label)
        split, rules = "dev" if labelled else "test", RowRules.of(self.config)
        pairs = PairSource("input_file", name, split, labels, columns, rules).read()
        if self.world.is_first:
            other = "" if name == self.config.input_file else f".{Path(name).name}"
            path = Path(f"{self.config.output_file}{other}{ENDING}")
            tell_rejected(name, pairs.bad, len(pairs), path)
        return pairs

    def logits(self, pairs: Pairs, symmetric: str) -> np.ndarray:
        """Return the logits of the pairs, float32 [N, C], the same on every process.

        See ``logits_of``, and `pair_symmetry` for ``symmetric``.
        """
        return score_pairs(self._logits_of_texts, pairs.left, pairs.right, symmetric)

    def _logits_of_texts(self, left: Sequence[str], right: Sequence[str]) -> np.ndarray:
        rows = encode_texts(left, right, None, self.tokenizer, self.max_seq_len)
        return logits_of(self.model, rows, self.config.batch_size, self.process_group)
