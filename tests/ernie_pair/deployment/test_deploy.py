"""Deployment files: a Triton model repository, and a Dockerfile with the files that it copies."""

import json
import re
import shlex
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from shutil import copytree

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from places import ROOT
from tiny_ship import MAX_SEQ_LEN, PADDLE, ship, write_trained
from waiting import until

from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.atomic_files import CONFIG_YAML
from ernie_pair.deployment import docker as wheel
from ernie_pair.deployment.docker import EXTRA, build_wheel, read_extras, read_wheel_python
from ernie_pair.service.serve import ServeConfig

onnxruntime = pytest.importorskip("onnxruntime")

NAMES = {"0": "不同", "1": "相同", "2": "相关"}
# The part of Triton's inference.ModelConfig that an export writes; * marks repeated fields.
PROTO = {
    "ModelConfig": "backend:string max_batch_size:int32 input*:ModelInput output*:ModelOutput "
    "dynamic_batching:ModelDynamicBatching instance_group*:ModelInstanceGroup parameters*:Entry",
    "ModelInput": "name:string data_type:DataType dims*:int64",
    "ModelOutput": "name:string data_type:DataType dims*:int64 label_filename:string",
    "ModelDynamicBatching": "max_queue_delay_microseconds:uint64",
    "ModelInstanceGroup": "kind:Kind",
    "Entry": "key:string value:ModelParameter",
    "ModelParameter": "string_value:string",
}
ENUMS = {"DataType": "TYPE_INVALID TYPE_INT64 TYPE_FP32", "Kind": "KIND_AUTO KIND_CPU"}
TYPES = {"INT64": "tensor(int64)", "FP32": "tensor(float)"}


def write_wheel(folder, extras=(EXTRA,), name="ernie_pair-9.9-cp310-cp310-linux_x86_64.whl"):
    metadata = "".join(["Metadata-Version: 2.1\n", *(f"Provides-Extra: {extra}\n" for extra in extras)])
    with zipfile.ZipFile(folder / name, "w") as packed:
        packed.writestr("ernie_pair-9.9.dist-info/METADATA", metadata)
    return folder / name


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_trained(tmp_path_factory.mktemp("trained") / "best", num_labels=3, id2label=NAMES)


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    flags = {"quantize": "int8", "max_accuracy_drop": 1.0, "triton": True, "docker": True}
    return ship(model, folder / "ship", "both", wheel=str(write_wheel(folder)), **flags)


