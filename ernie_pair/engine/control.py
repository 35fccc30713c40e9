"""What is done at the end of a step, decided by the schedule and by whoever is called there."""

from dataclasses import dataclass

from ernie_pair.engine.schedule import Schedule


@dataclass
class TrainerControl:
    """What the loop is about to do after a step; a callback may switch any of it on or off.

    The loop logs, evaluates and saves, in this order, and asks anew before each: what is set when its turn
    has passed is forgotten at the next step. The last step is always saved. ``should_training_stop`` ends
    the run after the step, saved.
    """

    should_training_stop: bool = False
    should_log: bool = False
    should_evaluate: bool = False
    should_save: bool = False

    def begin_step(self, step: int, schedule: Schedule) -> None:
        """Set what ``schedule`` says of this step."""
        self.should_log = schedule.logs_at(step)
        self.should_evaluate = schedule.evaluates_at(step)
        self.should_save = schedule.saves_at(step)
