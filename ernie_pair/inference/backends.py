"""An exported model on ONNX Runtime or on Paddle Inference: ids in, logits out. Neither needs the other.

A GPU is one of those that CUDA_VISIBLE_DEVICES shows: Paddle Inference computes there in float32 or half
precision, as ONNX Runtime does with the file for a GPU; with that for a CPU in float32.
B batch, S sequence, C classes. ``rules`` of a backend says which batches suit it.
"""

import ctypes
import os
import re
from contextlib import contextmanager, nullcontext, redirect_stdout
from importlib.util import find_spec
from typing import Any, Iterator, List

import numpy as np

from ernie_pair.core.errors import CheckpointError, InputError, MachineError
from ernie_pair.core.installation import import_optional, install_command, version_of
from ernie_pair.inference.exported_model import FILES_OF, GPU, ExportedModel
from ernie_pair.inference.token_rows import BatchRules
from ernie_pair.runtime.cpu import check_bf16
from ernie_pair.runtime.gpu import number_of

LIBRARY_OF = {"onnx": "onnxruntime", "paddle": "paddle", "onnx-int8": "onnxruntime", GPU: "onnxruntime"}
MAX_TOKENS = 1024  # of a batch on a CPU: rows of one length have little padding
LENGTH_STEP, SHAPES_KEPT = 8, 8  # for Paddle Inference in bf16 on a CPU
STDERR, CPU_PROVIDER, CUDA_PROVIDER = 2, "CPUExecutionProvider", "CUDAExecutionProvider"
# Paddle Inference's names of precisions. Softmax and layer norm stay in float32 by its own rules.
PRECISION_TYPES = {"fp32": "Float32", "bf16": "Bfloat16", "fp16": "Half"}
FIRST_POOL_MB = 256  # that Paddle allocates at once on a GPU; it allocates more when needed
# All activations of a pass are kept: for 12 layers x 768 in float32 about 1 MB a token.
MAX_GPU_TOKENS = 4096
GPU_TOKENS = 32_768  # of a batch of ONNX Runtime, which keeps no activations
FULL = "Failed to allocate memory"  # ONNX Runtime's word for a card without room
# Its words for a card that cannot be used: without CUDA it looks for the operators of a card on the CPU.
NO_CARD = re.compile(r"CUDA|find (an implementation|kernel) for")
BACKEND_HELP = (
    "auto: onnx if it is installed, on a GPU onnx-gpu if it was exported; onnx-int8: if the model was "
    "exported with --quantize int8"
)
THREADS_HELP = "threads of one forward pass; 0: the number of cores of this process"
PRECISION_HELP = (
    "precision of matrix products with --backend paddle: bf16 or fp16 on a GPU; bf16 on a CPU with "
    "AVX512-BF16"
)


def open_backend(
    exported: ExportedModel, name: str, threads: int, precision: str = "fp32", device: str = "cpu"
):
    """Open the model for ``name``: one of FILES_OF, or auto for the first exported and installed.

    ``threads``: of one forward pass. ``precision``: fp32, or bf16, and on a GPU fp16, which only Paddle
    Inference supports; auto then is paddle. ``device``: cpu, gpu or gpu:N, for which auto is the first that
    can use one. Raises InputError for another precision, when there is no such model, or if the device lacks
    the precision; CheckpointError when its files are damaged.
    """
    if precision not in PRECISION_TYPES:
        raise InputError(
            f"--precision {precision} is not one of {', '.join(PRECISION_TYPES)}; use one of them"
        )
    there = [each for each in FILES_OF if exported.files_of(each)]
    name = _chosen(exported, name, there, precision, device)
    if name not in there:
        cure = f"pass --backend {there[0]}" if there else "export it again"
        if precision != "fp32":
            cure = f"--precision {precision} takes one; export it with --format both, or use --precision fp32"
        raise InputError(f"{exported.folder} holds no model for {name}; {cure}")
    if name == "paddle":
        return PaddleBackend(exported, threads, precision, device)
    return OnnxBackend(exported, threads, name, device=device)