def config_class():
    file = descriptor_pb2.FileDescriptorProto(name="config", package="pairs", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for enum, names in ENUMS.items():
        added = file.enum_type.add(name=enum)
        for number, name in enumerate(names.split()):
            added.value.add(name=name, number=number)
    for message, fields in PROTO.items():
        added = file.message_type.add(name=message)
        for number, field in enumerate(fields.split(), 1):
            name, kind = field.split(":")
            label = kinds.LABEL_REPEATED if name.endswith("*") else kinds.LABEL_OPTIONAL
            made = added.field.add(name=name.strip("*"), number=number, label=label)
            made.type = getattr(kinds, f"TYPE_{kind.upper()}", None) or (
                kinds.TYPE_ENUM if kind in ENUMS else kinds.TYPE_MESSAGE
            )
            if made.type in (kinds.TYPE_ENUM, kinds.TYPE_MESSAGE):
                made.type_name = f".pairs.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("pairs.ModelConfig"))


def ends_of(config):
    enum = type(config).DESCRIPTOR.fields_by_name["input"].message_type.fields_by_name["data_type"].enum_type
    for value in (*config.input, *config.output):
        kind = enum.values_by_number[value.data_type].name.replace("TYPE_", "")
        yield value.name, TYPES[kind], list(value.dims)


@pytest.mark.parametrize("name", ["pair", "pair_int8"])
def test_triton_config_matches_the_model_inputs_and_outputs(exported, name):
    folder = exported / "triton" / name
    config = text_format.Parse((folder / "config.pbtxt").read_text(encoding="utf-8"), config_class()())
    session = onnxruntime.InferenceSession(str(folder / "1" / "model.onnx"))
    ends = [*session.get_inputs(), *session.get_outputs()]
    sizes = [[size if isinstance(size, int) else -1 for size in end.shape] for end in ends]
    assert all(first == -1 for first, *_ in sizes)  # the batch dimension, which Triton adds itself
    assert list(ends_of(config)) == [(end.name, end.type, rest[1:]) for end, rest in zip(ends, sizes)]
    assert config.backend == "onnxruntime" and config.max_batch_size == 64
    assert config.dynamic_batching.max_queue_delay_microseconds == 5000
    assert len(config.instance_group) == (name == "pair_int8")
    (output,) = config.output
    labels = (folder / output.label_filename).read_text(encoding="utf-8")
    assert labels.splitlines() == list(NAMES.values())
    told = config.parameters
    told = dict(told) if hasattr(told, "keys") else {entry.key: entry.value for entry in told}
    assert told["max_seq_len"].string_value == str(MAX_SEQ_LEN) and "threshold" not in told


def test_triton_repository_holds_the_exported_models(exported):
    for name, file in (("pair", "model.onnx"), ("pair_int8", "model.int8.onnx")):
        assert (exported / "triton" / name / "1" / "model.onnx").read_bytes() == (
            exported / file
        ).read_bytes()


def instructions_of(exported):
    text = (exported / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]
    return lines, dict(lines)


def test_the_dockerfile_copies_only_files_of_the_export(exported):
    lines, by_name = instructions_of(exported)
    assert [name for name, _ in lines] == [
        "FROM", "COPY", "RUN", "COPY", "USER", "EXPOSE", "HEALTHCHECK", "CMD"
    ]  # fmt: skip
    copies = [
        [word for word in shlex.split(rest) if word[:2] != "--"] for name, rest in lines if name == "COPY"
    ]
    for *sources, target in copies:
        assert target.endswith("/")
        assert all("/" not in source and (exported / source).is_file() for source in sources)
    (wheel, into), (*model_files, model) = copies
    manifest = json.loads((exported / "export.json").read_text(encoding="utf-8"))
    assert set(model_files) == {"export.json", *manifest["files"]} - PADDLE
    assert f'"{into}{wheel}[predict]"' in by_name["RUN"]
    assert by_name["FROM"] == "python:3.10-slim"  # the wheel's Python version
    assert f"--uid {by_name['USER']} " in by_name["RUN"] and int(by_name["USER"]) > 0
    served = parse_config(ServeConfig, json.loads(by_name["CMD"])[2:], "serve")
    assert f"{served.model_path}/" == model and served.host == "0.0.0.0"
    assert by_name["EXPOSE"] == str(served.port) and f":{served.port}/health" in by_name["HEALTHCHECK"]


def test_the_image_command_serves_and_passes_its_healthcheck(tmp_path, exported):
    """Runs the image's command and health check on the image's files in a folder, at another port."""
    pytest.importorskip("uvicorn")
    _, by_name = instructions_of(exported)
    lines = [rest for name, rest in instructions_of(exported)[0] if name == "COPY"]
    for name in [word for word in lines[1].split() if not word.startswith(("--", "/"))]:
        (tmp_path / name).write_bytes((exported / name).read_bytes())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = [
        word.replace("/model", str(tmp_path)).replace("8000", port) for word in json.loads(by_name["CMD"])
    ]
    check = json.loads(by_name["HEALTHCHECK"].partition("CMD ")[2].replace("8000", port))
    check[0] = sys.executable
    assert subprocess.run(check, capture_output=True).returncode != 0
    service = subprocess.Popen([sys.executable, "-m", "ernie_pair", *words[1:]], cwd=ROOT)
    try:
        until(lambda: subprocess.run(check, capture_output=True).returncode == 0, 60)
    finally:
        service.terminate()
        service.wait(60)


def test_the_extras_of_the_image_exist_in_pyproject():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = text.split("[project.optional-dependencies]\n")[1].split("\n[")[0]
    assert {EXTRA} <= set(re.findall(r"^(\w+) = \[", extras, re.M))


@pytest.mark.parametrize("name, python", [
    ("ernie_pair-1.0-cp39-cp39-manylinux2014_x86_64.whl", "3.9"),
    ("ernie_pair-1.0-py3-none-any.whl", "3.12"),
])  # fmt: skip
def test_the_image_python_version_matches_the_wheel(name, python):
    assert read_wheel_python(Path(name)) == python


@pytest.mark.parametrize("name, extras, reason", [
    ("absent", (), "absent: no such file; give a wheel"),
    ("other-1.0-py3-none-any.whl", (EXTRA,), "is not named as a wheel of ernie-pair"),
    ("ernie_pair.whl", (EXTRA,), "is not named as a wheel of ernie-pair"),
    ("ernie_pair-1.0-py3-none-any.whl", ("serve",), r"has no extra \[predict\]"),
    ("ernie_pair-1.0-py3-none-any.whl", None, "is not a wheel; build one"),
])  # fmt: skip
def test_an_unusable_wheel_is_rejected(tmp_path, model, name, extras, reason):
    if extras is None:
        (tmp_path / name).write_text("no archive")
    elif name != "absent":
        write_wheel(tmp_path, extras, name)
    with pytest.raises(InputError, match=reason):
        ship(model, tmp_path / "ship", "onnx", docker=True, wheel=str(tmp_path / name))
    assert not (tmp_path / "ship").exists()


@pytest.mark.parametrize("place", ["triton/pair/notes.txt", "triton/mine/1/model.onnx", "notes.txt"])
def test_a_user_file_in_an_export_folder_is_not_deleted(tmp_path, model, exported, place):
    folder = Path(copytree(exported, tmp_path / "ship"))
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    (folder / place).write_text("mine")
    with pytest.raises(InputError, match="which would be lost; give another folder"):
        ship(model, folder, "onnx", overwrite=True)
    assert (folder / place).read_text() == "mine"


def test_overwriting_an_export_removes_all_of_its_files(tmp_path, model, exported):
    folder = Path(copytree(exported, tmp_path / "ship"))
    recorded = json.loads((folder / ".made.json").read_text(encoding="utf-8"))["outputs"]
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert set(recorded) == there - {".made.json", CONFIG_YAML}
    assert not (ship(model, folder, "onnx", overwrite=True) / "triton").exists()
    assert not list(folder.glob("*.whl")) and not (folder / "Dockerfile").exists()


def test_a_wheel_build_that_hangs_ends_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(wheel, "SECONDS", 0.2)
    monkeypatch.setattr(wheel, "_pip_wheel", lambda: ["sh", "-c", "exec sleep 60"])
    with pytest.raises(InputError, match="not built after 0.2 s; give one with wheel FILE"):
        build_wheel(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_built_wheel_contains_all_sources(tmp_path):
    path = build_wheel(tmp_path)
    assert {EXTRA} <= read_extras(path)
    packed = set(zipfile.ZipFile(path).namelist())
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "ernie_pair").rglob("*.py")}
    assert modules <= packed and "ernie_pair/service/try.html" in packed
