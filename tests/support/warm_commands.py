"""A Python whose programs start from a process with Paddle imported already.

Importing Paddle and what is built on it takes most of a short program. `warm_environment` puts a `python` and
an `ernie-pair` first in PATH. Those have a parent with these imports fork: the child gets the words, the
environment, the folder, the streams, the limits and the ignored signals of the caller. What is decided at
import differs with some variables; each set of them has a parent of its own, from its third program on.
Whatever else (other modules, other checkouts, inherited files, and -c but with WARM=1 in the environment)
starts Python as ever, and so does all with COLD=1.
"""

import array
import atexit
import ctypes
import gc
import inspect
import json
import os
import resource
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

from places import ROOT

from ernie_pair.core.run_module import RUN_MODULE

PRELOADED = """
    ernie_pair.pairs.train.train_pair ernie_pair.pretraining.pretrain ernie_pair.pretraining.convert.convert
    ernie_pair.embeddings.train.train_embedding ernie_pair.deployment.export_pair
    paddle.distributed.fleet paddle.distributed.launch.main onnxruntime pyarrow sklearn.metrics visualdl
""".split()
IDLE_SECONDS = 120
# Runs without `site`, in some 15 ms.
SHIM = """#!{python} -SE
import os, sys
PYTHON, PARENT, FOLDER, ROOT = {python!r}, {parent!r}, {folder!r}, {root!r}
# Read while something is imported, or by a library that has been loaded already.
AT_IMPORT = tuple("CUDA FLAGS_ GLOG HOME KMP_ LANG LC_ LD_ MKL_ MALLOC_ OMP_ PPNLP PYTHON TZ XDG".split())
READ_LATER = ("FLAGS_selected", "PYTHONPATH", "PYTHONUNBUFFERED")
words = sys.argv[1:]
if sys.argv[0].endswith("ernie-pair"):
    words[:0] = ["-m", "ernie_pair"]

def cold():
    os.execv(PYTHON, [PYTHON, *words])

is_unbuffered = words[:1] == ["-u"]
program = words[is_unbuffered:]
if program and program[0].endswith("/run_module.py"):
    if program[0] != {run_module!r}:
        cold()  # of another checkout
    del program[0]
is_module = program[:1] == ["-m"] and program[1] in {modules!r}
is_text = program[:1] == ["-c"] and "WARM" in os.environ
script = program[0] if program and program[0] != "-c" else ""
is_file = script.endswith(".py") and "site-packages" not in script
if not (is_module or is_text or is_file):
    cold()

import array, json, resource, signal, socket, zlib
# Four: the three streams, and the folder that is listed.
if "COLD" in os.environ or len(os.listdir("/proc/self/fd")) != 4:
    cold()
if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
    cold()  # the parent is large
first = os.getcwd() if is_module or is_text else os.path.dirname(os.path.realpath(program[0]))
path = [first, *os.environ.get("PYTHONPATH", "").split(":")]
if any(here != ROOT and os.path.exists(here + "/ernie_pair/__init__.py") for here in path if here):
    cold()
early = {{k: v for k, v in os.environ.items() if k.startswith(AT_IMPORT) and not k.startswith(READ_LATER)}}
place = [os.readlink("/proc/self/ns/" + name) for name in ("mnt", "net", "pid")]
place.append(open("/proc/self/cgroup").read())
address = FOLDER + "/" + str(zlib.crc32(json.dumps([sorted(early.items()), place]).encode()))

def connected():
    asked = socket.socket(socket.AF_UNIX)
    try:
        asked.connect(address)
    except OSError:
        return None
    return asked

asked = connected()
if asked is None:
    with open(address + ".calls", "a") as calls:
        calls.write(".")
    if os.path.getsize(address + ".calls") < 3:
        cold()
    import fcntl, subprocess
    with open(address + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        asked = connected()
        if asked is None:
            parent = subprocess.Popen(
                [PYTHON, PARENT, FOLDER, address, " " * 8192],
                cwd=ROOT, start_new_session=True,
                env={{**early, "PATH": os.environ.get("PATH", ""), "PYTHONPATH": ROOT, "ROOM": " " * 8192}},
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )
            parent.stdout.readline()
            parent.returncode = 0  # nobody waits for it
            asked = connected()
if asked is None:
    cold()
umask = os.umask(0)
os.umask(umask)
about = {{
    "words": [PYTHON, *words],
    "program": program,
    "first": first,
    "unbuffered": is_unbuffered or "PYTHONUNBUFFERED" in os.environ,
    "executable": sys.argv[0].replace("ernie-pair", "python"),
    "environment": dict(os.environ),
    "folder": os.getcwd(),
    "umask": umask,
    "nice": os.nice(0),
    "cores": sorted(os.sched_getaffinity(0)),
    "limits": [[n, *resource.getrlimit(n)] for n in range(16)],
    "ignored": [n for n in range(1, 32) if signal.getsignal(n) == signal.SIG_IGN],
    "leads": os.getpgid(0) == os.getpid(),
}}
about = json.dumps(about).encode()
streams = array.array("i", [0, 1, 2])
# What comes from now on is for the child, whose output a test may have seen before its pid is here.
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
asked.sendmsg([len(about).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
asked.sendall(about)
pid = int.from_bytes(asked.recv(4), "big")
def pass_on(number, frame):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it has ended, and its exit code is on the way

for number in PASSED_ON:
    if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, pass_on)
signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
code = int.from_bytes(asked.recv(4), "big", signed=True)
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), -code)
os._exit(code)
"""
MODULES = {"ernie_pair", "ernie_pair.launcher", "ernie_pair.launch.notebook", "paddle.distributed.launch"}


