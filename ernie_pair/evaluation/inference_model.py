"""Trained pair models on Paddle, as scorers of pairs: for a program, or for the processes of a command."""

import hashlib
import logging
import os
from functools import cached_property, partial
from pathlib import Path
from typing import Dict, Optional, Tuple

import numpy as np

from ernie_pair.core.errors import counted
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.files.atomic_folder import list_content
from ernie_pair.inference.predictor import Advance, PairScorer
from ernie_pair.inference.token_rows import WINDOW, BatchRules, EncodedPairs, open_tokenizer
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.models.model_card import baseline_in, learned_nothing_in
from ernie_pair.models.model_folder import resolve_model_folder
from ernie_pair.models.networks.classifier import load_classifier
from ernie_pair.models.networks.encoders import predict_logits
from ernie_pair.models.networks.kernel_path import casting, choose_path, take_threads
from ernie_pair.models.temperature import read_calibration
from ernie_pair.pairs.config.ask_config import ModelFlags
from ernie_pair.runtime.device import default_device, start_device
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import World, launched_world
from ernie_pair.training.process_group import join_process_group

BATCH_SIZE = 64

logger = logging.getLogger(__name__)


class TrainedScorer(PairScorer):
    """A trained model in ``folder``, or the best one of the run there; it decides by its calibration.

    ``kernels``: how it is computed on ``device``, cpu or gpu; ``threads``: of one forward pass on a CPU, 0:
    those of this process; ``batch_tokens``: most tokens in one pass, in place of ``batch_size`` pairs, 0: no
    limit. Raises InputError for a folder without one, CheckpointError.
    """

    window = WINDOW

    def __init__(
        self,
        folder: str,
        device: str,
        kernels: KernelFlags = KernelFlags(),  # noqa: B008
        model_class: str = "",
        max_seq_len: int = 0,
        batch_size: int = BATCH_SIZE,
        batch_tokens: int = 0,
        threads: int = 0,
        world: World = World(),  # noqa: B008
    ):
        self.world, self.device, self.flags, self.batch_size = world, device, kernels, batch_size
        self.rules = BatchRules().holding(batch_tokens)
        self.started_on = start_device(device, world)
        self.where = str(resolve_model_folder(Path(folder)))
        how = device, kernels, model_class, max_seq_len, batch_size, batch_tokens, threads
        self.opens = partial(TrainedScorer, os.path.abspath(self.where), *how)
        self.model, vocab_file = load_classifier(self.where, model_class)
        self.spec = self.model.spec
        self.labels = self.spec.labels
        self.kernels = choose_path(self.model, kernels, device, casts=True)
        take_threads(self.model, threads)
        self.max_seq_len = max_seq_len or self.spec.inference_length
        self.tokenizer = open_tokenizer(vocab_file, self.spec, self.max_seq_len)
        where = Path(self.where)
        self.calibration = read_calibration(where, self.model.num_classes)
        self.shared_characters, self.learned_nothing = baseline_in(where), learned_nothing_in(where)

    @property
    def identity(self) -> Tuple[str, str]:
        """Return a hash of all files of the model but those that only tell of it, and its kernels."""
        files = "".join(map(sha256_of_file, list_content(str(self.where))))
        return hashlib.sha256(files.encode()).hexdigest(), self.kernels.name

    @cached_property
    def process_group(self):
        """Return the process group, joined when first asked for, after what each process reads on its own.

        From then on all its processes compute with the same kernels.
        """
        group, own = join_process_group(self.world), self.kernels
        self.kernels = choose_path(
            self.model, self.flags, self.device, group.size, group.all_reduce, casts=True
        )
        if self.kernels.name != own.name:
            logger.info("%s", self.kernels.describe())
        return group

    @property
    def how(self) -> Dict[str, str]:
        """Return {kernels: the path of its layers}."""
        return {"kernels": self.kernels.describe(with_notes=False)}

    def wait(self) -> None:
        """Wait until all processes of the ``world`` are here."""
        self.process_group.barrier()

    def logits_of_rows(self, rows: EncodedPairs, advance: Optional[Advance] = None) -> np.ndarray:
        """Return the logits of pairs as token ids, float32 [N, C], the same on every process."""
        group = self.process_group
        with casting(self.kernels):
            return predict_logits(self.model, rows, self.batch_size, group, advance, self.rules)


class InferenceModel(TrainedScorer):
    """The trained model of a command, in every process of the run. Raises InputError if flags do not fit."""

    def __init__(self, config: ModelFlags):
        world = launched_world()
        start_console(world)
        device = default_device() if config.device == "auto" else config.device
        names = ("model_class", "max_seq_len", "batch_size", "batch_tokens", "threads")
        same = {name: getattr(config, name) for name in names}
        super().__init__(config.model_path, device, config, world=world, **same)
        logger.info("on %s, %s", self.started_on, counted(world.size, "process", "processes"))
        if self.device == "cpu" or self.kernels.is_cast:
            logger.info("%s", self.kernels.describe())
