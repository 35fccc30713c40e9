"""The best model of a run: OUT/best-accuracy-0.8962/, one at a time.

Its .made.json says of which run it is and how good; other entries called best-* are the user's and stay.
"""

import logging
from pathlib import Path
from typing import Callable, Dict, List, Optional, Tuple

from data_tools.files.atomic_folder import clear_leftovers, remove_made
from ernie_pair.checkpoint.run_note import folders_of_run, publish_of_run
from ernie_pair.checkpoint.train_state import TrainState
from ernie_pair.processes.collectives import AllReduce, gather_results
from ernie_pair.processes.world import World

PREFIX = "best-"

logger = logging.getLogger(__name__)


class BestModel:
    """The best model of a run: one that beats those before it is published; of equal ones the first stays.

    ``write`` fills a folder. Called by every rank of ``world``; rank 0 writes, and all wait, or raise the
    same error; see ``gather_results``.
    """

    def __init__(
        self,
        output_dir: Path,
        write: Callable[[Path], None],
        world: World,
        all_reduce: AllReduce,
        metric: str = "accuracy",
        lower_is_better: bool = False,
    ):
        self.output_dir, self.write, self.metric = Path(output_dir), write, metric
        self.world, self.all_reduce, self.lower_is_better = world, all_reduce, lower_is_better

    def judge(self, state: TrainState, metrics: Dict[str, float]) -> bool:
        """Publish the model if this evaluation is the best so far, and return whether it is.

        ``state.best_metric`` is the best value so far, ``state.best_step`` its step; both are updated.
        """
        value = metrics[self.metric]
        if state.best_metric is not None and not self._is_better(value, state.best_metric):
            return False
        state.best_metric, state.best_step = value, state.step
        gather_results(
            self.all_reduce, self.world, lambda: self._publish(value) if self.world.is_first else None
        )
        return True

    def _is_better(self, value: float, best: float) -> bool:
        return value < best if self.lower_is_better else value > best

    def folder(self) -> Optional[Path]:
        """Return the folder of the best model; None where there is none."""
        found = [(note["value"], path) for path, note in best_models(self.output_dir, self.metric)]
        choose = min if self.lower_is_better else max
        return choose(found)[1] if found else None

    def _publish(self, value: float) -> None:
        earlier = [path for path, _ in folders_of_run(self.output_dir, PREFIX)]
        clear_leftovers(self.output_dir, PREFIX)
        about = {"metric": self.metric, "value": value}
        named = self.output_dir / f"{PREFIX}{self.metric}-{value:.4f}"
        folder = publish_of_run(named, self.write, about)
        for other in earlier:
            if other != folder:
                remove_made(other)
        logger.info("best %s so far: %s", self.metric, folder)


def best_models(output_dir: Path, metric: str = "") -> List[Tuple[Path, Dict[str, object]]]:
    """Return (folder, what it says of itself) of the best models of the run in ``output_dir``.

    One, or two where the run was killed between publishing a model and removing the one before. With
    ``metric`` only those that are best by it.
    """
    found = folders_of_run(output_dir, PREFIX)
    return [
        (path, note)
        for path, note in found
        if isinstance(note.get("value"), (int, float)) and metric in ("", note.get("metric"))
    ]
