"""A Dockerfile in the exported folder, next to all that it copies: the model and a wheel of this package.

docker build -t pairs exported && docker run -p 8000:8000 pairs
"""

import json
import re
import shutil
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from data_tools.base.errors import InputError
from ernie_pair.inference.exported_model import EXPORT_MANIFEST, PADDLE_FILES, ExportedModel
from ernie_pair.pair.export.wheel import build_wheel, extras_of

DOCKERFILE = "Dockerfile"
EXTRAS = ("predict", "serve")
PORT = 8000
USER = 10001  # no user of the host
HEALTH = f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{PORT}/health', timeout=4)"
SERVE = ("ernie-pair", "serve", "--model", "/model", "--host", "0.0.0.0", "--port", str(PORT))

TEXT = """\
# An image that answers sentence pairs over HTTP: docker build -t pairs . && docker run -p {port}:{port} pairs
# To accept requests for a host name other than localhost, append --allowed_hosts NAME to CMD.
FROM python:{python}-slim
COPY {wheel} /wheel/
RUN pip install --no-cache-dir "/wheel/{wheel}[{extras}]" \\
    && useradd --system --no-create-home --uid {user} pairs
COPY --chown={user} {files} /model/
USER {user}
EXPOSE {port}
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD {health}
CMD {serve}
"""


def refuse_unusable_wheel(wheel: str) -> None:
    """Raise InputError, before the work, when ``wheel`` is given and cannot serve a model."""
    if not wheel:
        return
    path = Path(wheel)
    if not path.is_file():
        raise InputError(
            f"--wheel {path}: no such file; give a wheel of ernie-pair, or none to have it built"
        )
    python_of(path)
    missing = set(EXTRAS) - extras_of(path)
    if missing:
        raise InputError(f"--wheel {path} has no extra [{min(missing)}]; give a wheel of this version")


def write_dockerfile(exported: ExportedModel, wheel: str) -> None:
    """Write Dockerfile and the wheel into the folder of ``exported``; the wheel is built where '' is given.

    Raises InputError if it cannot be built.
    """
    folder = exported.folder
    path = Path(shutil.copyfile(wheel, folder / Path(wheel).name)) if wheel else build_wheel(folder)
    files = sorted({EXPORT_MANIFEST, *exported.files} - set(PADDLE_FILES))
    content = TEXT.format(
        python=python_of(path),
        wheel=path.name,
        extras=",".join(EXTRAS),
        files=" ".join(files),
        user=USER,
        port=PORT,
        health=json.dumps(["python", "-c", HEALTH]),
        serve=json.dumps(SERVE),
    )
    (folder / DOCKERFILE).write_text(content, encoding="utf-8")


def python_of(wheel: Path) -> str:
    """Return the Python that a wheel is for, '3.11'; '3.12', the newest here, where it is for any.

    Raises InputError when ``wheel`` is not named as a wheel of this package.
    """
    try:
        name, _, _, tags = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename:
        name = None
    if name != "ernie-pair":
        raise InputError(f"--wheel {wheel} is not named as a wheel of ernie-pair; give ernie_pair-....whl")
    found = sorted(
        {match[1] for tag in tags for match in [re.fullmatch(r"cp3(\d+)", tag.interpreter)] if match}
    )
    return f"3.{found[-1]}" if found else "3.12"
