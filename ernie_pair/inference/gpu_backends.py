"""An exported model on a GPU: Paddle Inference in float32 or half precision, or ONNX Runtime in float32.

The GPU is the first one that CUDA_VISIBLE_DEVICES shows.
"""

from importlib.util import find_spec
from typing import Any, List

from data_tools.files.errors import InputError
from data_tools.files.installation import import_optional, install_command
from ernie_pair.inference.backends import CPU_PROVIDER, OnnxBackend, PaddleBackend, cure_of
from ernie_pair.inference.exported_model import ExportedModel
from ernie_pair.inference.token_rows import BatchRules
from ernie_pair.kernels.choice import DTYPES
from ernie_pair.runtime.device import start_device
from ernie_pair.runtime.gpu.builds import paddle_capability, refuse_old_gpu
from ernie_pair.runtime.processes.world import World

CUDA_PROVIDER = "CUDAExecutionProvider"
# Paddle Inference's names of precisions. Softmax and layer norm stay in float32 by its own rules.
PRECISION_TYPES = {"fp32": "Float32", "bf16": "Bfloat16", "fp16": "Half"}
FIRST_POOL_MB = 256  # that Paddle allocates at once; it allocates more when needed
# All activations of a pass are kept: for 12 layers x 768 in float32 about 1 MB a token.
MOST_TOKENS = 4096


def open_on_gpu(exported: ExportedModel, name: str, held: List[str], threads: int, precision: str):
    """Open the model for ``name``: onnx, paddle, or auto for the first that is exported and can use a GPU.

    ``held``: what the model was exported for. Raises InputError if the backend cannot run it, or the GPU.
    """
    if name == "auto":
        name = _choose(exported, held, precision)
    if name == "onnx-int8":
        raise InputError("--backend onnx-int8 runs on the CPU; use --backend paddle, or --device cpu")
    if precision != "fp32" and name != "paddle":
        raise InputError(f"--precision {precision} is for --backend paddle, not {name}; use --precision fp32")
    if name not in held:
        raise InputError(f"{exported.folder} holds no model for {name}; {cure_of(held[0], precision)}")
    return (GpuPaddleBackend if name == "paddle" else GpuOnnxBackend)(exported, threads, precision)


def _choose(exported: ExportedModel, held: List[str], precision: str) -> str:
    if "paddle" in held and _has_cuda_paddle():
        return "paddle"
    if "onnx" in held and precision == "fp32" and _has_cuda_onnxruntime():
        return "onnx"
    raise InputError(
        f"--device gpu, but nothing that {exported.folder} was exported for ({', '.join(held)}) has a GPU "
        f"here for --precision {precision}; {install_command('gpu')}, or pass --device cpu"
    )


def _has_cuda_paddle() -> bool:
    return bool(find_spec("paddle")) and import_optional("paddle", "gpu").is_compiled_with_cuda()


def _has_cuda_onnxruntime() -> bool:
    if not find_spec("onnxruntime"):
        return False
    return CUDA_PROVIDER in import_optional("onnxruntime", "predict").get_available_providers()


class GpuPaddleBackend(PaddleBackend):
    """Paddle Inference on a GPU. Raises InputError if there is none that it can use."""

    def _configure(self, config, inference, precision: str) -> BatchRules:
        self.where = start_device("gpu", World())
        if precision != "fp32":
            refuse_old_gpu(
                paddle_capability(), DTYPES[precision], f"--precision {precision}", "use another precision"
            )
        number = int(self.where.partition(",")[0].partition(":")[2])
        kind = getattr(inference.PrecisionType, PRECISION_TYPES[precision])
        config.enable_use_gpu(FIRST_POOL_MB, number, kind)
        return BatchRules(MOST_TOKENS)


class GpuOnnxBackend(OnnxBackend):
    """ONNX Runtime on a GPU, with CUDA. Raises InputError if its build, or its start, has no CUDA."""

    where = "gpu:0, by CUDA"

    def __init__(self, exported: ExportedModel, threads: int, precision: str = "fp32"):
        super().__init__(exported, threads)
        if self._session.get_providers()[0] != CUDA_PROVIDER:
            raise InputError(
                "--device gpu: ONNX Runtime could not start CUDA, of which it needs version 12 and cuDNN 9 "
                "(its own log says what is missing); install them, use --backend paddle, or pass --device cpu"
            )

    def _providers(self, onnxruntime) -> List[Any]:
        if CUDA_PROVIDER not in onnxruntime.get_available_providers():
            raise InputError(
                "--device gpu: this ONNX Runtime has no CUDA; pip uninstall onnxruntime && pip install "
                f"onnxruntime-gpu=={onnxruntime.__version__}, use --backend paddle, or pass --device cpu"
            )
        # TF32 rounds the factors of products to 10 bits, which --precision fp32 must not do.
        return [(CUDA_PROVIDER, {"device_id": "0", "use_tf32": "0"}), CPU_PROVIDER]
