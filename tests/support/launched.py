"""A function in several processes under Paddle's launcher, and what it returned in each.

launch(folder, function, ...) starts this file, which calls the function; a module of the tests has it.
"""

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

from places import ROOT, SUPPORT

PADDLES = ("paddle.distributed.launch", "--nproc_per_node")
OURS = ("ernie_pair", "launch", "--processes")
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
TESTS = ROOT / "tests"
PATH = f"{SUPPORT}:{TESTS}/ranks:{TESTS}/faults:{TESTS}/recipes/tutorials:{ROOT}"


def one_thread(**changes):
    """The environment of a process of one thread: another number of threads may round differently."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PATH, **changes}


def launch_line(log, *words, processes=2, launcher=PADDLES):
    start = ("-m", *launcher, processes, "--log_dir", log) if processes > 1 else ()
    return list(map(str, [sys.executable, *start, *words]))


def words_of(config):
    return [f"--{name}={value}" for name, value in vars(config).items() if value not in (None, "")]


def run_script(folder, *words, fails=False, **how):
    """Run a script with its words in several processes to their end; returns what each of them printed.

    ``how``: what `launch_line` takes, and variables of the environment in capitals.
    """
    variables = {name: how.pop(name) for name in list(how) if name.isupper()}
    log = folder / "log"
    shutil.rmtree(log, ignore_errors=True)
    done = subprocess.run(
        launch_line(log, *words, **how),
        cwd=folder,
        env=one_thread(**variables),
        capture_output=True,
        text=True,
        timeout=550,
    )
    logs = [path.read_text() for path in sorted(log.glob("workerlog.*"))] or [done.stdout + done.stderr]
    ends = "\n".join(text[-2000:] for text in (done.stdout, done.stderr, *logs))
    assert (done.returncode != 0) == fails, ends
    return logs


def launch(folder, function, *arguments, processes=2, **how):
    """Return what ``function`` returned in each process; where it ``fails``, what each of them printed."""
    call = folder / "call"
    call.write_bytes(pickle.dumps((function, arguments)))
    logs = run_script(folder, __file__, call, processes=processes, **how)
    if how.get("fails"):
        return logs
    return [pickle.loads((folder / f"call.{rank}").read_bytes()) for rank in range(processes)]


def in_turn(*calls):
    """Call functions, each with its config: (function, config) ..."""
    for function, config in calls:
        function(config)


def main(call):
    function, arguments = pickle.loads(Path(call).read_bytes())
    result = function(*arguments)
    Path(f"{call}.{os.environ.get('PADDLE_TRAINER_ID', 0)}").write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    from ernie_pair.core.cli.cli import exit_code_of

    sys.exit(exit_code_of(lambda: main(sys.argv[1])))
