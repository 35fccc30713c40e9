"""`ernie-pair check --gpu`: a table of checks of a device, and a report of them as JSON and as a page.

A row says what is measured by commands of the package, each run once in a process of its own, and what must
hold of it. A verdict is passed, failed or needs ("said": what is missing here).
"""

import getpass
import os
import re
import shlex
import shutil
import socket
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Callable, Optional, Sequence

import numpy as np

from ernie_pair.checkpoint.run_config import machine, versions
from ernie_pair.checkpoint.run_folder import CHECKPOINTS, EVENTS, LAST
from ernie_pair.checks.quickstart import PRETRAINING, TRAINING, SampleRecipe
from ernie_pair.core.cli.options import OverwriteFlag, check_names, data_option, evaluation_option, names_in
from ernie_pair.core.errors import ErniePairError, InputError, MachineError, NumbersError, Stopped, message_of
from ernie_pair.core.files.atomic_files import published
from ernie_pair.core.files.json_file import read_json_object, write_json
from ernie_pair.core.files.results import check_absent
from ernie_pair.core.installation import ask_driver, version_of
from ernie_pair.inference.exported_model import GPU
from ernie_pair.report.page import Table, format_cell, page_of_tables
from ernie_pair.runtime.device import DeviceFlag
from ernie_pair.runtime.gpu import MIN_CAPABILITY, Finding, has_driver, installed_build, run_check
from ernie_pair.runtime.processes.child_command import BrokenRunError, run_child, words_of
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.training.run_log import read_all_events

Flags = dict[str, Any]
Figures = dict[str, Any]  # name: a number, or words

PADDLE, ONNX = "Paddle", "ONNX Runtime"
SECONDS = 600.0  # that a command may take
VOCABULARY = 18_000  # tokens, as in ERNIE 1.0: they determine the cost of the masked-token head
EVERY_STEP: Flags = {"logging_freq": 1, "eval_freq": 10**6, "checkpoint_steps": 10**6}
# Two steps on the CPU make the weights that all runs start from: devices draw different random numbers.
START: Flags = {"max_steps": 2, "save_steps": 2, "from_scratch": "true", "device": "cpu"}
RESUMED: Flags = {"checkpoint_steps": 10}
TIMED: Flags = {"max_steps": 16, "logging_freq": 4, "from_scratch": "true"}
MEASURED = ("samples_per_second", "tokens_per_second", "tera_flops_per_second", "gpu_memory_gb", "memory_gb")


