"""When a run ends before its time: its evaluations have stopped getting better."""

from dataclasses import dataclass

from ernie_pair.checkpoint.train_state import TrainState


@dataclass(frozen=True)
class EarlyStopping:
    """``patience`` evaluations in a row without one that is better by more than ``min_delta``; 0: never.

    All that it remembers is in the TrainState, so a run that goes on counts on. Better than what? Than
    the last evaluation that was better, the start itself at first: many small steps that add up to more
    than ``min_delta`` count.
    """

    patience: int
    min_delta: float = 0.0
    lower_is_better: bool = False

    def judge(self, state: TrainState, value: float) -> None:
        """See one evaluation."""
        if not self.patience:
            return
        if state.metric_to_beat is None or self._gain(value, state.metric_to_beat) > self.min_delta:
            state.metric_to_beat, state.stale_evaluations = value, 0
        else:
            state.stale_evaluations += 1

    def is_due(self, state: TrainState) -> bool:
        return 0 < self.patience <= state.stale_evaluations

    def _gain(self, value: float, before: float) -> float:
        return before - value if self.lower_is_better else value - before
