"""Replace a name of Paddle temporarily: nothing in this folder is replaced permanently."""

from contextlib import contextmanager
from typing import Iterator


@contextmanager
def replaced(owner, name: str, value) -> Iterator[None]:
    """Replace ``name`` of ``owner``, a module or a class, by ``value`` within this context.

    Raises AttributeError when it has no such name of its own: then Paddle has changed, and a patch without
    effect would not be noticed.
    """
    if name not in vars(owner):
        raise AttributeError(f"{owner.__name__} has no {name}; look up its name in this Paddle")
    known = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, known)