class Bench:
    """The folder of a check of ``device``, with ``gpus`` cards: its sample, models and runs, made when asked.

    ``lacks``: which of PADDLE and ONNX are no builds for GPUs; without Paddle's, what is not exported runs
    on the CPU. Whatever is asked for raises the error of the command that makes it.
    """

    def __init__(self, folder: Path, device: str, quick: bool = False, gpus: int = 0, lacks: Any = ()):
        self.lacks, device = lacks, "cpu" if PADDLE in lacks else device
        self.folder, self.device, self.gpus, self.steps = folder, device, gpus, 20 if quick else 60
        documents, pairs = (80, 180) if quick else (300, 3600)
        self.recipe = SampleRecipe(folder, "cpu", documents=documents, pairs=pairs)
        self.pairs = folder / "sample" / "pairs"
        self._ended: dict[str, Optional[ErniePairError]] = {}

    def run(self, *words: object, **flags: object) -> None:
        """Run a command that has not run yet. Raises the error with which it ends, or has ended."""
        command = words_of(*map(str, words), **flags)
        name = shlex.join(command)
        if name not in self._ended:
            self._ended[name] = None
            environment = {**os.environ, "TMPDIR": str(self.folder)}
            try:
                run_child(command, command[0], self.folder / "log.txt", environment, SECONDS)
            except ErniePairError as error:
                self._ended[name] = error
        ended = self._ended[name]
        if ended is not None:
            raise ended

    def start(self) -> Path:
        """Return a model of two narrow layers; the sample and its corpus are there as well."""
        vocabulary, (build, prepare) = self.recipe.vocabulary, self.recipe.corpus()
        self.run(*self.recipe.sample())
        self.run(*build)
        tokens = vocabulary.read_text(encoding="utf-8").splitlines()
        tokens += [f"[unused{number}]" for number in range(VOCABULARY - len(tokens))]
        vocabulary.write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
        self.run(*prepare)
        self.run(*self.recipe.small())
        self.train("pretrain", self.folder / "small", "start", **START)
        return self.folder / "start" / f"model_{START['max_steps']}"

    def train(self, command: str, start: Optional[Path] = None, name: str = "", **flags: Any) -> Path:
        """Return the output folder of a run of pretrain or train, by launch where there are processes."""
        start = start or self.start()
        own: Flags = {**TRAINING, "train_file": self.pairs / "train.tsv", "dev_file": self.pairs / "dev.tsv"}
        if command == "pretrain":
            own = {**PRETRAINING, "input_dir": self.folder / "corpus", "split": "1,0,0"}
        own.update({**EVERY_STEP, "from_scratch": "false", "device": self.device, "max_steps": self.steps})
        name = name or "-".join([command, start.name, *map(str, flags.values())]).replace(",", "-")
        paths = {"model_name_or_path": start, "output_dir": self.folder / name}
        launcher = ["launch"] if {"gpus", "processes"} & {*flags} else []
        self.run(*launcher, command, **{**own, **paths, **flags})
        return self.folder / name

    def model(self, kind: str) -> Path:
        """Return a model of pairs, from converted weights: trained, exported, or for GPUs in a precision."""
        static, dynamic = self.train("pretrain") / LAST / "static_vars", self.folder / "dynamic"
        self.run("convert", static_model_path=static, output_dir=dynamic)
        trained, exported = self.train("train", dynamic), self.folder / kind
        if kind == "trained":
            return trained
        how: Flags = {"format": "both"} if kind == "exported" else {"format": GPU, "precision": kind}
        self.run("export", model_path=trained, output_dir=exported, **how)
        return exported


# What a row measures, of the device that is checked unless its flags name another.
Measure = Callable[[Bench], Any]


def doctor(bench: Bench) -> Figures:
    """Run doctor, which refuses an environment that is not sound."""
    bench.run("doctor", output_dir=bench.folder)
    return {}


def losses(command: str, processes: int = 0, **flags: Any) -> Measure:
    """Return what measures the loss of each step of a run, float64 [steps].

    ``processes``: 2, or 1 to compare it with, on a GPU each, or on the CPU where there are not two.
    """

    def measure(bench: Bench) -> np.ndarray:
        where: dict[str, Any] = {"device": "gpu" if bench.gpus > 1 else "cpu"} if processes else {}
        if processes > 1:
            where.update(gpus="0,1") if bench.gpus > 1 else where.update(processes=processes)
        return np.array([event["loss"] for event in train_events(bench.train(command, **flags, **where))])

    return measure


def train_events(output: Path) -> list[Figures]:
    """Return the training lines of a run."""
    return [event for event in read_all_events(output / EVENTS) if event["split"] == "train"]


def digits(command: str, is_resumed: bool = False, **flags: Any) -> Measure:
    """Return what measures the losses of a run and the hashes of its last checkpoint's files, as numbers.

    ``is_resumed``: of the run that goes on from its first checkpoint, what followed that being gone.
    """

    def measure(bench: Bench) -> np.ndarray:
        output = bench.train(command, **RESUMED, **flags)
        if is_resumed:
            whole, output = output, output.with_name(f"{output.name}-resumed")
            shutil.copytree(whole, output, symlinks=True, dirs_exist_ok=True)
            for later in sorted((output / CHECKPOINTS).glob("step_*"))[1:]:
                shutil.rmtree(later)
            bench.train(command, name=output.name, **RESUMED, **flags)
        files = read_json_object(output / LAST / "MANIFEST.json", "run the check again")["files"]
        losses = [event["loss"] for event in train_events(output)]
        return np.array(losses + [float(int(file["sha256"][:12], 16)) for file in files])

    return measure


