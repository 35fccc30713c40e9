"""A command that kills itself by SIGKILL just before it gives a file or folder its final name.

python killed_command.py '{"name": "block-.*[.]json", "time": 3, "small": {"module": {"BLOCK": 50}}}' mine ...

``name`` is a pattern of the final name's end, ``time`` which of them, ``small`` constants of modules.
"""

import json
import os
import re
import signal
import sys
from importlib import import_module

from ernie_pair.__main__ import main


def kill_at(name: str, time: int) -> None:
    """Kill this process before the ``time``-th rename to a path that ends as the pattern ``name`` says."""
    wanted, seen = re.compile(f"(?:.*/)?{name}"), 0

    def hook(event, arguments):
        nonlocal seen
        if event == "os.rename" and wanted.fullmatch(os.fspath(arguments[1])):
            seen += 1
            if seen == time:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def make_small(small) -> None:
    """Set constants of modules, so that little work has many parts."""
    for module, values in small.items():
        for name, value in values.items():
            setattr(import_module(module), name, value)


if __name__ == "__main__":
    asked, sys.argv = json.loads(sys.argv[1]), ["ernie-pair", *sys.argv[2:]]
    make_small(asked["small"])
    kill_at(asked["name"], asked["time"])
    main()
