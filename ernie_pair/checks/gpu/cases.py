"""The steps of the check and their cases; what they need, the check makes itself, each thing once.

A step is a function that returns its cases, of a table where they differ by flags alone. Tolerances are of
relative differences of losses, and of differences of probabilities.
"""

import functools
import json
import os
import shutil
import signal
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

from ernie_pair.checks.gpu.lab import Lab, error_in_logs, losses_of, train_events
from ernie_pair.checks.quickstart import PRETRAINING, TRAINING, SmallLine
from ernie_pair.core.errors import ErniePairError, InputError, LostProcessError, MachineError, NumbersError
from ernie_pair.kernels.choice import DTYPES
from ernie_pair.runtime.processes.child_command import Words, words_of

Flags = Dict[str, Any]
Figures = Dict[str, Any]  # name: a number, or words

NEVER = 10**6  # of a frequency in steps
BASE_VOCABULARY = 18_000  # tokens, as in ERNIE 1.0: they determine the cost of the masked-token head
FIRST_STEPS = 2  # on the CPU, whose weights all runs start from: devices draw different random numbers
# Every step is a line of metrics.jsonl, and only steps take time.
EVERY_STEP: Flags = {"logging_freq": 1, "eval_freq": NEVER, "checkpoint_steps": NEVER}
TINY_PRETRAINING: Flags = {**PRETRAINING, **EVERY_STEP, "split": "1,0,0", "from_scratch": "false"}
TINY_TRAINING: Flags = {**TRAINING, **EVERY_STEP, "epochs": 1000}
FP16: Flags = {"use_amp": "true", "amp_dtype": "float16"}
BF16: Flags = {"use_amp": "true", "amp_dtype": "bfloat16"}
PRECISIONS: Dict[str, Tuple[Flags, str]] = {  # name: (flags, type)
    "fp32": ({}, "float32"),
    "TF32": ({"tf32": "true"}, "tf32"),
    "fp16 O1": (FP16, "float16"),
    "bf16 O1": (BF16, "bfloat16"),
}
HAS_ONNX = all(map(find_spec, ("onnx", "onnxruntime")))  # to export to it, and to run that


class Planned(NamedTuple):
    """A case to run; ``needs``: what this machine lacks for it, in words, or ''.

    ``run`` returns its figures, and raises an ErniePairError if it fails.
    """

    name: str
    run: Callable[[], Figures]
    needs: str = ""


def made_once(make: Callable[["SmallData"], Any]) -> Callable[["SmallData"], Any]:
    """Let a method make its result at its first call; later ones return the same, or raise the same error."""

    @functools.wraps(make)
    def get(self: "SmallData") -> Any:
        return self.lab.once(make.__name__, partial(make, self))

    return get


