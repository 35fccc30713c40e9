"""The trainings of the package on a tiny model each, and runs of them that tests kill or stop."""

import json
import os
import subprocess
import time

import tiny_embedding
import tiny_pair
import tiny_pretrain
from launched import launch_line, one_thread
from places import SCRIPTS
from run_files import events, files_of
from waiting import until

from ernie_pair.pairs.config.pair_config import TrainConfig
from ernie_pair.pairs.train.train_pair import PairTask, train_pair
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.pretraining.pretrain import pretrain
from ernie_pair.pretraining.pretrain_job import PretrainJob


class Pretraining:
    """``job``: the class whose methods tests replace; ``run``: what starts a run of ``config``."""

    script, job = SCRIPTS / "run_pretrain_static.py", PretrainJob
    run, config = staticmethod(pretrain), PretrainConfig
    settings = {"max_steps": 60, "checkpoint_steps": 20, "eval_freq": 7, "dp_degree": 2}

    def __init__(self, folder):
        self.folder = folder
        tiny_pretrain.write_corpus(folder / "data", tiny_pretrain.write_model(folder / "model"))

    def words(self, output, **changes):
        return tiny_pretrain.flags(self.folder / "model", self.folder / "data", output, **changes)

    @staticmethod
    def poison(job):
        weights = job.program.weights()
        job.program.set({name: array * float("nan") for name, array in weights.items()})


class DynamicPretraining(Pretraining):
    """Each of two processes has a part of the optimizer state."""

    settings = {**Pretraining.settings, "graph": "dynamic", "dp_degree": 1, "sharding_degree": 2}


class Pairs:
    """Fine-tuning, two passes a step."""

    script, job = SCRIPTS / "train_pair.py", PairTask
    run, config = staticmethod(train_pair), TrainConfig
    settings = {"max_steps": 120, "checkpoint_steps": 40, "eval_freq": 35, "logging_freq": 1}
    settings.update(batch_size=4, gradient_accumulation_steps=2, learning_rate=5e-3, device="cpu")

    def __init__(self, folder):
        self.folder = folder
        tiny_pair.write_pairs(folder / "train.tsv", 480, seed=0)
        tiny_pair.write_pairs(folder / "dev.tsv", 41, seed=1)
        tiny_pair.write_model(folder / "model")

    def words(self, output, **changes):
        files = {f"{name}_file": self.folder / f"{name}.tsv" for name in ("train", "dev")}
        model = {"model_name_or_path": self.folder / "model", "model_type": "ernie", "from_scratch": "true"}
        flags = {**files, **model, "output_dir": output, **changes}
        return [f"--{name}={value}" for name, value in flags.items()]

    @staticmethod
    def poison(job):
        for parameter in job.model.parameters():
            parameter.set_value(parameter * float("nan"))


class Encoders(Pairs):
    """An encoder of texts, with hard negatives, two passes a step."""

    script = SCRIPTS / "train_embedding.py"

    def __init__(self, folder):
        self.folder = tiny_embedding.write_files(folder)


HALVES = {"pretraining": Pretraining, "dynamic": DynamicPretraining, "pairs": Pairs}


class Run:
    """A run of a half in one process, or in two, which their heartbeats name."""

    def __init__(self, half, output, settings, processes=1, **variables):
        self.output, self.log = half.folder / output, half.folder / f"{output}_log"
        self.log.mkdir(exist_ok=True)
        words = half.words(self.output, **settings)
        with open(self.log / "stderr", "w") as stderr:
            self.process = subprocess.Popen(
                launch_line(self.log, half.script, *words, processes=processes),
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
                env=one_thread(**variables),
            )

    def wait_for_update(self, step):
        line, path = f'"train", "step": {step},', self.output / "metrics.jsonl"
        until(lambda: path.exists() and line in path.read_text(), 120)

    def pids(self):
        files = (self.output / "ranks" / f"{rank:05d}.json" for rank in (0, 1))
        return [json.loads(path.read_text())["pid"] for path in files]

    def printed(self, rank=None):
        """What a rank printed; without one, what a single process printed as errors."""
        return (self.log / ("stderr" if rank is None else f"workerlog.{rank}")).read_text()

    def end(self, seconds=120):
        return self.process.wait(timeout=seconds)

    def last_step(self):
        return events(self.output, "train")[-1]["step"]

    def saved_step(self):
        return json.loads((self.output / "model_last" / "state.json").read_text())["step"]


def assert_same_end(output, whole):
    """A run that was broken off and started again has all that the one has which was left alone."""
    assert events(output) == events(whole)
    assert files_of(output / "model_last") == files_of(whole / "model_last")
    exports, others = (
        sorted(path.name for path in folder.iterdir() if path.name.startswith(("model_", "best-")))
        for folder in (output, whole)
    )
    assert exports == others
    assert not (output / "ranks").exists()
    assert not [path for path in (output / "checkpoints").iterdir() if path.name.startswith(".")]


def wait_until_gone(pids, seconds):
    """How long it took."""
    begin = time.monotonic()
    until(lambda: not any(map(is_alive, pids)), seconds)
    return time.monotonic() - begin


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def running_in(session):
    listing = subprocess.run(["pgrep", "-s", str(session), "-r", "R,S,D,T"], capture_output=True, text=True)
    return listing.stdout.split()


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if name.startswith("paddle")}
