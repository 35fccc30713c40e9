"""The model as a file of Paddle Inference, that as a file of ONNX, and that with int8 weights.

What `onnxruntime.quantization.quantize_dynamic` writes scales an activation by the range of its whole tensor:
by the other pairs of the batch, and by its padding. So an answer would depend on who asks at the same time.
Here each token has its scale, and the products are sums of whole numbers: a pair has the same answer in any
batch, as with the float model. (Measured, 4 layers x 312: 1.7 times as fast as float32, not 2.1 times.)
"""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Tuple, Union

import numpy as np
import paddle
from paddle import nn

from data_tools.text.folder_tokenizer import AnyTokenizer
from data_tools.text.wordpiece import CONTINUATION
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.core.installation import import_optional
from ernie_pair.deployment.pir_onnx import UntranslatedError, onnx_of_program
from ernie_pair.inference.exported_model import INT8_FILES, ONNX_FILES, PADDLE_FILES
from ernie_pair.inference.token_rows import Batch, encode_texts, evaluation_batches
from ernie_pair.models.networks.custom_model import CustomModel
from ernie_pair.models.networks.encoders import EncoderModel
from ernie_pair.models.spec import NO_MODEL
from ernie_pair.runtime.paddle_patches.static_programs import without_advice

OPSET = 17
INPUTS, OUTPUT = ("input_ids", "token_type_ids"), "logits"
# With 8 bits the sums of two products overflow in processors without VNNI, and answers differ between them.
SEVEN_BITS = True
LARGEST, ZERO = 127, 128  # activations are uint8, 128 + [-127, 127]
SMALLEST_SCALE = 1e-30  # of a row of zeros
MAX_DIFFERENCE = 1e-4
SHAPES = ((1, 5), (3, 17), (8, 64), (2, 512))  # rows, tokens; no longer than the model is asked for
NUM_PAIRS, PAIRS_PER_BATCH = 24, 6


def write_paddle(
    model: Union[EncoderModel, CustomModel], folder: Path, traced: Optional[nn.Layer] = None
) -> None:
    """Write PADDLE_FILES for any batch and length.

    ``model`` is a static one afterwards. ``traced``: a layer that makes something of what ``model`` answers;
    None: the model itself. Raises InputError for a person's own class that has no static graph in Paddle.
    """
    _drop_padding_ids(model)
    traced, is_layer = traced or model, isinstance(model, CustomModel)
    traced = traced if not is_layer and model.family_spec.takes_types else _AlsoTakesTypes(traced)
    shapes = [paddle.static.InputSpec([None, None], "int64", name) for name in INPUTS]
    prefix = folder / Path(PADDLE_FILES[0]).stem
    try:
        with without_advice():
            paddle.jit.save(paddle.jit.to_static(traced, input_spec=shapes, full_graph=True), str(prefix))
    except NO_MODEL as error:
        if not (is_layer or model.spec.model_class):
            raise
        reason = _cause_of(str(error))
        named = model.family if is_layer else f"--model_class {model.spec.model_class}"
        own = named if is_layer else type(model).__name__
        raise InputError(
            f"{named} has no static graph in Paddle ({reason}); write super({own}, self) in place of "
            "super(), and operations of tensors for those of Python"
        ) from None
    (folder / f"{PADDLE_FILES[1]}.info").unlink(missing_ok=True)  # for training on; nothing here reads it


def _cause_of(text: str) -> str:
    """Return the line that names the last error in ``text``, or its last line.

    Paddle shows the user's code around an error of tracing, and lines of advice after it.
    """
    lines = text.strip().splitlines()
    named = [line for line in lines if re.match(r"\s*\w*(Error|Exception): ", line)]
    return " ".join((named or lines)[-1].split())


class _AlsoTakesTypes(nn.Layer):
    """A model made to use its token types: Paddle drops an unused input, and every export is to have both."""

    def __init__(self, model: nn.Layer):
        super().__init__()
        self.model = model

    def forward(self, input_ids, token_type_ids):
        """Return the logits [B, C] of the model of ids and token types int64 [B, S]."""
        logits_BC = self.model(input_ids, token_type_ids)
        return logits_BC + (token_type_ids[:, :1] * 0).astype(logits_BC.dtype)


def _drop_padding_ids(model: nn.Layer) -> None:
    """Make each embedding a table of what it answers: for a padding id ONNX multiplies by a second one."""
    for layer in list(model.sublayers()):
        for name, embedding in list(layer.named_children()):
            if isinstance(embedding, nn.Embedding):
                num_ids, width = embedding.weight.shape
                table = nn.Embedding(num_ids, width)
                with paddle.no_grad():
                    table.weight.set_value(embedding(paddle.arange(num_ids)))
                setattr(layer, name, table)