class SmallData:
    """What the check makes: the built-in sample, corpora and models; each raises the error of its command."""

    def __init__(self, lab: Lab):
        self.lab = lab
        documents, pairs = (80, 180) if lab.quick else (300, 3600)
        self._line = SmallLine(lab.folder / "data", "cpu", documents=documents, pairs=pairs)

    @made_once
    def pairs(self) -> Path:
        """Return the folder of train.tsv, dev.tsv and test.tsv."""
        self.lab.run(self._line.sample())
        return self._line.folder / "sample" / "pairs"

    @made_once
    def corpus(self) -> Path:
        """Return the folder of the token ids of the sample."""
        self.pairs()
        for words in self._line.corpus():
            self.lab.run(words)
        return self._line.folder / "corpus"

    @made_once
    def start(self) -> Path:
        """Return a model of two narrow layers with the weights that all runs start from."""
        corpus = self.corpus()
        self.lab.run(self._line.small())
        output, model = self.lab.folder / "start", self._line.folder / "small"
        paths = {"model_name_or_path": model, "input_dir": corpus, "output_dir": output}
        steps = {"max_steps": FIRST_STEPS, "save_steps": FIRST_STEPS, "from_scratch": "true"}
        self.lab.run(words_of("pretrain", **{**TINY_PRETRAINING, **paths, **steps, "device": "cpu"}))
        return output / f"model_{FIRST_STEPS}"

    @made_once
    def base_vocabulary(self) -> Path:
        """Return a vocabulary as large as that of ERNIE."""
        tokens = (self.corpus() / "vocab.txt").read_text(encoding="utf-8").splitlines()
        tokens += [f"[unused{number}]" for number in range(BASE_VOCABULARY - len(tokens))]
        path = self.lab.folder / "base_vocab.txt"
        path.write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
        return path

    @made_once
    def base_model(self) -> Path:
        """Return the folder of a model of ERNIE's size, without weights."""
        folder = self.lab.folder / "base"
        self.lab.run(words_of("new-model", vocab_file=self.base_vocabulary(), output_dir=folder))
        return folder

    @made_once
    def base_corpus(self) -> Path:
        """Return a corpus for that model whose documents fill samples of 512 tokens."""
        folder = self.lab.folder / "base_corpus"
        flags: Flags = {"chinese": "true", "cn_whole_word_segment": "true", "join_documents": "short"}
        flags.update(input_path=self.corpus() / "documents.jsonl", output_prefix=folder / "text")
        self.lab.run(words_of("prepare", vocab_file=self.base_vocabulary(), **flags))
        return folder

    def words(self, command: str, output: Path, **flags) -> Words:
        """Return the words of pretrain or train from the common start, with a log line for each step."""
        usual: Flags = {**TINY_PRETRAINING, "input_dir": self.corpus()}
        if command == "train":
            usual = {
                **TINY_TRAINING,
                **{f"{part}_file": self.pairs() / f"{part}.tsv" for part in ("train", "dev")},
            }
        usual.update(model_name_or_path=self.start(), output_dir=output, device=self.lab.device)
        return words_of(command, **{**usual, **flags})

    def place(self, room: str, name: str) -> Path:
        """Return where a run of that name, of a case or of flags, writes."""
        return self.lab.folder / room / "".join(c if c.isalnum() else "_" for c in name)

    @made_once
    def losses_on_cpu(self) -> Path:
        """Return the run with whose losses those of all precisions are compared."""
        output = self.lab.folder / "losses" / "cpu"
        self.lab.run(self.words("pretrain", output, max_steps=20 if self.lab.quick else 60, device="cpu"))
        return output

    @made_once
    def converted(self) -> Path:
        """Return the folder of a pretrained model, converted."""
        pretrained, folder = self.lab.folder / "models" / "pretrained", self.lab.folder / "models" / "dynamic"
        self.lab.run(self.words("pretrain", pretrained, max_steps=self._steps))
        static = pretrained / "model_last" / "static_vars"
        self.lab.run(words_of("convert", static_model_path=static, output_dir=folder))
        return folder

    @made_once
    def trained(self) -> Path:
        """Return the output folder of a training on pairs, from the converted model."""
        output, start = self.lab.folder / "models" / "pairs", self.converted()
        self.lab.run(self.words("train", output, max_steps=self._steps, model_name_or_path=start))
        return output

    @made_once
    def exported(self) -> Path:
        """Return the folder of its best model, exported."""
        folder, kind = self.lab.folder / "models" / "ship", "both" if HAS_ONNX else "paddle"
        self.lab.run(words_of("export", model_path=self.trained() / "best", output_dir=folder, format=kind))
        return folder

    @made_once
    def answers_on_cpu(self) -> "Answers":
        """Return the predictions of the trained model on the CPU, with Paddle's own kernels."""
        return self.predict("trained", "cpu", {"kernels": "plain"})

    def predict(self, kind: str, device: str, flags: Flags) -> "Answers":
        """Return the predictions for the test pairs by the ``kind`` of model, trained or exported."""
        output = self.place("models", f"{kind} {device} {flags}").with_suffix(".tsv")
        model = self.exported() if kind == "exported" else self.trained() / "best"
        paths = {"model_path": model, "input_file": self.pairs() / "test.tsv", "output_file": output}
        self.lab.run(words_of("predict", **paths, scores="true", device=device, **flags))
        header, *rows = (line.split("\t") for line in output.read_text(encoding="utf-8").splitlines())
        scores = [place for place, name in enumerate(header) if name.startswith("probability_")]
        chosen = header.index("prediction")
        return [(int(row[chosen]), [float(row[place]) for place in scores]) for row in rows]

    @property
    def _steps(self) -> int:
        return 10 if self.lab.quick else 60