def probabilities(kind: str, **flags: Any) -> Measure:
    """Return what measures the probabilities, float64 [2 N], that a model, trained or exported, predicts."""

    def measure(bench: Bench) -> np.ndarray:
        told = {"device": bench.device, **flags}
        output = bench.folder / f"{kind}-{'-'.join(map(str, told.values()))}.tsv"
        bench.run(
            "predict", model_path=bench.model(kind), input_file=bench.pairs / "test.tsv", output_file=output,
            scores="true", columns="answers", **told
        )  # fmt: skip
        header, *rows = (line.split("\t") for line in output.read_text().splitlines())
        return np.array([float(row[header.index(f"probability_{n}")]) for n in (0, 1) for row in rows])

    return measure


def speed(command: str, is_base: bool = False, **flags: Any) -> Measure:
    """Return what measures the medians of MEASURED, of the narrow model or of a new one of ERNIE's size."""

    def measure(bench: Bench) -> Figures:
        start = bench.start()
        if is_base:
            start = bench.folder / "base"
            bench.run("new-model", vocab_file=bench.recipe.vocabulary, output_dir=start)
        output = bench.train(command, start, **{**TIMED, **flags})
        events = train_events(output)[1:]  # the first includes the start
        shutil.rmtree(output / CHECKPOINTS, ignore_errors=True)  # of gigabytes
        return {name: median(event[name] for event in events) for name in MEASURED if name in events[0]}

    return measure


def compare(found: Any, wanted: Any, most: Optional[float]) -> Figures:
    """Return the largest difference of numbers, relative to those above 1; or how much faster a run is.

    Raises NumbersError if it is above ``most``, of half precision in the means of ten; if it is not faster.
    """
    if most is None:
        times = found["samples_per_second"] / wanted["samples_per_second"]
        if not times > 1:
            raise NumbersError(f"it is {times:.3g} times as fast as what it is compared with")
        return {**found, "times as fast": times}
    if len(found) != len(wanted) or not len(found):
        raise NumbersError(f"there are {len(found)} numbers, and {len(wanted)} to compare with")
    window = 10 if most >= 0.01 and len(found) >= 10 else 1
    whole = len(found) // window * window
    one, other = (each[:whole].reshape(-1, window).mean(1) for each in (found, wanted))
    largest = float((np.abs(one - other) / np.maximum(np.abs(other), 1)).max())
    if not largest <= most:
        raise NumbersError(f"the largest difference is {largest:.3g}, above {most:g}")
    return {"largest difference": largest}


