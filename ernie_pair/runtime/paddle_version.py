"""Which Paddle is installed, and the refusal of one that this package does not support."""

from data_tools.files.errors import InputError
from data_tools.files.installation import PADDLE_RANGE, install_command, is_tested_paddle
from ernie_pair.runtime.gpu.builds import installed_build


def paddle_version() -> str:
    """Return the version of the Paddle that would be imported, '' if there is none or it is unknown."""
    build = installed_build()
    return build.version if build is not None else ""


def refuse_other_paddles() -> None:
    """Raise InputError if a Paddle is installed that this package does not support; none is imported."""
    version = paddle_version()
    if version and not is_tested_paddle(version):
        commands = f"{install_command('cpu')}, or {install_command('cpu26')}"
        raise InputError(f"Paddle {version} is not supported, {PADDLE_RANGE} are; {commands}")