Answers = List[Tuple[int, List[float]]]  # the class and the probabilities of each pair


# Steps 0 and 1: the environment and the libraries of the GPU, and its kernels against numpy.
ON_CPU, FIRST_GPU = -1, 0  # the numbers in that module
DEFECTS, DEFECT = 2, "DEFECT"  # exit code of a doctor that found some; how their lines begin


def plan_libraries(lab: Lab, data: SmallData) -> List[Planned]:
    """Return the cases of step 0."""

    def show_gpus() -> Figures:
        if lab.is_lost:
            raise MachineError(f"there is no GPU to check: {lab.machine.why_no_gpu}")
        return {"GPUs": len(lab.machine.gpus), "driver": lab.machine.driver or "unknown"}

    def run_doctor() -> Figures:
        doctor = lab.run(["doctor", f"--output_dir={lab.folder}"], accepted=(0, DEFECTS))
        lines = [line for line in doctor.output.splitlines() if line.startswith(DEFECT)]
        if doctor.process.returncode == DEFECTS:
            defects = "; ".join(line[len(DEFECT) :].strip() for line in lines)
            raise InputError(defects or "doctor reports an input error")
        return {}

    needs = "a GPU" if lab.device == "cpu" else ""
    return [
        Planned("Paddle sees the GPUs", show_gpus, needs),
        Planned("the environment is sound", run_doctor),
    ]


def plan_kernels(lab: Lab, data: SmallData) -> List[Planned]:
    """Return the cases of step 1."""
    name = "kernels of the GPU, fp32, fp16, bf16"
    if lab.device == "gpu":
        return [Planned(name, partial(_check, lab, "kernels", FIRST_GPU))]
    on_cpu = Planned("kernels of the CPU, fp32", partial(_check, lab, "kernels", ON_CPU))
    return [on_cpu, Planned(name, dict, lab.lacks())]


def _check(lab: Lab, name: str, number: int) -> Figures:
    """Run a check of the GPU in its own process, and return its figures. Raises NumbersError for a fault."""
    output = lab.run([name, str(number)], module="ernie_pair.runtime.gpu.check_process").output
    place = output.rfind('{"faults"')  # behind whatever its libraries print
    if place < 0:
        raise NumbersError("no answer")
    answer = json.JSONDecoder().raw_decode(output[place:])[0]
    if answer["faults"]:
        raise NumbersError("; ".join(answer["faults"]))
    facts = answer["facts"]
    if "errors" in facts:
        return {f"error, {kernel}": error for kernel, error in facts["errors"].items()}
    return {"loaded": ", ".join(facts["loaded"])}


# Step 2: a tiny pretraining run has the same losses on GPU and CPU, and nearly so in half precision.
FIRST, WINDOW = 10, 10  # losses compared one by one, in float32; losses of a mean, in half precision
EXACT, NEARLY, CLOSE = 1e-4, 0.02, 1e-4  # CLOSE: the order of the sums differs
IN_DYNAMIC = {"fp16 O1, dynamic graph": ({**FP16, "graph": "dynamic"}, "float16")}
MOVING: Flags = {"use_amp": "true", "init_loss_scaling": 1024, "incr_every_n_steps": 8}


