"""The best model of a run: OUT/best-accuracy-0.8962/, one at a time."""

import logging
import shutil
from pathlib import Path
from typing import Callable, Dict, Optional

from ernie_pair.loop import TrainState
from ernie_pair.published_folder import publish_folder
from ernie_pair.together import Add, together
from ernie_pair.world import World

PREFIX = "best-"

logger = logging.getLogger(__name__)


class BestModel:
    """Publishes a model that beats those before it; of equal ones the first is kept.

    ``write`` fills a folder. Called by every rank of ``world``; the first writes, and all wait, or raise
    the same error; see ``together``.
    """

    def __init__(
        self,
        output_dir: Path,
        write: Callable[[Path], None],
        world: World,
        add: Add,
        metric: str = "accuracy",
        lower_is_better: bool = False,
    ):
        self.output_dir, self.write, self.metric = Path(output_dir), write, metric
        self.world, self.add, self.lower_is_better = world, add, lower_is_better

    def judge(self, state: TrainState, metrics: Dict[str, float]) -> bool:
        """Is this evaluation the best? ``state.best_metric`` is the best so far."""
        value = metrics[self.metric]
        if state.best_metric is not None and not self._is_better(value, state.best_metric):
            return False
        state.best_metric, state.best_step = value, state.step
        folder = self.output_dir / f"{PREFIX}{self.metric}-{value:.4f}"
        together(self.add, self.world, lambda: self._publish(folder) if self.world.is_first else None)
        return True

    def _is_better(self, value: float, best: float) -> bool:
        return value < best if self.lower_is_better else value > best

    def folder(self) -> Optional[Path]:
        """Where the best model lies, if there is one."""
        return next(iter(sorted(self.output_dir.glob(f"{PREFIX}{self.metric}-*"))), None)

    def _publish(self, folder: Path) -> None:
        publish_folder(folder, self.write)
        for pattern in (f"{PREFIX}*", f".tmp-{PREFIX}*", f".trash-{PREFIX}*"):
            for other in self.output_dir.glob(pattern):
                if other != folder:
                    shutil.rmtree(other)
        logger.info("best %s so far: %s", self.metric, folder)
