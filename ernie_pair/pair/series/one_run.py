"""One run of a series in this process, or in all that were launched: an ordinary run in its own folder."""

import gc
from typing import Callable, Optional, Sequence, TypeVar

import numpy as np

from data_tools.base.errors import CheckpointError
from ernie_pair.device.device import start_device
from ernie_pair.device.malloc import keep_freed_memory
from ernie_pair.pair.config.pair_config import PairConfig, TrainConfig
from ernie_pair.pair.process_group import join_process_group
from ernie_pair.pair.train.callbacks import PairCallback
from ernie_pair.pair.train.trainer import PairTrainer, TrainResult
from ernie_pair.processes.collectives import gather_results
from ernie_pair.processes.console import start_console
from ernie_pair.processes.world import launched_world

Result = TypeVar("Result")


class Ranks:
    """The processes that make the runs of a series, all of them together; one without a launcher."""

    def __init__(self, config: PairConfig):
        self.world = launched_world()
        start_console(self.world)
        start_device(config.device, self.world, config)
        self._group = join_process_group(self.world)

    def by_first(self, action: Callable[[], Result]) -> Optional[Result]:
        """Run ``action`` on rank 0, and return what it returns there, a JSON value, on every rank.

        Raises on all ranks what rank 0 raises.
        """
        first = self.world.is_first
        return gather_results(self._group.all_reduce, self.world, lambda: action() if first else None)[0]


class OneRun:
    """A run of `ernie-pair train` with the flags ``config``; it goes on where its folder stands.

    Made and asked by every rank alike. Raises an ErniePairError for whatever the user can fix.
    """

    def __init__(self, config: TrainConfig, callbacks: Sequence[PairCallback] = ()):
        gc.collect()  # the model of the run before
        self._trainer = PairTrainer(
            config.model_name_or_path, config, config.train_file, config.dev_file, callbacks=callbacks
        )
        if self._trainer.model.fused_state is not None:
            keep_freed_memory()

    def train(self) -> TrainResult:
        """Train to the end, or until a callback stops the run."""
        return self._trainer.train()

    def logits(self, file: str) -> np.ndarray:
        """Return the logits, float32 [N, C], that its best model gives the pairs of ``file``.

        They are scored as the model says, in one order or both: as it will answer once it is shipped.
        Raises CheckpointError when the run has published none.
        """
        result = self._trainer.state.best_model_checkpoint
        if result is None:
            raise CheckpointError(
                f"{self._trainer.config.output_dir} holds no best model; remove it and run the same command "
                "again"
            )
        return self._trainer.predict(file).predictions