def plan_losses(lab: Lab, data: SmallData) -> List[Planned]:
    """Return the cases of step 2, whose runs have the same weights and samples."""

    def run(name: str, **flags) -> Path:
        output = data.place("losses", name)
        lab.run(data.words("pretrain", output, max_steps=20 if lab.quick else 60, **flags))
        return output

    def compare(name: str, flags: Flags) -> Figures:
        compare_all = compare_means if flags else compare_losses
        return compare_all(losses_of(run(name, **flags)), losses_of(data.losses_on_cpu()))

    def compare_kernels() -> Figures:  # the CPU's usual path, which is named, and Paddle's own kernels
        usual = data.losses_on_cpu()
        figures = compare_losses(losses_of(usual), losses_of(run("plain", kernels="plain")))
        manifest = json.loads((usual / "model_last" / "MANIFEST.json").read_text(encoding="utf-8"))
        return {"path": manifest["topology"]["kernels"], **figures}

    def watch_loss_scale() -> Figures:  # it grows after few finite steps; on a CPU without casts
        dtype = "float32" if lab.device == "cpu" else "float16"
        events = train_events(run("loss scale", amp_dtype=dtype, **MOVING))
        scales = [float(event["loss_scale"]) for event in events]
        if max(scales) == min(scales):
            raise NumbersError(f"the loss scale stays at {scales[0]:g} for {len(scales)} steps")
        return {"first loss scale": scales[0], "last loss scale": scales[-1]}

    cases = [
        Planned(name if flags else "fp32 as on the CPU", partial(compare, name, flags), lab.lacks(1, dtype))
        for name, (flags, dtype) in {**PRECISIONS, **IN_DYNAMIC}.items()
    ]
    of_cpu = "" if lab.device == "cpu" else "--device cpu"
    cases.append(Planned("kernels of the CPU as Paddle's own", compare_kernels, of_cpu))
    return [*cases, Planned("the loss scale moves", watch_loss_scale)]


def compare_losses(losses: Sequence[float], wanted: Sequence[float]) -> Figures:
    """Return the largest relative difference of the FIRST losses. Raises NumbersError above EXACT."""
    largest = _difference(f"the first {FIRST} losses differ", losses[:FIRST], wanted[:FIRST], EXACT)
    last = {"last loss": losses[-1], "last loss compared with": wanted[-1]}
    return {"largest relative difference": largest, **last}


def compare_means(losses: Sequence[float], wanted: Sequence[float]) -> Figures:
    """Return the largest relative difference of means over WINDOW steps; NumbersError above NEARLY."""
    means, others = (
        [sum(each[i : i + WINDOW]) / WINDOW for i in range(0, len(each) - WINDOW + 1, WINDOW)]
        for each in (losses, wanted)
    )
    largest = _difference(f"mean losses of {WINDOW} steps differ", means, others, NEARLY)
    return {"largest relative difference of means": largest, "last loss": losses[-1]}


def _difference(what: str, losses: Sequence[float], wanted: Sequence[float], most: float) -> float:
    differences = [abs(one - other) / max(abs(other), 1e-12) for one, other in zip(losses, wanted)]
    is_comparable = wanted and len(losses) == len(wanted) and all(each == each for each in differences)
    largest = max(differences) if is_comparable else float("inf")
    if not largest <= most:
        one, other = (" ".join(f"{loss:.5f}" for loss in each) for each in (losses, wanted))
        raise NumbersError(f"{what} by {largest:.3g} (relative), above {most:g}: {one} against {other}")
    return largest


# Step 3: a run that is killed and started again ends bit-identical to an uninterrupted one.
CHECKPOINT = 10  # steps between checkpoints; the kill follows the first
RESUME_STEPS = (20, 80, 320)  # of a run: a longer one if the kill came too late for the previous one
EQUAL, DIFFERENT = 0, 1  # exit codes of checkpoint diff
OF_BOTH: Dict[str, Flags] = {
    "fp32": {},
    "fp16 O1": FP16,
    "recompute": {"use_recompute": "true"},
}
RESUMED: Dict[str, Flags] = {
    **{f"pretraining, {name}": flags for name, flags in OF_BOTH.items()},
    "pretraining, gradient merge": {"micro_batch_size": 8},  # of the 16 samples of a step
    "pretraining, dropout": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    "pretraining, dynamic graph, fp16 O1": {**FP16, "graph": "dynamic"},
    **{f"pairs, {name}": flags for name, flags in OF_BOTH.items()},
    "pairs, R-Drop": {"rdrop_alpha": 1, "dropout": 0.1},
}