def _chosen(exported: ExportedModel, name: str, there: List[str], precision: str, device: str) -> str:
    """Return the backend that ``name`` asks for, of auto the first one ``there`` that can be used."""
    if device == "cpu" and precision == "fp16":
        raise InputError("--precision fp16 needs --device gpu; use fp32, or bf16 with --backend paddle")
    if device != "cpu" and name == "onnx-int8":
        raise InputError("--backend onnx-int8 runs on the CPU; use --backend auto, or --device cpu")
    if device == "cpu" and name == GPU:
        raise InputError(f"--backend {GPU} is for a GPU; pass --device gpu, or --backend onnx")
    if precision != "fp32" and name not in ("auto", "paddle"):
        raise InputError(f"--precision {precision} is for --backend paddle, not {name}; leave it out")
    if device == "cpu" and precision == "bf16":
        check_bf16()
        return "paddle"
    if name != "auto":
        return name
    if device == "cpu":
        there = [each for each in there if each != GPU]
        return next((each for each in there if find_spec(LIBRARY_OF[each])), (there or ["onnx"])[0])
    installed = [each for each in there if find_spec(LIBRARY_OF[each])]
    onnxruntime = import_optional("onnxruntime") if "onnx" in installed else None
    has_cuda = onnxruntime and CUDA_PROVIDER in onnxruntime.get_available_providers()
    has_paddle = "paddle" in installed and import_optional("paddle").is_compiled_with_cuda()
    is_alone = "paddle" not in there  # ONNX: what lacks is said where it is opened
    if precision == "fp32" and (has_cuda or is_alone) and (GPU in there or not has_paddle):
        return GPU if GPU in there else "onnx"
    if has_paddle or is_alone:
        return "paddle"
    raise InputError(
        f"--device gpu, but nothing that {exported.folder} was exported for ({', '.join(there)}) has a "
        f"GPU here for --precision {precision}; {install_command('gpu')}, or pass --device cpu"
    )


class OnnxBackend:
    """ONNX Runtime. Raises CheckpointError when the file of the model is damaged, InputError without CUDA.

    ``name``: onnx, onnx-int8 for the file with int8 weights, or onnx-gpu for that of operators for a card;
    ``output``: what the file calls its answer; ``device``: cpu, gpu or gpu:N.
    """

    def __init__(
        self,
        exported: ExportedModel,
        threads: int,
        name: str = "onnx",
        output: str = "logits",
        device: str = "cpu",
    ):
        self.name, self.output = name, output
        self.where, self.rules = "cpu", BatchRules(MAX_TOKENS)
        onnxruntime = import_optional("onnxruntime", "" if device == "cpu" else "gpu-predict")
        (path,) = map(exported.file, exported.files_of(name))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        # Threads that wait for their part would spin: 16% more processor time with two threads.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        providers: List[Any] = [CPU_PROVIDER]
        if device != "cpu":
            number = str(number_of(device))
            self.where, self.rules = f"gpu:{number}, by CUDA", BatchRules(GPU_TOKENS, rows=GPU_TOKENS)
            _load_cuda(onnxruntime)
            # TF32 rounds the factors of products to 10 bits, which --precision fp32 must not do.
            providers.insert(0, (CUDA_PROVIDER, {"device_id": number, "use_tf32": "0"}))
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        except Exception as error:  # its own classes, which derive from Exception only
            if "tensor(bfloat16)" in str(error):
                cure = "update it to 1.24, or export the model with --precision fp16"
                raise InputError(f"ONNX Runtime {onnxruntime.__version__} lacks bfloat16; {cure}") from None
            if device != "cpu" and NO_CARD.search(str(error)):
                raise InputError(
                    f"--device {device}: {_last_line(error)}; {_why_no_cuda(onnxruntime)}"
                ) from None
            raise CheckpointError(f"{path}: {_last_line(error)}; export the model again") from None
        if device != "cpu" and self._session.get_providers()[0] != CUDA_PROVIDER:
            raise InputError(
                f"--device {device}: ONNX Runtime {onnxruntime.__version__} could not start CUDA there; "
                f"{_why_no_cuda(onnxruntime)}"
            )
        stated = self._session.get_modelmeta().custom_metadata_map.get("precision", "fp32")
        self.precision = "int8" if name == "onnx-int8" else stated

    def logits(self, input_ids: np.ndarray, token_type_ids: np.ndarray) -> np.ndarray:
        """Return the logits, float32 [B, C], of token ids and token types, int64 [B, S] each.

        Where the memory of a card has no room, half of the rows are asked at a time. Raises MachineError
        where it has none for one of them, and for whatever else fails on a card.
        """
        feed = {"input_ids": input_ids, "token_type_ids": token_type_ids}
        try:
            return self._session.run([self.output], feed)[0]
        except Exception as error:
            if FULL not in str(error):
                if self.where == "cpu" or isinstance(error, (TypeError, ValueError)):
                    raise
                cure = "see nvidia-smi, or pass --device cpu"
                raise MachineError(f"{self.where}: {_last_line(error)}; {cure}") from None
            if len(input_ids) == 1:
                rows, tokens = input_ids.shape
                raise MachineError(
                    f"{self.where}: no memory for {rows} row of {tokens} tokens; stop what else runs there, "
                    "or pass --device cpu"
                ) from None
            half = len(input_ids) // 2
            parts = (slice(half), slice(half, None))
            return np.concatenate([self.logits(input_ids[part], token_type_ids[part]) for part in parts])


