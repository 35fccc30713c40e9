"""The state of a run besides its weights, written to each checkpoint as state.json."""

from dataclasses import dataclass, field
from typing import Dict, Optional, Tuple

# {metric: (sum of its finite values, their number)}, added in the order of the steps.
Window = Dict[str, Tuple[float, int]]


@dataclass
class TrainState:
    """Everything that the loop must remember besides the weights."""

    step: int = 0
    consumed_samples: int = 0
    best_metric: Optional[float] = None
    skipped_updates: int = 0
    evaluation_pending: bool = False  # what was due after the last step has not been done yet
    metric_to_beat: Optional[float] = None  # of early stopping
    stale_evaluations: int = 0  # in a row that have not beaten it
    best_step: Optional[int] = None  # whose evaluation gave best_metric; 0: the initial weights
    window: Window = field(default_factory=dict)  # of the steps since the last training line