def write_onnx(folder: Path, output: str = OUTPUT) -> None:
    """Write ONNX_FILES from what `write_paddle` has written into the same folder.

    ``output``: what its answer is called. Raises InputError when it cannot be done.

    No operators are fused here: ONNX Runtime fuses bias and GELU on its own when it loads the file. With
    SkipLayerNormalization and EmbedLayerNormalization fused besides by its transformers optimizer, asking
    2,048 pairs of similar length by 4 layers x 312 takes 0 to 2% less processor time on one core and 0 to 2%
    more on two; with Attention (once the scale of the queries and the mask are rewritten as it expects them)
    0 to 2% less on one. 74 to 90% are products, and the file would run on ONNX Runtime alone.
    """
    import onnx

    model = translated(folder, output)
    onnx.checker.check_model(model)
    (folder / ONNX_FILES[0]).write_bytes(model.SerializeToString())


def translated(folder: Path, output: str) -> Any:
    """Return the `onnx.ModelProto` of what `write_paddle` has written into ``folder``; see `write_onnx`."""
    model = _translation(folder)
    _name_the_ends(model.graph, output)
    return model


def _translation(folder: Path) -> Any:
    import onnx

    try:
        return onnx_of_program(folder / Path(PADDLE_FILES[0]).stem, OPSET)
    except UntranslatedError as error:
        if find_spec("paddle2onnx") is None:
            raise InputError(
                f"no translation to ONNX of {error} in this model; pass --format paddle, or pip install "
                "'paddle2onnx>=2.1', which has wheels for Python up to 3.12"
            ) from None
    paddle2onnx = import_optional("paddle2onnx")
    sources = [str(folder / name) for name in PADDLE_FILES]
    content = paddle2onnx.export(*sources, opset_version=OPSET, verbose=False)
    if not content:
        raise InputError("paddle2onnx cannot express this model in ONNX; pass --format paddle")
    return onnx.load_from_string(content)


def _name_the_ends(graph, called: str) -> None:
    """Name the output and the open dimensions, which Paddle calls by its last operation and by numbers."""
    (output,) = graph.output
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [called if name == output.name else name for name in names]
    output.name = called
    for value, axes in (*((value, ("batch", "length")) for value in graph.input), (output, ("batch",))):
        for dimension, axis in zip(value.type.tensor_type.shape.dim, axes):
            dimension.dim_param = axis


def write_int8(folder: Path) -> None:
    """Write INT8_FILES from ONNX_FILES beside them. Raises InputError if no product can be quantized."""
    import onnx

    quantization = import_optional("onnxruntime.quantization")
    path = folder / INT8_FILES[0]
    model = onnx.load(str(folder / ONNX_FILES[0]))
    _lift_constants(model.graph)
    quantization.quant_utils.add_pre_process_metadata(model)  # or it warns that a model may need such steps
    quantization.quantize_dynamic(
        model,
        path,
        op_types_to_quantize=["MatMul", "Gemm"],
        per_channel=True,
        reduce_range=SEVEN_BITS,
        weight_type=quantization.QuantType.QInt8,
    )
    model = onnx.load(str(path))
    if not _scale_rows(model.graph):
        raise InputError("the model has no product to quantize; export it without --quantize int8")
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())


def _lift_constants(graph) -> None:
    """Make initializers of the Constant nodes: the weights of any other node are left as they are."""
    for node in [node for node in graph.node if node.op_type == "Constant"]:
        tensor = node.attribute[0].t
        tensor.name = node.output[0]
        graph.initializer.append(tensor)
        graph.node.remove(node)


def _scale_rows(graph) -> int:
    """Give each row of each quantized activation its own scale. Return how many activations there are.

    The library multiplies the scales of rows and weights first, and then the sums by both. Of that, and the
    bias behind it, ONNX Runtime 1.19 makes one operator, which with a scale for each row multiplies the bias
    by it too: the answers would be wrong. So the sums are multiplied by one after the other.
    """
    from onnx import numpy_helper
    from onnx.helper import make_node

    constants: Dict[str, np.ndarray] = {
        "int8_share": np.array(1 / LARGEST, np.float32),
        "int8_least": np.array(SMALLEST_SCALE, np.float32),
        "int8_one": np.array(1, np.float32),
        "int8_zero": np.array(ZERO, np.uint8),
    }
    nodes: List = []
    zeros: Dict[str, str] = {}
    row_scales: Set[str] = set()
    products: Dict[str, Tuple[str, str]] = {}  # of the scale of an activation and that of its weights
    for node in graph.node:
        scales = [name for name in node.input if name in row_scales]
        product = next((name for name in node.input if name in products), None)
        if node.op_type == "DynamicQuantizeLinear":
            zeros[node.output[2]] = "int8_zero"
            row_scales.add(node.output[1])
            nodes += _row_nodes(node.input[0], node.output[0], node.output[1])
        elif scales:
            (of_weights,) = set(node.input) - row_scales
            products[node.output[0]] = (scales[0], of_weights)
        elif product is not None:
            (sums,), (of_rows, of_weights) = set(node.input) - {product}, products[product]
            unscaled = f"{node.output[0]}.unscaled"
            nodes.append(make_node("Mul", [sums, of_weights], [unscaled]))
            nodes.append(make_node("Mul", [unscaled, of_rows], [node.output[0]]))
        else:
            nodes.append(node)
    for node in nodes:
        node.input[:] = [zeros.get(name, name) for name in node.input]
    kept = [type(node).FromString(node.SerializeToString()) for node in nodes]  # they go with the list
    del graph.node[:]
    graph.node.extend(kept)
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    return len(zeros)


