"""The best model of a run: OUT/best-accuracy-0.8962/, and the link OUT/best to it.

Its .made.json says of which run it is and how good; other entries called best-* are the user's and stay.
"""

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Mapping, Optional

from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.checkpoint.run_folder import (
    PREFIX,
    folders_of_run,
    point_best,
    published_of_run,
    ranked_models,
)
from ernie_pair.core.files.atomic_folder import clear_leftovers, remove_made
from ernie_pair.models.model_card import LEARNED_NOTHING, learned_nothing_in

logger = logging.getLogger(__name__)


@dataclass
class BestModel:
    """The best model of a run: one that beats those before it is published; of equal ones the first stays.

    The ``keep`` best stay. ``baseline``: what ``metric`` is without any learning; None: it is not known.
    """

    output_dir: Path
    metric: str = "accuracy"
    lower_is_better: bool = False
    keep: int = 1
    baseline: Optional[float] = None
    learned_nothing: str = ""  # why the model that is published is no better than without training

    def improves(self, state: TrainState, metrics: dict[str, float]) -> bool:
        """Return whether ``metrics`` are the best so far, and note them in ``state`` if they are."""
        value, best = metrics[self.metric], state.best_metric
        if best is not None and not (value < best if self.lower_is_better else value > best):
            return False
        state.best_metric, state.best_step = value, state.step
        self.learned_nothing = self._why_nothing(value, state.step)
        return True

    @contextmanager
    def published(self, state: TrainState, facts: Mapping[str, object]) -> Iterator[Path]:
        """Yield a draft of the folder of the model that `improves`; one rank writes it.

        ``facts``: what its record says besides. At the end OUT/best points to it, and those that are too many
        are removed. Raises OSError.
        """
        clear_leftovers(self.output_dir, lambda name: name.startswith(PREFIX))
        about = {"metric": self.metric, "value": state.best_metric, **facts}
        about["lower_is_better"] = self.lower_is_better
        about.update({LEARNED_NOTHING: self.learned_nothing} if self.learned_nothing else {})
        named = self.output_dir / f"{PREFIX}{self.metric}-{state.best_metric:.4f}"
        with published_of_run(named, about) as (folder, draft):
            yield draft
        point_best(folder)
        ranked = [path for path, _ in ranked_models(self.output_dir, self.metric) if path != folder]
        for path, _ in folders_of_run(self.output_dir, PREFIX):
            if path not in [folder, *ranked[: self.keep - 1]]:
                remove_made(path)

    def folder(self) -> Optional[Path]:
        """Return the folder of the best model; None where there is none."""
        found = ranked_models(self.output_dir, self.metric)
        return found[0][0] if found else None

    def restore_link(self) -> None:
        """Point OUT/best to the best model, where a kill left it otherwise."""
        best = self.folder()
        if best is not None:
            point_best(best)

    def describe(self, state: TrainState) -> str:
        """Return the best metric so far, and where its model lies: "accuracy 0.8962: OUT/best-..."."""
        return f"{self.metric} {state.best_metric:.4f}: {self.folder()}"

    def warn_of_nothing(self, state: TrainState) -> None:
        """Warn where the best model is no better than that of step 0, or than the baseline."""
        folder = self.folder()
        if folder is None or state.best_metric is None or not state.step:
            return
        reason = learned_nothing_in(folder) or self._why_nothing(state.best_metric, state.best_step)
        if reason:
            logger.warning("%s; it is kept in %s", reason, folder)

    def _why_nothing(self, value: float, step: Optional[int]) -> str:
        if step == 0:
            return (
                f"the best {self.metric}, {value:.4f}, is that of step 0: training did not improve on the "
                "initial model"
            )
        if self.baseline is None or value > self.baseline:
            return ""
        return (
            f"the best {self.metric}, {value:.4f}, is not above the {self.baseline:.4f} of counting shared "
            "characters: the model has learned nothing that these do not show"
        )


@dataclass(frozen=True)
class EarlyStopping:
    """A rule that ends a run after ``patience`` evaluations without a gain; 0: never.

    All that it remembers is in the TrainState, so a resumed run counts on. The gain is measured from the last
    evaluation that was better, at first from the initial weights.
    """

    patience: int
    lower_is_better: bool = False

    def judge(self, state: TrainState, value: float) -> None:
        """Count in ``state`` an evaluation whose metric is ``value``."""
        if not self.patience:
            return
        before = value if state.metric_to_beat is None else state.metric_to_beat
        gain = before - value if self.lower_is_better else value - before
        if state.metric_to_beat is None or gain > 0:
            state.metric_to_beat, state.stale_evaluations = value, 0
        else:
            state.stale_evaluations += 1

    def is_due(self, state: TrainState) -> bool:
        """Return whether the run is to end now."""
        return 0 < self.patience <= state.stale_evaluations

    def reason(self, state: TrainState, metric: str) -> str:
        """Return why a run ends that goes by ``metric``."""
        count, best = state.stale_evaluations, state.metric_to_beat
        return f"early: {count} evaluations in a row without a better {metric} than {best:.4f}"
