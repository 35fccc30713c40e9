"""The records from which VisualDL draws runs: made from metrics.jsonl, in folders of their own.

Each split of a run is a run of VisualDL, NAME/train and NAME/valid, so that one chart shows both for a
metric, with those of all other runs. VisualDL opens the first group of charts by name: it has the metrics of
the quality of a model, in the order of the page of `ernie-pair plot`. The flags are shown as a text, and in
the hyper-parameter table beside the metrics of validation.
"""

from pathlib import Path
from typing import Any, Dict, Sequence, Tuple

from data_tools.base.optional_import import import_optional
from ernie_pair.checkpoint.used_folder import EVENTS
from ernie_pair.dashboard.curves import LAST, Curve, curves_of, metrics_of
from ernie_pair.dashboard.plot_page import shown_flag
from ernie_pair.dashboard.run_folder import Run
from ernie_pair.engine.run_log import read_all_events
from ernie_pair.report import probability_counts

FLAGS_TAG = "flags"
QUALITY, WORK = "metrics", "steps and machine"  # groups of charts
HPARAM_METRICS = 6  # shown beside the flags
JUDGED = ("valid", "test", "train")  # splits to compare the runs by, the first one that exists


class BoardRecords:
    """The records of ``runs`` below ``folder``; `follow` adds what an unfinished run has logged since."""

    def __init__(self, folder: Path, runs: Sequence[Run]):
        self.folder, self.runs = folder, list(runs)
        self._writers: Dict[Tuple[int, str], Any] = {}
        self._drawn: Dict[Tuple[int, str, str], int] = {}  # the last step of a curve
        self._sizes = [_size_of(run) for run in runs]
        for number, run in enumerate(self.runs):
            self._show_flags(number, run)
        self._draw(metrics_of(self.runs))

    def follow(self) -> bool:
        """Draw what was logged since the last time, and return whether there was anything."""
        sizes = [_size_of(run) for run in self.runs]
        if sizes == self._sizes:
            return False
        self._sizes = sizes
        self.runs = [run._replace(events=read_all_events(run.folder / EVENTS)) for run in self.runs]
        self._draw(metrics_of(self.runs))
        return True

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()

    def _draw(self, metrics: Sequence[str]) -> None:
        for metric in metrics:
            for curve in curves_of(self.runs, metric):
                self._add(metric, curve)
        for number, run in enumerate(self.runs):
            self._add_counts(number, run)
        for writer in self._writers.values():
            writer.flush()

    def _add(self, metric: str, curve: Curve) -> None:
        key = (curve.run, curve.split, metric)
        writer, last = self._writer(curve.run, curve.split), self._drawn.get(key, -1)
        for step, value in zip(curve.steps, curve.values):
            if step > last:
                writer.add_scalar(tag_of(metric), value, step)
                self._drawn[key] = step

    def _add_counts(self, number: int, run: Run) -> None:
        """Draw the histograms and the precision-recall curve of each evaluation that has counts."""
        for event in run.events:
            split, step = event["split"], event["step"]
            counts = probability_counts.parse_counts(event.get(probability_counts.NAME))
            key = (number, split, probability_counts.NAME)
            if counts is not None and step > self._drawn.get(key, -1):
                probability_counts.draw_counts(self._writer(number, split), QUALITY, counts, step)
                self._drawn[key] = step

    def _show_flags(self, number: int, run: Run) -> None:
        """Write the flags of a run, once: VisualDL shows them beside the metrics of one of its splits."""
        splits = {event["split"] for event in run.events}
        split = next((name for name in JUDGED if name in splits), sorted(splits)[0] if splits else "train")
        writer = self._writer(number, split)
        words = (f"{name} {shown_flag(value)}" for name, value in run.flags.items())
        writer.add_text(FLAGS_TAG, ";  ".join(words), step=run.step)
        judged = [name for name in metrics_of([run]) if any(c.split == split for c in curves_of([run], name))]
        flags = _parameters_of(run, self.runs)
        if flags:
            writer.add_hparams(flags, [tag_of(name) for name in judged[:HPARAM_METRICS]])

    def _writer(self, number: int, split: str) -> Any:
        if (number, split) not in self._writers:
            folder = self.folder / self.runs[number].name / split
            writer = import_optional("visualdl", "cpu").LogWriter
            self._writers[number, split] = writer(str(folder))
        return self._writers[number, split]


def tag_of(metric: str) -> str:
    """Return the name of a metric's chart, GROUP/METRIC."""
    return f"{WORK if metric in LAST else QUALITY}/{metric}".replace("%", "_")


def _parameters_of(run: Run, runs: Sequence[Run]) -> Dict[str, Any]:
    """Return the flags of ``run`` as hyper-parameters: those that differ, or for a single run all numbers.

    A flag has one type in all runs: a number, or otherwise a text.
    """
    names = dict.fromkeys(name for each in runs for name in each.flags)
    values = {name: [each.flags.get(name) for each in runs] for name in names}
    if len(runs) > 1:
        values = {name: found for name, found in values.items() if len(set(map(shown_flag, found))) > 1}
    shown: Dict[str, Any] = {}
    for name, found in values.items():
        is_number = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in found)
        if is_number:
            shown[name] = run.flags[name]
        elif len(runs) > 1:
            shown[name] = shown_flag(run.flags.get(name))
    return shown


def _size_of(run: Run) -> Tuple[int, int]:
    try:
        found = (run.folder / EVENTS).stat()
    except OSError:
        return (0, 0)
    return found.st_size, found.st_mtime_ns
