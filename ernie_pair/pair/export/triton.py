"""The exported ONNX models as a model repository of Triton: tritonserver --model-repository exported/triton.

    triton/pair/config.pbtxt        inputs, output and batching; the folder gives the model its name
    triton/pair/labels.txt          the name of each class
    triton/pair/1/model.onnx        version 1
    triton/pair_int8/...            the same of the int8 model

Triton is sent ids, not texts: what makes ids of texts and decides on the logits goes along as parameters.
"""

import shutil
from pathlib import Path
from typing import Dict, List

from ernie_pair.inference.exported_model import INT8_FILES, ONNX_FILES, ExportedModel
from ernie_pair.inference.predictor import BATCH_SIZE

TRITON = "triton"
FOLDER_OF = {ONNX_FILES[0]: "pair", INT8_FILES[0]: "pair_int8"}
IN_EACH = ("config.pbtxt", "labels.txt", "1/model.onnx")
TRITON_FILES = tuple(f"{TRITON}/{folder}/{name}" for folder in FOLDER_OF.values() for name in IN_EACH)
QUEUE_MICROSECONDS = 5000  # how long a request waits for others, as in `ernie-pair serve`


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
    """Return config.pbtxt, the message inference.ModelConfig of Triton in protobuf's text format.

    The inputs and outputs are those of the ONNX file; their first dimension, the batch, is not written there.
    """
    import onnx

    graph = onnx.load(str(path)).graph
    parts = [
        'backend: "onnxruntime"',
        f"max_batch_size: {BATCH_SIZE}",
        *(_message("input", _ends(value)) for value in graph.input),
        *(_message("output", [*_ends(value), 'label_filename: "labels.txt"']) for value in graph.output),
        _message("dynamic_batching", [f"max_queue_delay_microseconds: {QUEUE_MICROSECONDS}"]),
    ]
    if only_cpu:  # ONNX Runtime has int8 products for CPUs alone
        parts.append(_message("instance_group", ["kind: KIND_CPU"]))
    parts += [
        _message("parameters", [f'key: "{key}"', f'value {{ string_value: "{value}" }}'])
        for key, value in _parameters(exported).items()
    ]
    return "\n".join(parts) + "\n"


def _parameters(exported: ExportedModel) -> Dict[str, object]:
    said = {
        "max_seq_len": exported.max_seq_len,
        "temperature": exported.temperature,
        "threshold": exported.threshold,
        "symmetric": exported.symmetric,
        "target": None if exported.has_classes else exported.target,
        "label_range": None if exported.label_range is None else "{:g},{:g}".format(*exported.label_range),
    }
    return {key: value for key, value in said.items() if value is not None}


def _ends(value) -> List[str]:
    from onnx import TensorProto

    tensor = value.type.tensor_type
    sizes = [axis.dim_value if axis.HasField("dim_value") else -1 for axis in tensor.shape.dim]
    data_type = {TensorProto.INT64: "TYPE_INT64", TensorProto.FLOAT: "TYPE_FP32"}[tensor.elem_type]
    return [f'name: "{value.name}"', f"data_type: {data_type}", f"dims: {sizes[1:]}"]


def _message(field: str, lines: List[str]) -> str:
    return "\n".join([f"{field} {{", *(f"  {line}" for line in lines), "}"])
