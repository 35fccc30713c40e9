"""When something is due in a run, counted in optimizer steps."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """The steps at which something is due. 0 means never; ``samples_per_epoch`` 0: epochs do not count."""

    max_steps: int
    global_batch_size: int
    logging_freq: int
    eval_freq: int
    checkpoint_steps: int
    export_steps: int = 0
    samples_per_epoch: int = 0
    has_validation: bool = True  # False: there is no data for it, and hooks are called without metrics
    has_test: bool = False  # whether there is another evaluation after the last step
    evaluates: bool = True  # False: never, and nothing is judged
    evaluates_epochs: bool = True  # at the end of each epoch too, if epochs count
    saves_epochs: bool = False  # the same
    sync_freq: int = 1  # steps between readings of the metrics; 0: only when something else is due

    def logs_at(self, step: int) -> bool:
        """Return whether a training line is due: every ``logging_freq`` steps and at the end."""
        return step == self.max_steps or _is_multiple(step, self.logging_freq)

    def evaluates_at(self, step: int) -> bool:
        """Return whether an evaluation is due.

        That is before the first step, every ``eval_freq`` steps, at the end of each epoch if these are to be
        evaluated, and at the end.
        """
        ends_an_epoch = self.evaluates_epochs and self.ends_an_epoch(step)
        is_end = step in (0, self.max_steps)
        return self.evaluates and (is_end or ends_an_epoch or _is_multiple(step, self.eval_freq))

    def saves_at(self, step: int) -> bool:
        """Return whether a checkpoint is due.

        That is every ``checkpoint_steps`` steps, at the end of each epoch if these are saved, and at the end.
        """
        ends_an_epoch = self.saves_epochs and self.ends_an_epoch(step)
        return step == self.max_steps or ends_an_epoch or _is_multiple(step, self.checkpoint_steps)

    def exports_at(self, step: int) -> bool:
        """Return whether an exported model is due: every ``export_steps`` steps."""
        return _is_multiple(step, self.export_steps)

    def reads_at(self, step: int) -> bool:
        """Return whether the metrics of a step, and of those before it, must be read after it.

        That is every ``sync_freq`` steps, and whenever something is due that depends on them.
        """
        due = (self.logs_at, self.evaluates_at, self.saves_at, self.exports_at)
        return _is_multiple(step, self.sync_freq) or any(is_due(step) for is_due in due)

    def begins_an_epoch(self, step: int) -> bool:
        """Return whether ``step`` is the first in an epoch; if epochs do not count, none is."""
        return bool(self.samples_per_epoch) and (step == 1 or self.ends_an_epoch(step - 1))

    def ends_an_epoch(self, step: int) -> bool:
        """Return whether an epoch ends in this step; if epochs do not count, none does."""
        if not self.samples_per_epoch:
            return False
        done, before = step * self.global_batch_size, (step - 1) * self.global_batch_size
        return done // self.samples_per_epoch > before // self.samples_per_epoch


def _is_multiple(step: int, steps: int) -> bool:
    return steps > 0 and step % steps == 0