@dataclass
class Check:
    """A row of the table: what ``measure`` returns holds beside ``against``, called ``other``; see `compare`.

    It needs ``gpus`` of ``dtype`` and ``library``'s build for them; ``is_long``: --quick leaves it out. The
    rest is what came of it.
    """

    group: str
    name: str
    measure: Measure
    most: Optional[float] = None
    other: str = ""
    against: Optional[Measure] = None
    gpus: int = 0
    dtype: str = "float32"
    is_long: bool = False
    library: str = PADDLE
    verdict: str = ""
    said: str = ""
    seconds: float = 0.0
    figures: Figures = field(default_factory=dict)
    error: Optional[ErniePairError] = None

    @property
    def must(self) -> str:
        """Return in words what must hold."""
        if self.against is None:
            return "no fault"
        return f"faster than {self.other}" if self.most is None else f"within {self.most:g} of {self.other}"

    def make(self, bench: Bench, cards: Sequence[Figures]) -> None:
        """Measure and compare on a machine with ``cards``, unless it lacks some."""
        lacks, began = self._lacks(cards, bench.lacks), time.monotonic()
        if lacks:
            self.verdict, self.said = "needs", f"needs {lacks}"
            return
        try:
            found, self.verdict = self.measure(bench), "passed"
            self.figures = compare(found, self.against(bench), self.most) if self.against else found
        except Exception as error:  # one that is not ours is a bug of the check, or of what a command left
            kind: type[ErniePairError] = BrokenRunError
            said = f"{type(error).__name__}: {error}"
            if isinstance(error, ErniePairError):
                said, kind = message_of(error), type(error)
            self.verdict, self.said = "failed", hide_private(" ".join(said.split()))
            self.error = kind(self.said)
        self.seconds = round(time.monotonic() - began, 1)

    def _lacks(self, cards: Sequence[Figures], builds: Sequence[str]) -> str:
        if len(cards) < self.gpus:
            return "two GPUs" if self.gpus > 1 else "a GPU"
        if self.gpus and self.library in builds:
            return f"{self.library} for GPUs"
        least = MIN_CAPABILITY[self.dtype]
        is_old = any(tuple(card["capability"]) < least for card in cards[: self.gpus])
        return f"a newer GPU, with {self.dtype}" if is_old else ""


GROUPS = ("libraries", "losses", "resume", "processes", "models", "speed")
EQUAL, SAME, NEARLY = 0.0, 1e-4, 0.02
FP16: Flags = {"use_amp": "true", "amp_dtype": "float16"}
PRECISIONS: dict[str, tuple[Flags, str]] = {  # name: (flags, type)
    "fp16 O1": (FP16, "float16"),
    "bf16 O1": ({"use_amp": "true", "amp_dtype": "bfloat16"}, "bfloat16"),
}
DYNAMIC = {"fp16 O1, dynamic graph": ({**FP16, "graph": "dynamic"}, "float16")}
HALF = {"fp32": (SAME, "float32"), "fp16": (NEARLY, "float16"), "bf16": (NEARLY, "bfloat16")}
CUT: dict[str, Flags] = {  # what a resumed run has to draw and to count as before
    "pretrain": {"hidden_dropout_prob": 0.1, "micro_batch_size": 8},
    "train": {"rdrop_alpha": 1, "dropout": 0.1},
}
LAYOUTS: dict[str, tuple[str, Flags, Flags]] = {  # name: (command, flags of one process, of two)
    "data parallel": ("pretrain", {}, {"dp_degree": 2, "micro_batch_size": 8}),
    "sharded optimizer": ("pretrain", {}, {"sharding_degree": 2, "micro_batch_size": 8}),
    "pairs, data parallel": ("train", {"batch_size": 16}, {"batch_size": 8}),
    "pairs, stage 2": ("train", {"batch_size": 16}, {"batch_size": 8, "sharding": "stage2"}),
}
BASE: dict[str, tuple[str, Flags]] = {  # name: (command, flags) of a model of ERNIE's size
    "128 tokens": ("pretrain", {"max_seq_len": 128, "micro_batch_size": 64, "global_batch_size": 64}),
    "512 tokens": ("pretrain", {"max_seq_len": 512, "micro_batch_size": 16, "global_batch_size": 16}),
    "pairs": ("train", {"max_seq_len": 64, "batch_size": 64}),
}


