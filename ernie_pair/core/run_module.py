"""Start Python so that it imports nothing from the working folder, as `python -P` does since 3.11.

python run_module.py -m MODULE WORDS
python run_module.py -c PROGRAM WORDS

Python itself puts the working folder first on the path for -m and -c: a random.py in it, of a downloaded
model for example, would be run in place of Python's own. Whatever this package starts begins with
`python_words`.
"""

import os
import sys

RUN_MODULE = os.path.abspath(__file__)
_HOME = os.path.dirname(os.path.dirname(os.path.dirname(RUN_MODULE)))  # of data_tools and ernie_pair


def python_words(*flags: str) -> list[str]:
    """Return the beginning of a command line, which -m MODULE or -c PROGRAM continues as after `python`."""
    return [sys.executable, *flags, RUN_MODULE]


def leave_first_folder() -> None:
    """Take the folder from the path that Python has put first; this package is still found."""
    has_put_none = sys.flags.isolated or getattr(sys.flags, "safe_path", False)
    if not has_put_none:
        del sys.path[0]
    found = next((path for path in sys.path if os.path.isdir(os.path.join(path, "ernie_pair"))), None)
    if found is None:  # it was found in that folder alone
        sys.path.append(_HOME)
    elif not os.path.samefile(found or os.curdir, _HOME):  # another copy, where this one is to go on
        sys.path.insert(0, _HOME)


def main() -> None:
    """Run what ``sys.argv`` names."""
    leave_first_folder()
    import runpy  # from Python's own folder, now

    _, kind, named, *words = sys.argv
    sys.argv[:] = [kind if kind == "-c" else named, *words]
    if kind == "-c":
        exec(named, {"__name__": "__main__"})
    else:
        runpy.run_module(named, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
