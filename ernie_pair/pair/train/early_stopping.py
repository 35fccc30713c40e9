"""Early stopping: end a run whose evaluations no longer improve."""

from dataclasses import dataclass

from ernie_pair.checkpoint.train_state import TrainState


@dataclass(frozen=True)
class EarlyStopping:
    """A rule that ends a run after ``patience`` evaluations without a gain above ``min_delta``; 0: never.

    All that it remembers is in the TrainState, so a resumed run counts on. The gain is measured from the last
    evaluation that was better, at first from the initial weights: many small steps that add up to more than
    ``min_delta`` count.
    """

    patience: int
    min_delta: float = 0.0
    lower_is_better: bool = False

    def judge(self, state: TrainState, value: float) -> None:
        """Count in ``state`` an evaluation whose metric is ``value``."""
        if not self.patience:
            return
        if state.metric_to_beat is None or self._gain(value, state.metric_to_beat) > self.min_delta:
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

    def _gain(self, value: float, before: float) -> float:
        return before - value if self.lower_is_better else value - before
