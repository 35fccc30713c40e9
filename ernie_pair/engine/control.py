"""The actions at the end of a step, decided by the schedule and by callbacks."""

from dataclasses import dataclass

from ernie_pair.engine.schedule import Schedule


@dataclass
class TrainerControl:
    """What the loop will do after a step; a callback may switch each action on or off.

    The loop logs, evaluates and saves, in this order, and checks each flag again before its turn: one that is
    set after its turn is discarded at the next step. The last step is always saved. ``should_training_stop``
    ends the run after the step and saves it.
    """

    should_training_stop: bool = False
    should_log: bool = False
    should_evaluate: bool = False
    should_save: bool = False

    def begin_step(self, step: int, schedule: Schedule) -> None:
        """Set the actions that ``schedule`` gives for this step."""
        self.should_log = schedule.logs_at(step)
        self.should_evaluate = schedule.evaluates_at(step)
        self.should_save = schedule.saves_at(step)