def _row_nodes(activation: str, quantized: str, scale: str) -> List:
    """Return the nodes for ``scale`` = max(abs(row)) / 127 and ``quantized`` = 128 + round(row / scale)."""
    from onnx.helper import make_node

    most, least, opposite, largest, share, divided = (
        f"{activation}.{part}" for part in ("most", "least", "opposite", "largest", "share", "divided")
    )
    return [
        make_node("ReduceMax", [activation], [most], axes=[-1]),
        make_node("ReduceMin", [activation], [least], axes=[-1]),
        make_node("Neg", [least], [opposite]),
        make_node("Max", [most, opposite], [largest]),
        make_node("Mul", [largest, "int8_share"], [share]),
        make_node("Max", [share, "int8_least"], [scale]),
        make_node("Div", [activation, scale], [divided]),
        make_node("QuantizeLinear", [divided, "int8_one", "int8_zero"], [quantized]),
    ]


def parity_batches(tokenizer: AnyTokenizer, max_seq_len: int) -> List[Batch]:
    """Return batches of several lengths: random ids with padding, and texts, some longer than fits."""
    rng, batches = np.random.default_rng(0), []
    for count, longest in SHAPES:
        length = min(longest, max_seq_len)
        kept = rng.integers(2, length + 1, count)
        kept[0] = length
        inside = np.arange(length) < kept[:, None]
        ids, types = (rng.integers(0, most, (count, length)) for most in (tokenizer.vocab_size, 2))
        batches.append(Batch(np.where(inside, ids, tokenizer.pad_id), np.where(inside, types, 0), None))
    left, right = random_texts(rng, tokenizer, max_seq_len, NUM_PAIRS)
    rows = encode_texts(left, right, None, tokenizer, max_seq_len)
    return batches + [rows.batch(picked) for picked in evaluation_batches(rows.lengths, PAIRS_PER_BATCH)]


def random_texts(
    rng: np.random.Generator, tokenizer: AnyTokenizer, longest: int, count: int
) -> Tuple[List[str], List[str]]:
    """Return ``count`` left and right texts of random tokens, up to ``longest`` of them in each."""
    words = [token for token in tokenizer.tokens if not token.startswith(("[", CONTINUATION))]
    sizes = (rng.integers(1, longest + 1, count) for _ in "ab")
    left, right = (["".join(rng.choice(words, size)) for size in of_side] for of_side in sizes)
    return left, right


def compute_answers(model: nn.Layer, batches: List[Batch]) -> List[np.ndarray]:
    """Return the logits, or what it answers, of the dynamic model, float32 [B, C] of each batch."""
    model.eval()
    with paddle.no_grad():
        return [model(*map(paddle.to_tensor, batch[:2])).numpy() for batch in batches]


def largest_difference(backend, batches: List[Batch], expected: List[np.ndarray]) -> float:
    """Return the largest difference of any logit of any batch from ``expected``, float32 [B, C] each.

    Raises CheckpointError when it is above 1e-4 or no number, or when the exported model does not run.
    """
    try:
        answers = [backend.logits(batch.input_ids, batch.token_type_ids) for batch in batches]
    except (RuntimeError, ValueError) as error:  # of Paddle Inference
        reason = " ".join((str(error).strip().splitlines() or [""])[0].split())[:150]
        raise CheckpointError(
            f"the {backend.name} model does not run ({reason}): nothing is exported; pass another --format"
        ) from None
    worst = float(np.max([np.abs(answer - wanted).max() for answer, wanted in zip(answers, expected)]))
    if not worst <= MAX_DIFFERENCE:
        raise CheckpointError(
            f"the {backend.name} model differs from the trained one by {worst:.3g}, more than "
            f"{MAX_DIFFERENCE}: nothing is exported; export with the tested versions (constraints.txt)"
        )
    return worst
