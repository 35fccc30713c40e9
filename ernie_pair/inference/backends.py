"""An exported model on ONNX Runtime or on Paddle Inference: ids in, logits out. Neither needs the other.

B batch, S sequence, C classes.
"""

from importlib.util import find_spec

import numpy as np

from data_tools.base.errors import CheckpointError, InputError
from data_tools.base.optional_import import import_optional
from ernie_pair.inference.exported_model import FILES_OF, ExportedModel

LIBRARY_OF = {"onnx": "onnxruntime", "paddle": "paddle", "onnx-int8": "onnxruntime"}
BACKEND_HELP = "auto: onnx where it is installed; onnx-int8: where it was exported with --quantize int8"


def open_backend(exported: ExportedModel, name: str, threads: int):
    """Open the model for ``name``: onnx, paddle, onnx-int8, or auto for the first exported and installed.

    ``threads``: of one forward pass. Raises InputError when there is none, CheckpointError when its files are
    damaged.
    """
    held = [each for each in FILES_OF if exported.holds(each)]
    if not held:
        raise CheckpointError(f"{exported.folder} holds no model; export it again")
    if name == "auto":
        name = next((each for each in held if find_spec(LIBRARY_OF[each])), held[0])
    if name not in held:
        raise InputError(f"{exported.folder} holds no model for {name}; pass --backend {held[0]}")
    return {"onnx": OnnxBackend, "paddle": PaddleBackend, "onnx-int8": Int8Backend}[name](exported, threads)


class OnnxBackend:
    """ONNX Runtime on the CPU. Raises CheckpointError when the file of the model is damaged."""

    name = "onnx"

    def __init__(self, exported: ExportedModel, threads: int):
        onnxruntime = import_optional("onnxruntime", "predict")
        (path,) = map(exported.file, FILES_OF[self.name])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        try:
            self._session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its own classes, which all derive from Exception alone
            raise CheckpointError(f"{path}: {_first_line(error)}; export the model again") from None

    def logits(self, input_ids: np.ndarray, token_type_ids: np.ndarray) -> np.ndarray:
        """Return the logits, float32 [B, C], of token ids and token types, int64 [B, S] each."""
        feed = {"input_ids": input_ids, "token_type_ids": token_type_ids}
        return self._session.run(["logits"], feed)[0]


class Int8Backend(OnnxBackend):
    """The ONNX model with int8 weights. Raises CheckpointError when its file is damaged."""

    name = "onnx-int8"


class PaddleBackend:
    """Paddle Inference on the CPU. Raises CheckpointError when the files of the model are damaged.

    Without oneDNN, which plans anew for every shape: 0.8 s for a base model against 0.04 s for its pass.
    """

    name = "paddle"

    def __init__(self, exported: ExportedModel, threads: int):
        inference = import_optional("paddle", "cpu").inference
        model, parameters = map(exported.file, FILES_OF[self.name])
        config = inference.Config(str(model), str(parameters))
        config.disable_gpu()
        config.disable_glog_info()
        config.set_cpu_math_library_num_threads(threads)
        config.enable_memory_optim()
        try:
            self._predictor = inference.create_predictor(config)
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(f"{model}: {_first_line(error)}; export the model again") from None
        self._inputs = [self._predictor.get_input_handle(n) for n in ("input_ids", "token_type_ids")]
        self._output = self._predictor.get_output_handle(self._predictor.get_output_names()[0])

    def logits(self, input_ids: np.ndarray, token_type_ids: np.ndarray) -> np.ndarray:
        """Return the logits, float32 [B, C], of token ids and token types, int64 [B, S] each."""
        for handle, array in zip(self._inputs, (input_ids, token_type_ids)):
            handle.copy_from_cpu(array)
        self._predictor.run()
        return self._output.copy_to_cpu()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:200]