@contextmanager
def warm_environment(folder: Path):
    """Yield the warm `python` in ``folder``, beside an `ernie-pair`; their parents end with this context."""
    (folder / "bin").mkdir()
    text = SHIM.format(
        python=sys.executable,
        parent=__file__,
        folder=str(folder),
        root=str(ROOT),
        modules=MODULES,
        run_module=RUN_MODULE,
    )
    for name in ("python", "ernie-pair"):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    os.mkfifo(folder / "lives")
    lives = os.open(folder / "lives", os.O_RDWR)
    try:
        yield str(folder / "bin" / "python")
    finally:
        os.close(lives)


def serve(folder, address):
    """Fork a child for every caller, until ``folder`` is given up or nobody calls for long."""
    with open(os.open(f"{folder}/lives", os.O_RDONLY | os.O_NONBLOCK)) as lives:
        for name in PRELOADED:
            import_module(name)
        make_cheaper()
        gc.collect()
        gc.freeze()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        with suppress(FileNotFoundError):
            os.unlink(address)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(64)
            print("ready", flush=True)
            os.dup2(0, 1)
            while select.select([listener, lives], [], [], IDLE_SECONDS)[0] == [listener]:
                caller, _ = listener.accept()
                if os.fork() == 0:
                    os.close(lives.fileno())
                    listener.close()
                    answer(caller)
                caller.close()
        with suppress(FileNotFoundError):
            os.unlink(address)


def make_cheaper():
    """Shorten what costs every short run a quarter of its time, and decides nothing."""
    # For each `a * b` of a program Paddle looks up where it stands, with the lines around it, to warn.
    inspect.stack = partial(inspect.stack, 0)
    # A run waits for the disk some forty times, of 5 ms each.
    os.fsync = lambda descriptor: None
    # Paddle's launcher looks after its processes once a second.
    watch = import_module("paddle.distributed.launch.job.pod").Pod.watch
    watch.__defaults__ = (*watch.__defaults__[:2], 0.05, -1)  # interval and timeout, in seconds
    # 40 GFLOP, for the share of the possible speed in the log.
    import_module("ernie_pair.kernels.product_rate").SHAPES["cpu"] = ((64, 64, 64),)