def plan_resumes(lab: Lab, data: SmallData) -> List[Planned]:
    """Return the cases of step 3: those of pretraining, then those of pairs."""
    return [
        Planned(
            name, partial(_resume, data, name, flags), lab.lacks(1, "float16") if "use_amp" in flags else ""
        )
        for name, flags in RESUMED.items()
        if not lab.quick or name in ("pretraining, gradient merge", "pairs, R-Drop")
    ]


def _resume(data: SmallData, name: str, flags: Flags) -> Figures:
    """Compare a run that was killed with an uninterrupted one. Raises NumbersError if they differ."""
    lab, folder = data.lab, data.place("resume", name)
    command = partial(data.words, "train" if name.startswith("pairs") else "pretrain")
    for steps in RESUME_STEPS:
        cut, whole = folder / f"cut{steps}", folder / f"whole{steps}"
        of_run = {**flags, "max_steps": steps, "checkpoint_steps": CHECKPOINT}
        first = cut / "checkpoints" / f"step_{CHECKPOINT:08d}"
        with lab.started(command(cut, **of_run)) as running:
            running.wait(first.exists)
        if running.process.returncode < 0:  # by SIGKILL, once it had its first checkpoint
            break
        running.refuse_failure()
    else:
        raise LostProcessError(f"its {RESUME_STEPS[-1]} steps were over before it could be killed")
    lab.run(command(cut, **of_run))
    lab.run(command(whole, **of_run))
    models = [str(output / "model_last") for output in (cut, whole)]
    compared = lab.run(["checkpoint", "diff", *models], accepted=(EQUAL, DIFFERENT))
    if compared.process.returncode == DIFFERENT:
        raise NumbersError(f"after {steps} steps: {compared.output.strip().splitlines()[-1]}")
    if losses_of(cut) != losses_of(whole):
        raise NumbersError("the weights are the same, and the logged losses are not")
    return {"steps": steps}


# Steps 4 and 5: two processes give the result of one, and a lost process ends the run. They use a GPU each;
# with fewer than two they compute on the CPU, with gloo.
LAYOUT_STEPS, LONG = 10, 5000  # of a compared run, and of one that is killed early
SAMPLES = 16  # per step, in every layout
# name: (the flags of both runs, those of the two processes)
LAYOUTS: Dict[str, Tuple[Flags, Flags]] = {
    "data parallel": ({}, {"dp_degree": 2, "micro_batch_size": 8}),
    "sharded optimizer": ({}, {"sharding_degree": 2, "micro_batch_size": 8}),
    "sharded optimizer, dynamic graph": (
        {},
        {"sharding_degree": 2, "micro_batch_size": 8, "graph": "dynamic"},
    ),
    "data parallel, gradient merge": ({}, {"dp_degree": 2, "micro_batch_size": 4}),
    "data parallel, bf16 O1": (BF16, {"dp_degree": 2, "micro_batch_size": 8}),
}
STAGE2: Dict[str, Tuple[Flags, Flags]] = {
    "stage 2": ({}, {"sharding": "stage2"}),
    "stage 2, fp16 O2": ({**FP16, "amp_level": "O2", "init_loss_scaling": 1024}, {"sharding": "stage2"}),
}
TWO_GPUS: Flags = {"gpus": "0,1"}
LOSS_SECONDS = 120.0  # after a process was killed, until the run must have ended


