"""Replace a name of Paddle's for a while: nothing in this folder is replaced for good."""

from contextlib import contextmanager
from typing import Iterator


@contextmanager
def replaced(owner, name: str, value) -> Iterator[None]:
    """Let ``owner``, a module or a class, have ``value`` under ``name`` within this context.

    Raises AttributeError when it has no such name of its own: then Paddle is another one, and a repair that
    repairs nothing would not be noticed.
    """
    if name not in vars(owner):
        raise AttributeError(f"{owner.__name__} has no {name}; see what this Paddle calls it")
    known = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, known)