def checks() -> list[Check]:
    """Return the table; rows that differ by their flags alone are made from the tables above."""
    cpu: Flags = {"device": "cpu"}
    plain: Flags = {**cpu, "kernels": "plain"}
    usual, pairs, own = losses("pretrain", **cpu), losses("train", **cpu), "Paddle's own"
    answers = probabilities("trained", **plain)
    rows = [
        Check("libraries", "doctor", doctor),
        Check("losses", "kernels of the CPU", usual, SAME, own, losses("pretrain", **plain)),
        Check("losses", "fp32", losses("pretrain"), SAME, "the CPU", usual, 1),
        Check("losses", "pairs, fp32", losses("train"), NEARLY, "the CPU", pairs, 1),
        Check("models", "trained, CPU", probabilities("trained", **cpu), SAME, own, answers),
        Check("speed", "narrow model, CPU", speed("pretrain", **cpu)),
    ]
    for name, (flags, dtype) in {**PRECISIONS, **DYNAMIC}.items():
        rows.append(Check("losses", name, losses("pretrain", **flags), NEARLY, "the CPU", usual, 1, dtype))
    for command, flags in CUT.items():
        for name, half, gpus, dtype in (("fp32", {}, 0, "float32"), ("fp16 O1", FP16, 1, "float16")):
            cut, whole = digits(command, True, **flags, **half), digits(command, **flags, **half)
            rows.append(Check("resume", f"{command}, {name}", cut, EQUAL, "an uncut run", whole, gpus, dtype))
    for name, (command, of_one, of_two) in LAYOUTS.items():
        one, two, gpus = losses(command, 1, **of_one), losses(command, 2, **of_two), 2 * ("stage 2" in name)
        rows.append(Check("processes", name, two, SAME, "one process", one, gpus, "float32", "data" in name))
    for backend in ("paddle", "onnx"):
        found = probabilities("exported", **cpu, backend=backend)
        rows.append(Check("models", f"exported, {backend}, CPU", found, SAME, "the trained one", answers))
    for precision, (most, dtype) in HALF.items():
        found = probabilities(precision, device="gpu", backend=GPU)
        name = f"exported for GPUs, {precision}"
        rows.append(Check("models", name, found, most, "the CPU", answers, 1, dtype, library=ONNX))
        for kind, where in (("trained", {}), ("exported", {"backend": "paddle"})):
            found = probabilities(kind, **where, precision=precision)
            rows.append(Check("models", f"{kind}, {precision}", found, most, "the CPU", answers, 1, dtype))
    for name, (command, sizes) in BASE.items():
        first, is_long = speed(command, True, **sizes), name != "128 tokens"
        rows.append(Check("speed", f"ERNIE base, {name}, fp32", first, gpus=1, is_long=is_long))
        for precision, (flags, dtype) in PRECISIONS.items():
            found, shown = speed(command, True, **sizes, **flags), f"ERNIE base, {name}, {precision}"
            rows.append(Check("speed", shown, found, None, "fp32", first, 1, dtype, is_long))
    return sorted(rows, key=lambda row: GROUPS.index(row.group))


# Of an absolute path the last part, a file name, may stay.
_PART = r"[^\s/:;,'\"()\[\]]"
_PATH = re.compile(rf"(?<![\w.>/])~?(?:/{_PART}+)+/({_PART}*)")
_ADDRESS = re.compile(r"(?<!==)\b\d{1,3}(?:\.\d{1,3}){3}\b(?::\d+)?|\b[\w.+-]+@[\w-]+\.[\w.]+")


def hide_private(text: str) -> str:
    """Return ``text`` without folders, without names of the user and of the host, and without addresses."""
    host, user = socket.gethostname(), ""
    with suppress(KeyError, OSError):  # a container may have no user
        user = getpass.getuser()
    text = _ADDRESS.sub("<address>", _PATH.sub(r".../\1", text))
    for name, shown in ((host, "<host>"), (host.partition(".")[0], "<host>"), (user, "<user>")):
        if len(name) > 2:  # a shorter one is part of ordinary words
            text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", shown, text)
    return text