def plan_layouts(lab: Lab, data: SmallData) -> List[Planned]:
    """Return the cases of step 4."""
    where = ", on the CPU" if lab.lacks(2) else ""
    device: Flags = {"device": "cpu" if where else "gpu"}
    launcher: Flags = {"processes": "2"} if where else TWO_GPUS
    cases = []
    for name, (flags, layout) in LAYOUTS.items():
        if not lab.quick or name == "sharded optimizer":
            both = {**flags, **device, "global_batch_size": SAMPLES}
            run = partial(_compare, data, "pretrain", name, both, {}, {**layout, **launcher})
            needs = lab.lacks(2, "bfloat16") if flags else ""
            cases.append(Planned(f"pretraining, {name}{'' if flags else where}", run, needs))
    one, two = {"batch_size": SAMPLES}, {"batch_size": SAMPLES // 2, **launcher}
    pairs = partial(_compare, data, "train", "pairs", device, one, two)
    lose = partial(_lose_a_process, lab, data, device, launcher)
    cases.append(Planned(f"pairs, data parallel{where}", pairs))
    return [*cases, Planned(f"a lost process ends the run{where}", lose)]


def plan_stage2(lab: Lab, data: SmallData) -> List[Planned]:
    """Return the cases of step 5: sharded training of pairs against plain data parallelism."""
    cases = []
    for name, (flags, layout) in STAGE2.items():
        both = {**flags, "device": "gpu", "batch_size": SAMPLES // 2, **TWO_GPUS}
        run = partial(_compare, data, "train", name, both, {}, layout)
        cases.append(Planned(name, run, lab.lacks(2, "float16")))
    return cases


def _compare(data: SmallData, command: str, name: str, both: Flags, one: Flags, other: Flags) -> Figures:
    """Compare the losses of two runs of a command, with the flags ``both`` and with ``one`` or ``other``.

    Those with flags of launch are started by it. What several layouts are compared with runs once.
    """

    def losses_with(kind: str, flags: Flags) -> List[float]:
        output = data.place("layouts", kind)
        try:
            words = data.words(command, output, **both, **flags, max_steps=LAYOUT_STEPS)
            data.lab.run(["launch", *words] if {"gpus", "processes"} & {*both, *flags} else words)
        except ErniePairError as error:
            raise error_in_logs(output, error) from None
        return losses_of(output)

    kind = f"one {command} {both} {one}"
    wanted, losses = data.lab.once(kind, partial(losses_with, kind, one)), losses_with(name, other)
    what, most = "losses of two processes differ", NEARLY if "use_amp" in both else CLOSE
    return {"largest relative difference": _difference(what, losses, wanted, most)}


def _lose_a_process(lab: Lab, data: SmallData, device: Flags, launcher: Flags) -> Figures:
    """Kill one of two processes; the run must end by itself, with an error."""
    output = lab.folder / "layouts" / "lost"
    note, flags = output / "ranks" / "00001.json", {"dp_degree": 2, "max_steps": LONG, "micro_batch_size": 8}
    words = ["launch", *data.words("pretrain", output, **flags, **device, **launcher)]
    with lab.started(words) as running:
        if not running.wait(lambda: bool(train_events(output)) and note.exists()):
            running.refuse_failure()
            raise LostProcessError(f"the run of {LONG} steps was over before a process could be killed")
        os.kill(int(json.loads(note.read_text(encoding="utf-8"))["pid"]), signal.SIGKILL)
        killed = time.monotonic()
        if running.wait(lambda: time.monotonic() > killed + LOSS_SECONDS):
            raise LostProcessError(f"it still runs {LOSS_SECONDS:.0f} s after one of two was killed")
    if running.process.returncode == 0:
        raise LostProcessError("the run ended with exit code 0 after one of two processes was killed")
    return {"seconds until it ended": round(time.monotonic() - killed, 1)}


# Step 6: converter, training of pairs, export, and the predictions of each backend.
SAME, NEARLY_SAME = 1e-4, 0.05  # largest difference of a probability


def plan_models(lab: Lab, data: SmallData) -> List[Planned]:
    """Return the cases of step 6."""

    def convert() -> Figures:
        record = json.loads((data.converted() / "conversion.json").read_text(encoding="utf-8"))
        largest = {name: max(batches.values()) for name, batches in record["largest_difference"].items()}
        return {f"largest difference, {name}": value for name, value in largest.items()}

    def train() -> Figures:
        losses = losses_of(data.trained())
        return {"first loss": losses[0], "last loss": losses[-1]}

    def compare(kind: str, device: str, flags: Flags, most: float) -> Figures:
        return compare_answers(data.predict(kind, device, flags), data.answers_on_cpu(), most)

    def on_gpu(kind: str, name: str, flags: Flags) -> List[Planned]:
        cases = [Planned(f"{name}, GPU", partial(compare, kind, "gpu", flags, SAME), lab.lacks())]
        for half in ("fp16", "bf16"):
            run = partial(compare, kind, "gpu", {**flags, "precision": half}, NEARLY_SAME)
            cases.append(Planned(f"{name}, GPU in {half}", run, lab.lacks(1, DTYPES[half])))
        return cases

    paddle, onnx = {"backend": "paddle"}, {"backend": "onnx"}
    needs = "" if HAS_ONNX else "onnxruntime"
    return [
        Planned("the converter's proof", convert),
        Planned("training of pairs from converted weights", train),
        *on_gpu("trained", "predict", {}),
        Planned("run by Paddle Inference, CPU", partial(compare, "exported", "cpu", paddle, SAME)),
        Planned("run by ONNX Runtime, CPU", partial(compare, "exported", "cpu", onnx, SAME), needs),
        *on_gpu("exported", "run by Paddle Inference", paddle),
    ]


def compare_answers(answers: Answers, wanted: Answers, most: float) -> Figures:
    """Return the difference between two files of predictions. Raises NumbersError above ``most``."""
    if len(answers) != len(wanted) or not wanted:
        raise NumbersError(f"{len(answers)} pairs were predicted, but {len(wanted)} on the CPU")
    differences = [
        abs(one - other)
        for (_, mine), (_, theirs) in zip(answers, wanted)
        for one, other in zip(mine, theirs)
    ]
    largest = float("nan") if any(each != each for each in differences) else max(differences)
    agreement = sum(mine == theirs for (mine, _), (theirs, _) in zip(answers, wanted)) / len(wanted)
    if not largest <= most:
        raise NumbersError(
            f"a probability differs by {largest:.3g} from that of the CPU, above {most:g}; the class is the "
            f"same for {agreement:.4f} of {len(wanted)} pairs"
        )
    return {"largest difference of a probability": largest, "same class": agreement, "pairs": len(wanted)}


# Steps 7 and 8: the speed of pretraining and of training pairs, of a model of ERNIE's size on a GPU. A run is
# stopped once it has logged a few lines, which are the measurement; no checkpoint is written.
STEPS_PER_LINE, LINES = 4, 3  # of a run; the first line includes the start
ROOMY_GB = 40.0  # GPU memory in which the whole batch fits in float32; with less it is halved
SHAPES = {128: 256, 512: 32}  # tokens per sample: samples per batch
SMALL_SHAPE = 48, 16  # on a CPU, for the narrow model
TIMED = ("fp32", "TF32", "fp16 O1", "bf16 O1")
PAIR_TOKENS, PAIR_BATCH = 64, 64  # LCQMC's longest pairs, and the recipe's batch
# Far more steps than are measured; not too many, because the samples of all are drawn at the start.
LONG_RUN: Flags = {"max_steps": 400, "logging_freq": STEPS_PER_LINE}
# The figures of a training line, and their names here.
MEASURED = {
    "tokens_per_second": "tokens/s",
    "samples_per_second": "samples/s",
    "tera_flops_per_second": "TFLOP/s",
    "product_share": "share of the rate of products",
    "data_wait_share": "share of waiting for data",
    "gpu_memory_gb": "GPU memory, GB",
    "memory_gb": "memory, GB",
}


def plan_pretraining_speed(lab: Lab, data: SmallData) -> List[Planned]:
    """Return the cases of step 7: on a CPU the narrow model, on its two paths."""

    def run(tokens: int, batch: int, name: str, flags: Flags) -> Figures:
        sizes: Flags = {"max_seq_len": tokens, "micro_batch_size": batch, "global_batch_size": batch}
        if lab.device == "gpu":
            sizes.update(model_name_or_path=data.base_model(), input_dir=data.base_corpus())
            sizes.update(from_scratch="true", num_workers=2)
        return _measure(data, "pretrain", f"pretraining {tokens} {name}", {**sizes, **LONG_RUN, **flags})

    if lab.device == "cpu":
        tokens, batch = SMALL_SHAPE
        paths = {"fused kernels": {"kernels": "auto"}, "Paddle's kernels": {"kernels": "plain"}}
        shown = f"{tokens} tokens x {batch}, narrow model"
        cases = [Planned(f"{shown}, {name}", partial(run, *SMALL_SHAPE, name, paths[name])) for name in paths]
        return [*cases, Planned("ERNIE base, fp32 to bf16 O1", dict, lab.lacks())]
    names = ("fp32", "bf16 O1") if lab.quick else TIMED
    cases = []
    for tokens, batch in SHAPES.items():
        memory = lab.machine.gpus[0].memory_gb if lab.machine.gpus else ROOMY_GB
        while memory < 0.9 * ROOMY_GB and batch > 1:
            memory, batch = 2 * memory, batch // 2
        for name in names:
            flags, dtype = PRECISIONS[name]
            shown = f"ERNIE base, {tokens} tokens x {batch}, {name}"
            cases.append(Planned(shown, partial(run, tokens, batch, name, flags), lab.lacks(1, dtype)))
    return cases


def plan_pair_speed(lab: Lab, data: SmallData) -> List[Planned]:
    """Return the cases of step 8."""

    def run(name: str, flags: Flags) -> Figures:
        sizes: Flags = {"max_seq_len": PAIR_TOKENS, "batch_size": PAIR_BATCH, **LONG_RUN}
        if lab.device == "gpu":
            sizes.update(model_name_or_path=data.base_model(), from_scratch="true")
        return _measure(data, "train", f"pairs {name}", {**sizes, **flags})

    if lab.device == "cpu":
        return [
            Planned("narrow model, pairs", partial(run, "narrow", {})),
            Planned("ERNIE base, fp32 to bf16 O1", dict, lab.lacks()),
        ]
    timed = {name: PRECISIONS[name] for name in TIMED}
    return [
        Planned(f"ERNIE base, {name}", partial(run, name, flags), lab.lacks(1, dtype))
        for name, (flags, dtype) in timed.items()
    ]


def _measure(data: SmallData, command: str, name: str, flags: Flags) -> Figures:
    """Return the medians of the lines after the first, and the peak memory. Raises LostProcessError."""
    output = data.place("speed", name)
    with data.lab.started(data.words(command, output, **flags), alone=True) as running:
        if not running.wait(lambda: len(train_events(output)) >= LINES):
            running.refuse_failure()
            raise LostProcessError(f"the run ended before it had logged {LINES} lines")
    events = train_events(output)[1:]
    shutil.rmtree(output, ignore_errors=True)  # the best model of pairs is that of their start: 0.4 GB
    values = {shown: [event[key] for event in events if key in event] for key, shown in MEASURED.items()}
    return {shown: float(f"{median(each):.4g}") for shown, each in values.items() if each}


class Step(NamedTuple):
    """A step: its number and title, its time limit in seconds, and the function that makes its cases.

    ``is_timed``: its cases run one by one, with all cores.
    """

    number: int
    title: str
    limit: float
    plan: Callable[[Lab, SmallData], List[Planned]]
    is_timed: bool = False


STEPS = (
    Step(0, "libraries", 120, plan_libraries),
    Step(1, "kernels against numpy", 180, plan_kernels),
    Step(2, "tiny pretraining, losses as on the CPU", 300, plan_losses),
    Step(3, "resume to the same bits after kill -9", 480, plan_resumes),
    Step(4, "two processes against one", 360, plan_layouts),
    Step(5, "stage 2 against plain data parallelism", 180, plan_stage2),
    Step(6, "converter, export, prediction", 420, plan_models),
    Step(7, "speed of pretraining", 420, plan_pretraining_speed, is_timed=True),
    Step(8, "speed of training pairs", 240, plan_pair_speed, is_timed=True),
)
