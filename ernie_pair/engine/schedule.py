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
    sync_freq: int = 1  # steps between readings of the metrics; 0: only when something else is due

    def logs_at(self, step: int) -> bool:
        """Return whether a training line is due: every ``logging_freq`` steps and at the end."""
        return step == self.max_steps or _is_multiple(step, self.logging_freq)

    def evaluates_at(self, step: int) -> bool:
        """Return whether an evaluation is due.

        That is every ``eval_freq`` steps, at the end of each epoch if epochs count, and at the end.
        """
        return step == self.max_steps or _is_multiple(step, self.eval_freq) or self.ends_an_epoch(step)

    def saves_at(self, step: int) -> bool:
        """Return whether a checkpoint is due: every ``checkpoint_steps`` steps and at the end."""
        return step == self.max_steps or _is_multiple(step, self.checkpoint_steps)

    def exports_at(self, step: int) -> bool:
        """Return whether an exported model is due: every ``export_steps`` steps."""
        return _is_multiple(step, self.export_steps)

    def reads_at(self, step: int) -> bool:
        """Return whether the metrics of a step, and of those before it, must be read after it.

        That is every ``sync_freq`` steps, and whenever something is due that depends on them.
        """
        due = (self.logs_at, self.evaluates_at, self.saves_at, self.exports_at)
        return _is_multiple(step, self.sync_freq) or any(is_due(step) for is_due in due)

    def ends_an_epoch(self, step: int) -> bool:
        """Return whether an epoch ends in this step; if epochs do not count, none does."""
        if not self.samples_per_epoch:
            return False
        done, before = step * self.global_batch_size, (step - 1) * self.global_batch_size
        return done // self.samples_per_epoch > before // self.samples_per_epoch


def _is_multiple(step: int, steps: int) -> bool:
    return steps > 0 and step % steps == 0
