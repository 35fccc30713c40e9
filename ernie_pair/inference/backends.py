"""An exported model on ONNX Runtime or on Paddle Inference, on the CPU: ids in, logits out.

Neither needs the other; `gpu_backends` has those for GPUs.

B batch, S sequence, C classes. ``rules`` of a backend says which batches suit it.
"""

import os
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from typing import Any, Iterator, List

import numpy as np

from data_tools.files.errors import CheckpointError, InputError
from data_tools.files.installation import import_optional
from ernie_pair.inference.exported_model import FILES_OF, ExportedModel
from ernie_pair.inference.token_rows import BatchRules
from ernie_pair.runtime.cpu import refuse_no_bf16

LIBRARY_OF = {"onnx": "onnxruntime", "paddle": "paddle", "onnx-int8": "onnxruntime"}
MOST_TOKENS, LENGTH_STEP, SHAPES_KEPT = 1024, 8, 8  # for Paddle Inference; the last two in bf16
STDERR, CPU_PROVIDER = 2, "CPUExecutionProvider"
BACKEND_HELP = "auto: onnx if it is installed; onnx-int8: if the model was exported with --quantize int8"
THREADS_HELP = "threads of one forward pass; 0: the number of cores of this process"
PRECISION_HELP = (
    "precision of matrix products with --backend paddle: bf16 or fp16 on a GPU; bf16 on a CPU with "
    "AVX512-BF16"
)


PRECISIONS = ("fp32", "bf16", "fp16")


def open_backend(
    exported: ExportedModel, name: str, threads: int, precision: str = "fp32", device: str = "cpu"
):
    """Open the model for ``name``: onnx, paddle, onnx-int8, or auto for the first exported and installed.

    ``threads``: of one forward pass. ``precision``: fp32, or bf16, and on a GPU fp16, which only Paddle
    Inference supports; auto then is paddle. ``device``: cpu or gpu. Raises InputError for another precision,
    when there is no such model, or if the device lacks the precision; CheckpointError when its files are
    damaged.
    """
    if precision not in PRECISIONS:
        raise InputError(f"--precision {precision} is not one of {', '.join(PRECISIONS)}; use one of them")
    held = [each for each in FILES_OF if exported.holds(each)]
    if not held:
        raise CheckpointError(f"{exported.folder} holds no model; export it again")
    if device == "gpu":
        from ernie_pair.inference.gpu_backends import open_on_gpu  # whose backends derive from these

        return open_on_gpu(exported, name, held, threads, precision)
    if precision == "fp16":
        raise InputError("--precision fp16 needs --device gpu; use fp32, or bf16 with --backend paddle")
    if precision == "bf16":
        name = _bf16_backend(name)
        refuse_no_bf16()
    if name == "auto":
        name = next((each for each in held if find_spec(LIBRARY_OF[each])), held[0])
    if name not in held:
        raise InputError(f"{exported.folder} holds no model for {name}; {cure_of(held[0], precision)}")
    if name == "paddle":
        return PaddleBackend(exported, threads, precision)
    return {"onnx": OnnxBackend, "onnx-int8": Int8Backend}[name](exported, threads)


def _bf16_backend(name: str) -> str:
    """Return paddle, which computes in bf16. Raises InputError when another backend is requested."""
    if name not in ("auto", "paddle"):
        raise InputError(f"--precision bf16 is for --backend paddle, not {name}; use --precision fp32")
    return "paddle"


def cure_of(held: str, precision: str) -> str:
    """Return what to do if the model was exported not for Paddle Inference, but for ``held``."""
    if precision != "fp32":
        return f"--precision {precision} takes one; export it with --format both, or use --precision fp32"
    return f"pass --backend {held}"


class OnnxBackend:
    """ONNX Runtime on the CPU. Raises CheckpointError when the file of the model is damaged."""

    name, precision, where = "onnx", "fp32", "cpu"
    output = "logits"  # of the file; other kinds of models have another name
    rules = BatchRules()

    def __init__(self, exported: ExportedModel, threads: int):
        onnxruntime = import_optional("onnxruntime", "predict")
        (path,) = map(exported.file, FILES_OF[self.name])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        # Threads that wait for their part would spin: 16% more processor time with two threads.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = onnxruntime.InferenceSession(
                str(path), options, providers=self._providers(onnxruntime)
            )
        except InputError:
            raise
        except Exception as error:  # its own classes, which derive from Exception only
            raise CheckpointError(f"{path}: {_first_line(error)}; export the model again") from None

    def _providers(self, onnxruntime) -> List[Any]:
        """Return the execution providers, in the order of preference."""
        return [CPU_PROVIDER]

    def logits(self, input_ids: np.ndarray, token_type_ids: np.ndarray) -> np.ndarray:
        """Return the logits, float32 [B, C], of token ids and token types, int64 [B, S] each."""
        feed = {"input_ids": input_ids, "token_type_ids": token_type_ids}
        return self._session.run([self.output], feed)[0]


class Int8Backend(OnnxBackend):
    """The ONNX model with int8 weights. Raises CheckpointError when its file is damaged."""

    name, precision = "onnx-int8", "int8"


class PaddleBackend:
    """Paddle Inference on the CPU, by oneDNN. Raises CheckpointError when the files of the model are damaged.

    oneDNN plans a product again for every shape. Its passes for fully connected layers would do so for 2 s
    per shape, and keep a copy of all weights for each (12 layers x 768: 340 MB): they are off, and float32
    needs no plan. In bf16 a new shape costs one to three passes, and the last SHAPES_KEPT keep their weights:
    so lengths and numbers of rows are rounded up to a few. Paddle Inference keeps every activation of a pass
    (1.3 MB a token there), which ``rules`` bounds.
    """

    name, where = "paddle", "cpu"

    def __init__(self, exported: ExportedModel, threads: int, precision: str = "fp32"):
        inference = import_optional("paddle", "cpu").inference
        model, parameters = map(exported.file, FILES_OF[self.name])
        self.precision = precision
        config = inference.Config(str(model), str(parameters))
        config.disable_glog_info()
        config.set_cpu_math_library_num_threads(threads)
        config.enable_memory_optim()
        self.rules = self._configure(config, inference, precision)
        try:
            with _without_stderr() if precision == "bf16" else nullcontext():
                self._predictor = inference.create_predictor(config)
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(f"{model}: {_first_line(error)}; export the model again") from None
        self._inputs = [self._predictor.get_input_handle(n) for n in ("input_ids", "token_type_ids")]
        self._output = self._predictor.get_output_handle(self._predictor.get_output_names()[0])

    def _configure(self, config, inference, precision: str) -> BatchRules:
        """Choose the device in ``config``, and return which batches suit it."""
        config.disable_gpu()
        config.enable_mkldnn()
        config.disable_mkldnn_fc_passes()
        if precision == "fp32":
            return BatchRules(MOST_TOKENS)
        config.enable_mkldnn_bfloat16()
        config.set_mkldnn_cache_capacity(SHAPES_KEPT)
        return BatchRules(MOST_TOKENS, LENGTH_STEP, rounds_rows=True)

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


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:200]
