"""Commands in the place of those of the check: their flags are read as the package does, nothing runs."""

import json
import os
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

from ernie_pair.__main__ import COMMANDS
from ernie_pair.checks.gpu.lab import Lab
from ernie_pair.checks.gpu.machine import Gpu, Machine
from ernie_pair.commands import config_class_of, form_of, forms_of
from ernie_pair.core.cli.cli import parse_config
from ernie_pair.launch.launch_config import read_launch

PAIRS = ["0\t1\t0.25\t0.75\n", "1\t0\t0.625\t0.375\n"]


def machine(*gpus, cores=8):
    """A machine whose GPUs are given by (capability, memory in GB)."""
    return Machine(
        gpus=tuple(Gpu("A card", capability, memory) for capability, memory in gpus),
        driver="535.1",
        cuda="11.8" if gpus else "",
        cudnn="8.7",
        processor="A processor",
        cores=cores,
        memory_gb=64.0,
        system="Linux",
        python="3.11.1",
        versions={"ernie-pair": "0.2.0"},
    )


def read(words):
    """The options that the words of a command stand for. Raises InputError as the command would."""
    if words[0] == "launch":
        launch, flags = read_launch(words[1:])
        return launch, parse_config(config_class_of(COMMANDS[launch.command]), flags, launch.command)
    form, flags = form_of(words, forms_of(words[0], COMMANDS))
    return None, parse_config(config_class_of(COMMANDS[form]), flags, form)


class FakeRunning:
    """What a command is, or was, to the check."""

    was_reached = False  # whether the last wait ended before the command

    def __init__(self, output="", code=0):
        self.output, self.process = output, SimpleNamespace(returncode=code)

    def wait(self, until=lambda: False):
        self.was_reached = until()
        return self.was_reached

    def refuse_failure(self, accepted=(0,)):
        pass


class FakeLab(Lab):
    """Writes what a command of those flags would leave; ``calls`` holds (words, options) of each."""

    loss = 7.0  # of the first step of every run

    def __init__(self, folder, device, quick):
        super().__init__(folder, device, quick)
        self.calls = []

    def run(self, words, module="ernie_pair", accepted=(0,)):
        words = list(map(str, words))
        if module != "ernie_pair":
            assert import_module(module).main
            self.calls.append((words, None))
            facts = (
                {"errors": {"matmul float32": 1e-7}} if words[0] == "kernels" else {"loaded": ["libnccl.so"]}
            )
            return FakeRunning("printed before" + json.dumps({"faults": [], "facts": facts}))
        launch, config = read(words)
        self.calls.append((words, config))
        self.leave(words, launch, config)
        return FakeRunning()

    @contextmanager
    def started(self, words, alone=False, module="ernie_pair"):
        running = self.run(words)
        yield running
        if running.was_reached:
            running.process.returncode = -9

    def leave(self, words, launch, config):
        """Write what the command would; a subclass of it may write otherwise."""
        command = words[1] if words[0] == "launch" else words[0]
        if command in ("pretrain", "train"):
            self.leave_run(Path(config.output_dir), config, command, launch)
        elif command == "predict":
            text = "index\tprediction\tprobability_0\tprobability_1\n" + "".join(PAIRS)
            Path(config.output_file).write_text(text)
        elif command == "convert":
            folder = Path(config.output_dir)
            folder.mkdir(parents=True)
            found = {"sequence_output": {"padded": 2e-7}}
            (folder / "conversion.json").write_text(json.dumps({"largest_difference": found}))
        elif command == "build":
            folder = Path(config.output_file).parent
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "vocab.txt").write_text("[PAD]\n今\n")

    def leave_run(self, output, config, command, launch):
        output.mkdir(parents=True, exist_ok=True)
        steps = min(config.max_steps, 60)
        events = [self.event(step, config, command) for step in range(1, steps + 1)]
        (output / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        (output / "checkpoints" / "step_00000010").mkdir(parents=True, exist_ok=True)
        (output / "model_last").mkdir(exist_ok=True)
        manifest = {"topology": {"kernels": "fused avx2 fp32"}}
        (output / "model_last" / "MANIFEST.json").write_text(json.dumps(manifest))
        if launch is not None:
            (output / "ranks").mkdir(exist_ok=True)
            (output / "ranks" / "00001.json").write_text(json.dumps({"pid": os.getpid()}))

    def event(self, step, config, command):
        loss = self.loss - 0.01 * step
        event = {"split": "train", "step": step, "loss": loss, "tokens_per_second": 1e5, "product_share": 0.5}
        if config.scales_loss:
            event["loss_scale"] = 1024.0 * (1 + step // 8)
        return event
