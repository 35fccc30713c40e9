"""The completion scripts, run by the shells themselves."""

import os
import pty
import select
import shutil
import signal
import subprocess
import time
from dataclasses import fields

import pytest
from children import command

from ernie_pair.commands import COMMANDS, WORDS, config_class_of
from ernie_pair.pairs.config.pair_config import TrainConfig

ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_shtab_ernie_pair ernie-pair "${@: -1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """The scripts as the command prints them, and a folder with paths to complete."""
    pytest.importorskip("shtab")
    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh"):
        done = command("completion", shell)
        assert done.code == 0 and done.told == ""
        (folder / f"_ernie-pair.{shell}").write_text(done.said)
    (folder / "places").mkdir()
    (folder / "places" / "train.tsv").touch()
    (folder / "places" / "tables").mkdir()
    return folder


@pytest.fixture(scope="module")
def ask(scripts):
    def ask(line):
        words = ["bash", "--norc", "-c", ASK, "bash", str(scripts / "_ernie-pair.bash"), *line.split(" ")]
        done = subprocess.run(words, cwd=scripts / "places", capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
        return sorted(done.stdout.split())

    return ask


def test_bash_completes_commands_and_flags(ask):
    assert set(ask("ernie-pair ")) >= {name.split()[0] for name in [*COMMANDS, *WORDS]}
    named = {f"--{item.name}" for item in fields(TrainConfig)}
    assert set(ask("ernie-pair train --")) == named | {"--config", "--help"}
    for name in ("predict", "convert", "serve", "inspect-data"):
        options = fields(config_class_of(COMMANDS[name]))
        named = {f"--{item.name}" for item in options if not item.metadata["positional"]}
        assert named <= set(ask(f"ernie-pair {name} --"))


@pytest.mark.parametrize(("line", "answers"), [
    ("tr", ["train", "train-embedding"]),
    ("help pre", ["predict", "prepare", "pretrain"]),
    ("completion z", ["zsh"]),
    ("train --use_amp --lear", ["--learning_rate"]),
    ("train --model_type er", ["ernie", "ernie_gram"]),
    ("train --use_amp ", ["false", "true"]),
    ("train --train_file t", ["tables", "train.tsv"]),
    ("train --output_dir t", ["tables"]),
    ("train --epochs ", []),
    ("inspect-data --input_path tr", ["train.tsv"]),
    ("checkpoint d", ["diff"]),
    ("compare models --int", ["--int8"]),
    ("launch tra", ["train", "train-embedding", "train.tsv"]),
    ("launch train --gpu", ["--gpus"]),
    ("launch train --max_st", ["--max_steps"]),
])  # fmt: skip
def test_bash_completes_choices_and_paths(ask, line, answers):
    assert ask(f"ernie-pair {line}") == answers


def typed(zsh, words, awaited, seconds=30):
    """Type ``words``, which may contain tabs, into zsh; return what it shows until ``awaited``."""
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe(zsh, ["zsh", "-f", "-i"], {**os.environ, "TERM": "dumb"})
    shown, end = b"", time.monotonic() + seconds
    os.write(terminal, words.encode())
    while time.monotonic() < end and awaited not in shown.decode(errors="replace"):
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 65536)
    os.kill(process, signal.SIGKILL)
    os.close(terminal)
    os.waitpid(process, 0)
    return shown.decode(errors="replace")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh")
def test_zsh_completes_flags(scripts):
    zsh = shutil.which("zsh")
    script = scripts / "_ernie-pair"
    shutil.copy(scripts / "_ernie-pair.zsh", script)
    subprocess.run([zsh, "-n", str(script)], check=True, timeout=30)
    start = f"fpath=({scripts} $fpath); autoload -U compinit; compinit -u -D; cd {scripts}/places\n"
    start += 'ernie-pair() { print -r -- "given: $*" }\n'  # the command is not run, only completed
    awaited = "given: train --warmup_rate 0.1"
    assert awaited in typed(zsh, start + "ernie-pair train --warmup_ra\t0.1\n", awaited)