def _load_cuda(onnxruntime: Any) -> None:
    """Load the libraries of CUDA that lie in wheels. Raises InputError for a build without CUDA."""
    if version_of("onnxruntime") and version_of("onnxruntime-gpu"):
        raise InputError(
            "--device gpu: onnxruntime and onnxruntime-gpu lie over each other; pip uninstall -y onnxruntime "
            f"onnxruntime-gpu, then {install_command('gpu-predict')}"
        )
    if CUDA_PROVIDER not in onnxruntime.get_available_providers():
        raise InputError(
            "--device gpu: this ONNX Runtime has no CUDA; pip uninstall -y onnxruntime, then "
            f"{install_command('gpu-predict')}, or pass --device cpu"
        )
    if hasattr(onnxruntime, "preload_dlls"):
        with _without_output():  # it prints what it does not find, which the session says better
            onnxruntime.preload_dlls()


def _why_no_cuda(onnxruntime: Any) -> str:
    """Return what to do where a build for CUDA does not start, and the libraries that are missing, if any."""
    version = str(getattr(onnxruntime, "cuda_version", ""))
    major, missing = version.partition(".")[0], []
    for name in (f"libcudart.so.{major}", f"libcublasLt.so.{major}", "libcudnn.so.9"):
        try:
            ctypes.CDLL(name)
        except OSError:
            missing.append(name)
    if missing:
        return f"{', '.join(missing)} is missing: {install_command('gpu-predict')}, or pass --device cpu"
    return f"it takes a driver for CUDA {version} and this GPU: see nvidia-smi, or pass --device cpu"


class PaddleBackend:
    """Paddle Inference, on a CPU by oneDNN.

    Raises CheckpointError when the files of the model are damaged, InputError without a GPU that can be used.

    oneDNN plans a product again for every shape. Its passes for fully connected layers would do so for 2 s
    per shape, and keep a copy of all weights for each (12 layers x 768: 340 MB): they are off, and float32
    needs no plan. In bf16 a new shape costs one to three passes, and the last SHAPES_KEPT keep their weights:
    so lengths and numbers of rows are rounded up to a few. Paddle Inference keeps every activation of a pass
    (1.3 MB a token there), which ``rules`` bounds.
    """

    name = "paddle"

    def __init__(self, exported: ExportedModel, threads: int, precision: str = "fp32", device: str = "cpu"):
        inference = import_optional("paddle").inference
        model, parameters = map(exported.file, exported.files_of(self.name))
        self.precision, self.where = precision, device
        config = inference.Config(str(model), str(parameters))
        config.disable_glog_info()
        config.set_cpu_math_library_num_threads(threads)
        self.rules = self._use_cpu(config) if device == "cpu" else self._use_gpu(config, inference)
        is_quiet = device == "cpu" and precision == "bf16"
        try:
            with _without_stderr() if is_quiet else nullcontext():
                self._predictor = inference.create_predictor(config)
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(f"{model}: {_last_line(error)}; export the model again") from None
        self._inputs = [self._predictor.get_input_handle(n) for n in ("input_ids", "token_type_ids")]
        self._output = self._predictor.get_output_handle(self._predictor.get_output_names()[0])

    def _use_cpu(self, config) -> BatchRules:
        config.disable_gpu()
        config.enable_mkldnn()
        config.disable_mkldnn_fc_passes()
        if self.precision == "fp32":
            return BatchRules(MAX_TOKENS)
        config.enable_mkldnn_bfloat16()
        config.set_mkldnn_cache_capacity(SHAPES_KEPT)
        return BatchRules(MAX_TOKENS, LENGTH_STEP, rounds_rows=True)

    def _use_gpu(self, config, inference) -> BatchRules:
        from ernie_pair.kernels.choice import DTYPES  # these need the libraries of training
        from ernie_pair.runtime.device import start_device
        from ernie_pair.runtime.gpu import check_gpu_capability, paddle_capability
        from ernie_pair.runtime.processes.world import World

        self.where, flag = start_device(self.where, World()), f"--precision {self.precision}"
        if self.precision != "fp32":
            check_gpu_capability(paddle_capability(), DTYPES[self.precision], flag, "use another precision")
        number = int(self.where.partition(",")[0].partition(":")[2])
        kind = getattr(inference.PrecisionType, PRECISION_TYPES[self.precision])
        config.enable_use_gpu(FIRST_POOL_MB, number, kind)
        return BatchRules(MAX_GPU_TOKENS)

    def logits(self, input_ids: np.ndarray, token_type_ids: np.ndarray) -> np.ndarray:
        """Return the logits, float32 [B, C], of token ids and token types, int64 [B, S] each."""
        for handle, array in zip(self._inputs, (input_ids, token_type_ids)):
            handle.copy_from_cpu(array)
        self._predictor.run()
        return self._output.copy_to_cpu()


@contextmanager
def _without_output() -> Iterator[None]:
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        yield


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Discard what C++ prints on stderr: disable_glog_info does not silence the passes for bfloat16."""
    kept, nowhere = os.dup(STDERR), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, STDERR)
        yield
    finally:
        os.dup2(kept, STDERR)
        os.close(kept)
        os.close(nowhere)


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:200]
