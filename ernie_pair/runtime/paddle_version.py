"""What the installed Paddle supports, and the setting that it needs before it is loaded.

Paddle 3 builds static programs of another kind (PIR), which the pretraining of this package does not support.
3.0 and 3.1 build those of Paddle 2.6 if an environment variable says so while they are loaded; later
versions do not. A variable that the user has set is kept.
"""

import os
import sys

from data_tools.files.installation import WITH_PRETRAINING, series_of
from ernie_pair.runtime.gpu.builds import installed_build

NEW_PROGRAMS = "FLAGS_enable_pir_api"  # Paddle 3's name for it
OFF = ("0", "false", "off", "no", "")


def choose_programs() -> None:
    """Let Paddle 3.0 and 3.1 build the programs of 2.6; call it before Paddle is loaded."""
    version = paddle_version()
    if can_pretrain(version) and series_of(version) > (2, 6):
        os.environ.setdefault(NEW_PROGRAMS, "0")


def paddle_version() -> str:
    """Return the version of the Paddle that would be imported, '' if there is none or it is unknown."""
    build = installed_build()
    return build.version if build is not None else ""


def can_pretrain(version: str) -> bool:
    """Return whether this version of Paddle builds the static programs that pretraining needs."""
    return bool(version) and series_of(version) in WITH_PRETRAINING


def refuse_without_programs(what: str) -> None:
    """Nothing for now."""


def why_programs_do_not_train() -> str:
    """Return why Paddle cannot train programs of `paddle.jit.to_static` here, in words, or ''.

    For the programs of 2.6, Paddle 3.0 and 3.1 refuse the backward pass that the dynamic graph needs.
    """
    version = paddle_version()
    if not version or series_of(version) == (2, 6) or builds_new_programs(version):
        return ""
    return f"Paddle {version} has no backward pass for it if {NEW_PROGRAMS} is 0, as for pretraining"


def builds_new_programs(version: str) -> bool:
    """Return whether this process builds, or would build, PIR programs with this version of Paddle."""
    if series_of(version) == (2, 6):
        return False
    if "paddle" not in sys.modules:
        return os.environ.get(NEW_PROGRAMS, "1").lower() not in OFF
    import paddle

    return bool(paddle.get_flags(NEW_PROGRAMS)[NEW_PROGRAMS])
