"""A Dockerfile in the exported folder, next to all that it copies: the model and a wheel of this package.

docker build -t pairs exported && docker run -p 8000:8000 pairs
"""

import json
import re
import shutil
import subprocess
import tempfile
import zipfile
from email import message_from_bytes
from importlib.util import find_spec
from pathlib import Path
from typing import List, Set

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from ernie_pair.core.errors import InputError
from ernie_pair.core.run_module import python_words
from ernie_pair.inference.exported_model import (
    EXPORT_MANIFEST,
    GPU_FILES,
    INT8_FILES,
    ONNX_FILES,
    PADDLE_FILES,
    ExportedModel,
)
from ernie_pair.inference.predictor import BATCH_SIZE

SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "data_tools", "ernie_pair")
NOT_SOURCES = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
BUILT_WITH = ("setuptools", "wheel", "pybind11")
SECONDS = 900
DOCKERFILE = "Dockerfile"
EXTRA = "predict"
PORT = 8000
USER = 10001  # no user of the host
HEALTH = f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{PORT}/health', timeout=4)"
SERVE = ("ernie-pair", "serve", "--model_path", "/model", "--host", "0.0.0.0", "--port", str(PORT))
TEXT = """\
# An image that answers sentence pairs over HTTP: docker build -t pairs . && docker run -p {port}:{port} pairs
# To accept requests for a host name other than localhost, append --allowed_hosts NAME to CMD.
FROM python:{python}-slim
COPY {wheel} /wheel/
RUN pip install --no-cache-dir "/wheel/{wheel}[{extra}]" \\
    && useradd --system --no-create-home --uid {user} pairs
COPY --chown={user} {files} /model/
USER {user}
EXPOSE {port}
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD {health}
CMD {serve}
"""
TRITON = "triton"
FOLDER_OF = {ONNX_FILES[0]: "pair", INT8_FILES[0]: "pair_int8"}
IN_EACH = ("config.pbtxt", "labels.txt", "1/model.onnx")
TRITON_FILES = tuple(f"{TRITON}/{folder}/{name}" for folder in FOLDER_OF.values() for name in IN_EACH)
QUEUE_MICROSECONDS = 5000  # how long a request waits for others, as in `ernie-pair serve`


def build_wheel(folder: Path) -> Path:
    """Build a wheel of the sources of this package into ``folder``, and return its path.

    They are copied first, for a build leaves files among them. Raises InputError when this package was
    installed without its sources, or when the build fails or takes longer than SECONDS.
    """
    root = Path(__file__).parents[2]
    if not (root / "pyproject.toml").is_file():
        raise InputError("this package was installed without its sources; give its wheel with --wheel FILE")
    with tempfile.TemporaryDirectory() as work:
        sources, made = Path(work, "sources"), Path(work, "made")
        sources.mkdir()
        for name in SOURCES:
            if (root / name).is_dir():
                shutil.copytree(root / name, sources / name, ignore=NOT_SOURCES)
            elif (root / name).is_file():
                shutil.copyfile(root / name, sources / name)
        words = [*_pip_wheel(), "--wheel-dir", str(made), str(sources)]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise InputError(
                f"the wheel is not built after {SECONDS} s; give one with --wheel FILE"
            ) from None
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason"])[-1][:200]
            raise InputError(f"the wheel cannot be built ({reason}); give one with --wheel FILE")
        (wheel,) = made.glob("*.whl")
        return Path(shutil.copyfile(wheel, folder / wheel.name))


