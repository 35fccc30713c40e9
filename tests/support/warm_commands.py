"""Commands of the package that start from a process with Paddle imported already.

Importing Paddle and what is built on it takes most of a short command. `warm_environment` starts a parent
that has imported it, and puts an `ernie-pair` first in PATH, which has the parent fork: the child gets the
words, the environment, the folder and the streams of the caller. What is decided at import differs with the
environment, so a caller with other such variables than the parent's starts Python as ever.
"""

import array
import atexit
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

from places import ROOT

# Read while something is imported, or by a library that has been loaded already.
AT_IMPORT = tuple("CUDA ERNIE_PAIR FLAGS_ GLOG HOME KMP_ LD_ MKL_ OMP_ PADDLE PPNLP PYTHON".split())
PRELOADED = """
    ernie_pair.pair.train.train_pair ernie_pair.pretrain.pretrain ernie_pair.pretrain.convert.convert
    ernie_pair.embedding.train.train_embedding ernie_pair.score.export.export_pair
    onnxruntime pyarrow sklearn.metrics visualdl
""".split()
SHIM = """#!{python} -SE
import array, json, os, socket, sys
def cold():
    os.execv({python!r}, [{python!r}, "-m", "ernie_pair", *sys.argv[1:]])
names = {names!r}
if {{k: v for k, v in os.environ.items() if k.startswith(names)}} != {known!r}:
    cold()
asked = socket.socket(socket.AF_UNIX)
try:
    asked.connect({address!r})
except OSError:
    cold()
about = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
streams = array.array("i", [0, 1, 2])
asked.sendmsg([len(about).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
asked.sendall(about)
pid = int.from_bytes(asked.recv(4), "big")
import signal
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, frame: os.kill(pid, number))
code = int.from_bytes(asked.recv(4), "big", signed=True)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


def known(environment):
    return {name: value for name, value in environment.items() if name.startswith(AT_IMPORT)}


@contextmanager
def warm_environment(folder: Path, environment):
    """Yield ``environment`` with the warm `ernie-pair` first in PATH, while the parent lives."""
    address = str(folder / "warm")
    parent = subprocess.Popen(
        [sys.executable, __file__, address],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    parent.stdout.readline()
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    shim = bin_folder / "ernie-pair"
    shim.write_text(
        SHIM.format(python=sys.executable, names=AT_IMPORT, known=known(environment), address=address)
    )
    shim.chmod(shim.stat().st_mode | stat.S_IXUSR)
    try:
        yield {**environment, "PATH": f"{bin_folder}:{environment['PATH']}"}
    finally:
        parent.stdin.close()
        parent.wait(60)


def serve(address):
    """Fork a child for every caller, until stdin ends."""
    import gc
    from importlib import import_module

    for name in PRELOADED:
        import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            caller, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                answer(caller)
            caller.close()


def leave(code):
    """End as Python does, without the destructors of libraries: they may wait for threads of the parent."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def answer(caller):
    """Run the command of a caller in a child, and send its pid and its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    streams = array.array("i")
    size, found, _, _ = caller.recvmsg(4, socket.CMSG_SPACE(3 * streams.itemsize))
    streams.frombytes(found[0][2])
    about = b""
    while len(about) < int.from_bytes(size, "big"):
        about += caller.recv(1 << 16)
    words, environment, folder = json.loads(about)
    pid = os.fork()
    if pid == 0:
        caller.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        # Buffered as Python buffers them: the stream of errors by lines.
        sys.stdin, sys.stdout, sys.stderr = map(os.fdopen, (0, 1, 2), "rww", (-1, -1, 1))
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.argv = ["ernie-pair", *words]
        from ernie_pair.__main__ import main

        try:
            main()
        except SystemExit as end:
            leave(end.code or 0)
    for stream in streams:
        os.close(stream)
    caller.sendall(pid.to_bytes(4, "big"))
    ended = os.pidfd_open(pid)
    if caller in select.select([ended, caller], [], [])[0]:  # the caller was killed
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    try:
        caller.sendall(code.to_bytes(4, "big", signed=True))
    finally:
        os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1])
