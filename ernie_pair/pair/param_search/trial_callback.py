"""What a trial reports to the study at its evaluations, and whether it is pruned."""

import math
from typing import Any, Optional

from ernie_pair.engine.control import TrainerControl
from ernie_pair.pair.param_search.study import Trial
from ernie_pair.pair.train.callbacks import PairCallback


class TrialCallback(PairCallback):
    """Reports the evaluations of a run to its trial, every ``eval_freq`` steps and the last one.

    Trials of other batch sizes have other steps; their evaluations are counted, so that the n-th of one
    stands for the same share of its training as the n-th of another. ``trial`` is None on ranks that do not
    know the study: they are never called.
    """

    def __init__(self, trial: Optional[Trial], metric: str):
        self.trial, self.metric = trial, metric

    def on_evaluate(
        self, args: Any, state: Any, control: TrainerControl, *, model: Any, metrics: Any, **kwargs: Any
    ) -> None:
        """Report the evaluation, and stop the run where the trial is to end."""
        step, last = state.global_step, state.max_steps
        if self.trial is None or step == 0 or (step % args.eval_freq and step < last):
            return
        evaluation = math.ceil(step / args.eval_freq)
        if self.trial.report(evaluation, float(metrics[self.metric]), is_last=step >= last):
            control.should_training_stop = True
