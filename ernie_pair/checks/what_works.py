"""What the installed Paddle and libraries can do: the table of `ernie-pair doctor` and the install page."""

from importlib.util import find_spec
from typing import Dict

from data_tools.files.installation import PADDLENLP_COMMAND, install_command, training_extra
from ernie_pair.kernels.library import open_kernels
from ernie_pair.runtime.gpu.cards import INDEX

FROM_INDEX = f"pip install paddlepaddle-gpu==3.3.1 -i {INDEX}/cu126/"


def what_works() -> Dict[str, str]:
    """Return {part of the package: yes, or no and what to do}, the same parts with every supported Paddle."""
    has_onnx, kernels = all(map(find_spec, ("onnx", "onnxruntime"))), open_kernels().reason
    onnx = "yes" if has_onnx else f"no: {install_command('onnx')}"
    return {
        "pretraining, static graph": "yes",
        "pretraining, dynamic graph": "yes",
        "converter": "yes",
        "pairs and embeddings": "yes",
        "export for Paddle": "yes",
        "export to ONNX": onnx,
        "int8": onnx,
        "fused kernels": f"no: {kernels}" if kernels else "yes",
        "GPUs": _gpus(),
    }


def _gpus() -> str:
    """Return how to get Paddle for GPUs: 3.3 is not on the package index, and all else stays as it is."""
    if training_extra() == "train":
        return "yes"
    of_3 = f"3.3 in an environment of its own with [train]: {PADDLENLP_COMMAND} && {FROM_INDEX}"
    return f"2.6.2 by {install_command('gpu')}; {of_3}"