def answer(caller):
    """Run the program of a caller in a child, and send its pid and its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    streams = array.array("i")
    size, sent, _, _ = caller.recvmsg(4, socket.CMSG_SPACE(3 * streams.itemsize))
    streams.frombytes(sent[0][2])
    about = b""
    while len(about) < int.from_bytes(size, "big"):
        part = caller.recv(1 << 16)
        if not part:
            os._exit(1)  # the caller was killed
        about += part
    about = json.loads(about)
    pid = os.fork()
    if pid == 0:
        caller.close()
        become(about, streams)
        end(*run(about["program"], about["first"]))
    for stream in streams:
        os.close(stream)
    os.sched_setaffinity(0, about["cores"])
    caller.sendall(pid.to_bytes(4, "big"))
    ended = os.pidfd_open(pid)
    if caller in select.select([ended, caller], [], [])[0]:  # the caller was killed
        with suppress(OSError):
            (os.killpg if about["leads"] else os.kill)(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    with suppress(OSError):
        caller.sendall(code.to_bytes(4, "big", signed=True))
    os._exit(0)


def become(about, streams):
    """Give this process what the caller has."""
    os.setpgid(0, 0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    for name, number, mode, buffering in (
        ("stdin", 0, "r", -1),
        ("stdout", 1, "w", -1),
        ("stderr", 2, "w", 1),
    ):
        errors = getattr(sys, name).errors
        file = os.fdopen(number, mode, buffering, encoding="utf-8", errors=errors, closefd=False)
        if about["unbuffered"] and mode == "w":
            file.reconfigure(write_through=True)
        setattr(sys, name, file)
        setattr(sys, f"__{name}__", file)
    for number, soft, hard in about["limits"]:
        resource.setrlimit(number, (soft, hard))
    os.umask(about["umask"])
    os.nice(about["nice"] - os.nice(0))
    os.sched_setaffinity(0, about["cores"])
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if number in about["ignored"]:
            signal.signal(number, signal.SIG_IGN)
    os.chdir(about["folder"])
    before = os.environ.get("PYTHONPATH", "").split(":")
    os.environ.clear()
    os.environ.update(about["environment"])
    show(about["words"], about["environment"])
    path = os.environ.get("PYTHONPATH", "")
    rest = [place for place in sys.path[1:] if place not in before]
    sys.path[:] = [about["first"], *(path.split(":") if path else ()), *rest]
    sys.executable, tempfile.tempdir = about["executable"], None
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def show(words, environment):
    """Let /proc show the words and the environment that this process has now."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    places = [int(field) for field in fields[45:49]]
    for begin, end, lines in (
        (*places[:2], words),
        (*places[2:], [f"{name}={value}" for name, value in environment.items()]),
    ):
        block = b"".join(os.fsencode(line) + b"\0" for line in lines)
        ctypes.memmove(begin, block[: end - begin].ljust(end - begin, b"\0"), end - begin)


def run(program, first):
    """Run ``program`` as Python does; return its exit code, or the signal that ends it."""
    try:
        if program[0] == "-m":
            sys.argv = program[1:]
            runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        elif program[0] == "-c":
            sys.argv = ["-c", *program[2:]]
            module = sys.modules["__main__"] = ModuleType("__main__")
            exec(program[1], module.__dict__)
        else:
            sys.argv = program
            module = sys.modules["__main__"] = ModuleType("__main__")
            module.__file__ = program[0]
            code = compile(Path(program[0]).read_bytes(), program[0], "exec")
            exec(code, module.__dict__)
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0, None
        print(leaving.code, file=sys.stderr)
        return 1, None
    except BaseException as error:
        trace = error.__traceback__
        while trace.tb_next and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error, trace)
        return 1, signal.SIGINT if isinstance(error, KeyboardInterrupt) else None
    return 0, None


def end(code, number=None):
    """End as Python does, without the destructors of libraries: they may wait for threads of the parent."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    if number:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        time.sleep(1)
    os._exit(code & 0xFF)


if __name__ == "__main__":
    serve(*sys.argv[1:3])