def _pip_wheel() -> List[str]:
    """Return the command; what a build needs is taken from here where it is, as there may be no network."""
    words = [*python_words(), "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    return [*words, "--no-build-isolation"] if all(map(find_spec, BUILT_WITH)) else words


def read_extras(wheel: Path) -> Set[str]:
    """Return the extras that a wheel offers. Raises InputError when it is none."""
    try:
        with zipfile.ZipFile(wheel) as packed:
            (name,) = (name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
            metadata = message_from_bytes(packed.read(name))
    except (zipfile.BadZipFile, ValueError):
        raise InputError(f"--wheel {wheel} is not a wheel; build one with pip wheel --no-deps .") from None
    return set(metadata.get_all("Provides-Extra") or [])


def check_wheel(wheel: str) -> None:
    """Raise InputError, before the work, when ``wheel`` is given and cannot serve a model."""
    if not wheel:
        return
    path = Path(wheel)
    if not path.is_file():
        raise InputError(
            f"--wheel {path}: no such file; give a wheel of ernie-pair, or none to have it built"
        )
    read_wheel_python(path)
    if EXTRA not in read_extras(path):
        raise InputError(f"--wheel {path} has no extra [{EXTRA}]; give a wheel of this version")


def write_dockerfile(exported: ExportedModel, wheel: str) -> None:
    """Write Dockerfile and ``wheel``, built for '', beside the model. Raises InputError if building fails."""
    folder = exported.folder
    path = Path(shutil.copyfile(wheel, folder / Path(wheel).name)) if wheel else build_wheel(folder)
    files = sorted({EXPORT_MANIFEST, *exported.files} - {*PADDLE_FILES, *GPU_FILES})
    health, serve = (json.dumps(command) for command in (["python", "-c", HEALTH], SERVE))
    content = TEXT.format(
        python=read_wheel_python(path), wheel=path.name, extra=EXTRA, files=" ".join(files), user=USER,
        port=PORT, health=health, serve=serve,
    )  # fmt: skip
    (folder / DOCKERFILE).write_text(content, encoding="utf-8")


def read_wheel_python(wheel: Path) -> str:
    """Return the Python that a wheel is for, '3.11'; '3.12', the newest here, where it is for any.

    Raises InputError when ``wheel`` is not named as a wheel of this package.
    """
    try:
        name, _, _, tags = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename:
        name = None
    if name != "ernie-pair":
        raise InputError(f"--wheel {wheel} is not named as a wheel of ernie-pair; give ernie_pair-....whl")
    found = [match[1] for tag in tags if (match := re.fullmatch(r"cp3(\d+)", tag.interpreter))]
    return f"3.{max(found)}" if found else "3.12"


def write_triton(exported: ExportedModel) -> None:
    """Write the model repository into the folder of ``exported``, a model for each of its ONNX files."""
    for name, folder_name in FOLDER_OF.items():
        if name not in exported.files:
            continue
        folder = exported.folder / TRITON / folder_name
        (folder / "1").mkdir(parents=True)
        shutil.copyfile(exported.folder / name, folder / "1" / "model.onnx")
        labels = "".join(f"{label}\n" for label in exported.labels)
        (folder / "labels.txt").write_text(labels, encoding="utf-8")
        config = _config_of(exported, folder / "1" / "model.onnx", only_cpu=name in INT8_FILES)
        (folder / "config.pbtxt").write_text(config, encoding="utf-8")


def _config_of(exported: ExportedModel, path: Path, only_cpu: bool) -> str:
    """Return config.pbtxt, Triton's inference.ModelConfig, of an ONNX file, without the first dimension."""
    import onnx

    graph = onnx.load(str(path)).graph
    limits = exported.label_range
    kept = ("max_seq_len", "temperature", "threshold", "symmetric")
    parameters = {name: getattr(exported, name) for name in kept}
    parameters["target"] = None if exported.has_classes else exported.target
    parameters["label_range"] = None if limits is None else "{:g},{:g}".format(*limits)
    messages = [("input", _ends(value)) for value in graph.input]
    messages += [("output", [*_ends(value), 'label_filename: "labels.txt"']) for value in graph.output]
    messages.append(("dynamic_batching", [f"max_queue_delay_microseconds: {QUEUE_MICROSECONDS}"]))
    if only_cpu:  # ONNX Runtime has int8 products for CPUs alone
        messages.append(("instance_group", ["kind: KIND_CPU"]))
    for key, value in parameters.items():
        lines = [f'key: "{key}"', f'value {{ string_value: "{value}" }}']
        messages += [] if value is None else [("parameters", lines)]
    parts = ['backend: "onnxruntime"', f"max_batch_size: {BATCH_SIZE}"]
    parts += ["\n".join([f"{field} {{", *(f"  {line}" for line in lines), "}"]) for field, lines in messages]
    return "\n".join(parts) + "\n"


def _ends(value) -> List[str]:
    from onnx import TensorProto

    tensor = value.type.tensor_type
    sizes = [axis.dim_value if axis.HasField("dim_value") else -1 for axis in tensor.shape.dim]
    data_type = {TensorProto.INT64: "TYPE_INT64", TensorProto.FLOAT: "TYPE_FP32"}[tensor.elem_type]
    return [f'name: "{value.name}"', f"data_type: {data_type}", f"dims: {sizes[1:]}"]