@dataclass(frozen=True)
class CheckGpuConfig(DeviceFlag, OverwriteFlag):
    """Check a GPU from its libraries to the speed of a base model, and write a report to attach.

    With --device cpu only the checks that need no GPU are run; the others report what they need.
    """

    EXAMPLE = "--output_file gpu.json"

    output_file: str = data_option(
        "gpu.json", help="FILE.json for the results; a report page is written to FILE.html", writes="FILE"
    )
    only: str = evaluation_option("", help=f"checks to run: some of {','.join(GROUPS)}; empty: all")
    quick: bool = evaluation_option(False, help="fewer checks and shorter runs")

    def __post_init__(self):
        super().__post_init__()
        check_names("only", names_in(self.only), GROUPS, f" is none of {', '.join(GROUPS)}")
        path = Path(self.output_file)
        if path.suffix != ".json" or not path.parent.is_dir():
            raise InputError(f"--output_file {path}: name a FILE.json in a folder that exists")


def check_gpu(config: CheckGpuConfig) -> None:
    """Make the checks, print a line for each, and write the report; raise the first error of a check then."""
    results, page = Path(config.output_file), Path(config.output_file).with_suffix(".html")
    check_absent([results, page], config.overwrite)
    groups = names_in(config.only) or GROUPS
    rows = [row for row in checks() if row.group in groups and not (config.quick and row.is_long)]
    build, found = installed_build(), Finding([], {"cards": []})
    has_gpus = {PADDLE: build is not None and build.cuda, ONNX: version_of("onnxruntime-gpu")}
    lacks = [library for library, has in has_gpus.items() if not has]
    if config.device == "gpu":
        by_driver = Finding([], {"cards": [{"capability": ask_driver()[1]}]})
        found = by_driver if lacks == [PADDLE] and has_driver() else run_check("cards", 0, SECONDS)
    if found.faults:
        raise MachineError(found.faults[0])
    cards = found.facts["cards"]
    with StopSignals(), tempfile.TemporaryDirectory(prefix="ernie-pair-check-gpu-") as folder:
        bench = Bench(Path(folder), config.device, config.quick, len(cards), lacks)
        try:
            for row in rows:
                row.make(bench, cards)
                why = f": {row.said}" if row.said else f" ({row.seconds:.0f} s)"
                print(f"{row.verdict.upper():<7} {row.group}, {row.name}{why}", flush=True)
        except Stopped as stop:
            raise Stopped("stopped; nothing is left of the check, nor a report", stop.exit_code) from None
        report = build_report(config, rows, cards)
        with published(results, page) as (draft, page_draft):
            write_json(draft, report)
            page_draft.write_text(page_of(report), encoding="utf-8")
    print(f"\n{report['summary']}\nreport: {results}, and as a page {page}", flush=True)
    error = next((row.error for row in rows if row.error), None)
    if error:
        raise type(error)(f"{report['first_failure']}; attach {results} to a bug report")


def build_report(config: CheckGpuConfig, rows: Sequence[Check], cards: Sequence[Figures]) -> dict[str, Any]:
    """Return the report of the checks that were made on a machine with ``cards``."""
    counts, failed = Counter(row.verdict for row in rows), [row for row in rows if row.error]
    shown = ("group", "name", "must", "verdict", "said", "seconds", "figures")
    return {
        "summary": f"{len(rows)} checks: {', '.join(f'{n} {verdict}' for verdict, n in counts.items())}",
        "passed": not failed,
        "first_failure": f"{failed[0].group}, {failed[0].name}: {failed[0].said}" if failed else "",
        "machine": {**machine(), "cards": list(cards), "quick": config.quick, **versions()},
        "checks": [{name: getattr(row, name) for name in shown} for row in rows],
    }


def page_of(report: dict[str, Any]) -> str:
    """Return the page of a report, the content of its JSON file."""
    rows = []
    for row in report["checks"]:
        figures = ", ".join(f"{name} {format_cell(value)}" for name, value in row["figures"].items())
        rows.append([f"{row['group']}, {row['name']}", row["verdict"], row["must"], row["said"] or figures])
    heads, about = ["check", "verdict", "must be", "found"], [*map(list, report["machine"].items())]
    tables = [Table("Checks", heads, rows, report["first_failure"]), Table("Machine", ["", ""], about, "")]
    return page_of_tables(f"GPU check: {report['summary']}", tables)
