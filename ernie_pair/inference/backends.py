"""An exported model on ONNX Runtime or on Paddle Inference: ids in, logits out. Neither needs the other.

A GPU is the first one that CUDA_VISIBLE_DEVICES shows: Paddle Inference computes there in float32 or half
precision, ONNX Runtime in float32.
B batch, S sequence, C classes. ``rules`` of a backend says which batches suit it.
"""

import os
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from typing import Any, Iterator, List

import numpy as np

from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.core.installation import import_optional, install_command
from ernie_pair.inference.exported_model import FILES_OF, ExportedModel
from ernie_pair.inference.token_rows import BatchRules
from ernie_pair.runtime.cpu import check_bf16

LIBRARY_OF = {"onnx": "onnxruntime", "paddle": "paddle", "onnx-int8": "onnxruntime"}
MAX_TOKENS = 1024  # of a batch on a CPU: rows of one length have little padding
LENGTH_STEP, SHAPES_KEPT = 8, 8  # for Paddle Inference in bf16 on a CPU
STDERR, CPU_PROVIDER, CUDA_PROVIDER = 2, "CPUExecutionProvider", "CUDAExecutionProvider"
# Paddle Inference's names of precisions. Softmax and layer norm stay in float32 by its own rules.
PRECISION_TYPES = {"fp32": "Float32", "bf16": "Bfloat16", "fp16": "Half"}
FIRST_POOL_MB = 256  # that Paddle allocates at once on a GPU; it allocates more when needed
# All activations of a pass are kept: for 12 layers x 768 in float32 about 1 MB a token.
MAX_GPU_TOKENS = 4096
BACKEND_HELP = "auto: onnx if it is installed; onnx-int8: if the model was exported with --quantize int8"
THREADS_HELP = "threads of one forward pass; 0: the number of cores of this process"
PRECISION_HELP = (
    "precision of matrix products with --backend paddle: bf16 or fp16 on a GPU; bf16 on a CPU with "
    "AVX512-BF16"
)


def open_backend(
    exported: ExportedModel, name: str, threads: int, precision: str = "fp32", device: str = "cpu"
):
    """Open the model for ``name``: onnx, paddle, onnx-int8, or auto for the first exported and installed.

    ``threads``: of one forward pass. ``precision``: fp32, or bf16, and on a GPU fp16, which only Paddle
    Inference supports; auto then is paddle. ``device``: cpu or gpu, for which auto is the first that can use
    one. Raises InputError for another precision, when there is no such model, or if the device lacks the
    precision; CheckpointError when its files are damaged.
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
    if device == "gpu" and name == "onnx-int8":
        raise InputError("--backend onnx-int8 runs on the CPU; use --backend paddle, or --device cpu")
    if precision != "fp32" and name not in ("auto", "paddle"):
        raise InputError(f"--precision {precision} is for --backend paddle, not {name}; use --precision fp32")
    if device == "cpu" and precision == "bf16":
        check_bf16()
        return "paddle"
    if name != "auto":
        return name
    if device == "cpu":
        return next((each for each in there if find_spec(LIBRARY_OF[each])), (there or ["onnx"])[0])
    installed = [each for each in there if find_spec(LIBRARY_OF[each])]
    if "paddle" in installed and import_optional("paddle").is_compiled_with_cuda():
        return "paddle"
    onnxruntime = import_optional("onnxruntime") if "onnx" in installed else None
    if precision == "fp32" and onnxruntime and CUDA_PROVIDER in onnxruntime.get_available_providers():
        return "onnx"
    raise InputError(
        f"--device gpu, but nothing that {exported.folder} was exported for ({', '.join(there)}) has a "
        f"GPU here for --precision {precision}; {install_command('gpu')}, or pass --device cpu"
    )


class OnnxBackend:
    """ONNX Runtime. Raises CheckpointError when the file of the model is damaged, InputError without CUDA.

    ``name``: onnx, or onnx-int8 for the file with int8 weights; ``output``: what the file calls its answer.
    """

    def __init__(
        self,
        exported: ExportedModel,
        threads: int,
        name: str = "onnx",
        output: str = "logits",
        device: str = "cpu",
    ):
        self.name, self.precision, self.output = name, "int8" if name == "onnx-int8" else "fp32", output
        self.where = "cpu" if device == "cpu" else "gpu:0, by CUDA"
        self.rules = BatchRules(MAX_TOKENS if device == "cpu" else 0)
        onnxruntime = import_optional("onnxruntime")
        (path,) = map(exported.file, exported.files_of(name))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        # Threads that wait for their part would spin: 16% more processor time with two threads.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        providers: List[Any] = [CPU_PROVIDER]
        if device == "gpu":
            if CUDA_PROVIDER not in onnxruntime.get_available_providers():
                raise InputError(
                    "--device gpu: this ONNX Runtime has no CUDA; pip uninstall onnxruntime && pip install "
                    f"onnxruntime-gpu=={onnxruntime.__version__}, use --backend paddle, or pass --device cpu"
                )
            # TF32 rounds the factors of products to 10 bits, which --precision fp32 must not do.
            providers.insert(0, (CUDA_PROVIDER, {"device_id": "0", "use_tf32": "0"}))
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        except Exception as error:  # its own classes, which derive from Exception only
            raise CheckpointError(f"{path}: {_last_line(error)}; export the model again") from None
        if device == "gpu" and self._session.get_providers()[0] != CUDA_PROVIDER:
            raise InputError(
                "--device gpu: ONNX Runtime could not start CUDA, of which it needs version 12 and cuDNN 9 "
                "(its own log says what is missing); install them, use --backend paddle, or pass --device cpu"
            )

    def logits(self, input_ids: np.ndarray, token_type_ids: np.ndarray) -> np.ndarray:
        """Return the logits, float32 [B, C], of token ids and token types, int64 [B, S] each."""
        feed = {"input_ids": input_ids, "token_type_ids": token_type_ids}
        return self._session.run([self.output], feed)[0]


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
        self.rules = self._use_gpu(config, inference) if device == "gpu" else self._use_cpu(config)
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

        self.where, flag = start_device("gpu", World()), f"--precision {self.precision}"
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
