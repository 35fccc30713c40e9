"""Whether pretraining has a static program for the installed Paddle; otherwise it takes the dynamic graph."""

from data_tools.files.installation import series_of
from ernie_pair.runtime.paddle_version import paddle_version

WITH_PROGRAMS = ((2, 6), (3, 3))  # the first two numbers of the versions of Paddle


def has_static_program() -> bool:
    """Return whether the programs of pretraining are built for the installed Paddle; True without one."""
    version = paddle_version()
    return not version or series_of(version) in WITH_PROGRAMS
