"""The model as a file of ONNX for cards: its encoder layers are fused operators of ONNX Runtime.

The program is traced with a mark in the place of its layers, translated as that for a CPU is, and the mark is
replaced. Embeddings, pooling, heads and match embeddings stay in float32 as they are; of 12 layers x 768 they
take 2 % of the products. Rows come with padding; short or uneven ones are computed without it. As in
`is_token_in`, a row ends behind its last token that is no padding.
The operators: github.com/microsoft/onnxruntime, docs/ContribOperators.md.
"""

import copy
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Dict, Iterator, List, Optional, Sequence

import numpy as np
import paddle
from paddle import nn

from ernie_pair.core.errors import InputError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.deployment.formats import OUTPUT, largest_difference, translated, write_paddle
from ernie_pair.inference.backends import OnnxBackend
from ernie_pair.inference.exported_model import GPU, GPU_FILES, ExportedModel
from ernie_pair.inference.token_rows import Batch
from ernie_pair.runtime.paddle_patches.layers import epsilon_of, gelu_new, runs_its_class, set_forward

MARK = "Asinh"  # an operator that no encoder has
FUSED = "com.microsoft"
# Of a model card.
ON_A_GPU = {"on a GPU": f"--device gpu asks {GPU_FILES[0]}; it takes the extra gpu-predict"}
PADDED, PACKED, EITHER = "padded", "packed", "either"
# On an H200 rows of more tokens are faster with padding, unless that is more than a fifth of a batch.
PACKED_LENGTH, FULL_PARTS = 112, (5, 4)


class GpuGraph:
    """A model with a mark in the place of its encoder layers, to be written for cards in any precision.

    ``traced``: a layer that makes something of what ``model`` answers, None: the model itself; ``output``:
    what its answer is called. Raises InputError for layers that no fused operators compute, and for texts
    that are read alone.
    """

    def __init__(self, model: Any, traced: Optional[nn.Layer] = None, output: str = OUTPUT):
        self.layers, self.pad_id, self.output = model.layers(), model.spec.pad_id, output
        if not self.layers:
            raise InputError(
                "--format onnx-gpu: the layers of a model of your own are unknown; pass --format onnx"
            )
        if getattr(model, "pooling", "") == "cosine":
            raise InputError(
                "--format onnx-gpu: its layers are given the rows of pairs, and --pooling cosine reads each "
                "text alone; pass --format onnx"
            )
        with TemporaryDirectory() as folder, marked_layers(self.layers):
            write_paddle(model, Path(folder), traced)
            self._marked = translated(Path(folder), output)

    def write(self, folder: Path, precision: str, rows: str = EITHER, casts: bool = False) -> None:
        """Write GPU_FILES; see `fuse_layers`."""
        import onnx

        fused = fuse_layers(copy.deepcopy(self._marked), self.layers, self.pad_id, precision, rows, casts)
        onnx.checker.check_model(fused)
        (folder / GPU_FILES[0]).write_bytes(fused.SerializeToString())

    def difference(self, batches: List[Batch], expected: List[np.ndarray], threads: int) -> float:
        """Return the `largest_difference` of the file in float32, on a CPU, from what is ``expected``."""
        with self.twin("fp32", threads) as twin:
            return largest_difference(twin, batches, expected)

    @contextmanager
    def twin(self, precision: str, threads: int) -> Iterator[OnnxBackend]:
        """Open what a CPU can compute of the file: with padding, in float32, rounded to ``precision``."""
        with TemporaryDirectory() as name:
            folder = Path(name)
            self.write(folder, precision, PADDED, casts=True)
            files = {GPU_FILES[0]: sha256_of_file(folder / GPU_FILES[0])}
            yield OnnxBackend(ExportedModel(folder, (), 0, 1.0, files), threads, GPU, self.output)


class _Marked:
    """Stands in for a layer: the first one marks its input, the others give back theirs."""

    def __init__(self, is_first: bool):
        self.is_first = is_first

    def __call__(self, states_BSD, *unused: Any, **more: Any):
        return paddle.asinh(states_BSD) if self.is_first else states_BSD

    def for_first_token(self, alone: Any):
        """Return what computes the last layer for the first token alone, see `FirstTokenAlone`."""
        return lambda states_BSD, *unused, **more: self(states_BSD)[:, :1]


@contextmanager
def marked_layers(layers: Sequence[nn.Layer]) -> Iterator[None]:
    """Trace an encoder with a mark in the place of ``layers``. Raises InputError for other kinds."""
    for layer in layers:
        _activation_of(layer)
    try:
        for number, layer in enumerate(layers):
            set_forward(layer, _Marked(number == 0))
        yield
    finally:
        for layer in layers:
            set_forward(layer, None)


def _activation_of(layer: nn.Layer) -> str:
    """Return the operator of the activation of ``layer``. Raises InputError if there is none."""
    is_usual = runs_its_class(layer, nn.TransformerEncoderLayer) and not layer.normalize_before
    if not is_usual or type(layer.self_attn) is not nn.MultiHeadAttention:
        raise InputError(
            f"--format onnx-gpu: no fused operators compute its layers ({type(layer).__name__}: they have "
            "relative positions, share weights or normalize first); pass --format onnx"
        )
    names = {nn.functional.gelu: "BiasGelu", gelu_new: "FastGelu", nn.functional.relu: "Relu"}
    if layer.activation not in names:
        raise InputError(
            f"--format onnx-gpu: no operator has its activation, {layer.activation.__name__}; pass "
            "--format onnx"
        )
    return names[layer.activation]


def fuse_layers(
    model: Any,
    layers: Sequence[nn.Layer],
    pad_id: int,
    precision: str,
    rows: str = EITHER,
    casts: bool = False,
) -> Any:
    """Return ``model``, an `onnx.ModelProto` with the mark, with ``layers`` in its place.

    ``precision``: fp16, bf16 or fp32, of the layers' weights and of what they are given. ``rows``: PADDED
    [B, S, D], PACKED [T, D], or EITHER, chosen batch by batch; of bf16, which no operator packs, PADDED.
    ``casts``: compute in float32, of numbers that are rounded to ``precision``, which a CPU can do.
    """
    from onnx import helper

    graph = model.graph
    (mark,) = [node for node in graph.node if node.op_type == MARK]
    place = list(graph.node).index(mark)
    build = _Build(graph, precision, casts)
    lengths = build.lengths_of("input_ids", pad_id)
    states = build.rounded(build.node("Cast", mark.input[0], to=build.dtype))
    weights = [build.weights_of(layer, number) for number, layer in enumerate(layers)]
    ways = {PADDED: build.padded, PACKED: build.packed}
    if rows == EITHER and precision != "bf16":
        answer = build.either(states, lengths, weights)
    else:
        answer = ways.get(rows, build.padded)(states, lengths, weights)
    build.node("Cast", answer, to=1, output=mark.output[0])
    after = list(graph.node)[place + 1 :]
    del graph.node[place:]
    graph.node.extend([*build.nodes, *after])
    model.opset_import.append(helper.make_opsetid(FUSED, 1))
    model.metadata_props.add(key="precision", value=precision)
    return model


class _Build:
    """Nodes of a graph in the making; what is computed is named."""

    def __init__(self, graph: Any, precision: str, casts: bool):
        from onnx import TensorProto

        self.graph, self.count = graph, 0
        self.nodes: List[Any] = []
        types = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
        self.stored = types[precision]
        self.dtype = TensorProto.FLOAT if casts else self.stored

    def node(self, kind: str, *inputs: str, outputs: int = 1, output: str = "", **attributes: Any) -> Any:
        """Add a node, and return the name of its output, or of its ``outputs``."""
        from onnx import helper

        self.count += 1
        names = [output or f"{kind}.{self.count}.{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names if outputs > 1 else names[0]

    def fused(self, kind: str, *inputs: str, **attributes: Any) -> Any:
        found = self.node(kind, *inputs, domain=FUSED, **attributes)
        return self.rounded(found) if isinstance(found, str) else found

    def product(self, *inputs: str) -> str:
        return self.rounded(self.node("MatMul", *inputs))

    def rounded(self, name: str) -> str:
        """Return ``name``, and if float32 stands for a lower precision, what that would have kept of it."""
        if self.dtype == self.stored:
            return name
        return self.node("Cast", self.node("Cast", name, to=self.stored), to=self.dtype)

    def number(self, value: Any, dtype: Any = np.int64) -> str:
        """Return the name of a constant."""
        from onnx import numpy_helper

        self.count += 1
        name = f"number.{self.count}"
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, name: str, array: np.ndarray) -> str:
        """Return the name of a weight in the precision of the layers."""
        from onnx import helper

        self.graph.initializer.append(helper.make_tensor(name, self.stored, array.shape, array.ravel()))
        return name if self.dtype == self.stored else self.node("Cast", name, to=self.dtype)

    def lengths_of(self, ids: str, pad_id: int) -> str:
        """Return the tokens of each row, int32 [B]: up to the last one that is no padding."""
        is_token = self.node("Not", self.node("Equal", ids, self.number(pad_id)))
        size = self.node("Gather", self.node("Shape", ids), self.number(1))
        places = self.node("Range", self.number(1), self.node("Add", size, self.number(1)), self.number(1))
        last = self.node("Where", is_token, places, self.number(0))
        return self.node("Cast", self.node("ReduceMax", last, axes=[1], keepdims=0), to=6)

    def weights_of(self, layer: nn.Layer, number: int) -> Dict[str, Any]:
        """Add the weights of ``layer``; return their names, its heads, epsilons and activation."""
        attention, heads = layer.self_attn, layer.self_attn.num_heads
        parts = [attention.q_proj, attention.k_proj, attention.v_proj]
        width, prefix = attention.embed_dim, f"layer.{number}."
        names: Dict[str, Any] = {"heads": heads, "size": width // heads}
        for name, arrays, rows in (
            ("qkv", [part.weight.numpy() for part in parts], [width]),
            ("qkv_bias", [part.bias.numpy() for part in parts], []),
        ):
            names[name] = self.weight(f"{prefix}{name}", np.concatenate(arrays, axis=-1))
            # Packed rows are asked for head by head: query, key and value of each.
            parts_of_heads = self.number([*rows, 3, heads, width // heads])
            turned = self.node("Reshape", names[name], parts_of_heads)
            turned = self.node(
                "Transpose", turned, perm=[*range(len(rows)), *(len(rows) + np.array([1, 0, 2]))]
            )
            names[f"packed_{name}"] = self.node("Reshape", turned, self.number([*rows, 3 * width]))
        for name, part in (("out", attention.out_proj), ("inner", layer.linear1), ("outer", layer.linear2)):
            names[name] = self.weight(f"{prefix}{name}", part.weight.numpy())
            names[f"{name}_bias"] = self.weight(f"{prefix}{name}_bias", part.bias.numpy())
        for name in ("norm1", "norm2"):
            norm = getattr(layer, name)
            names[name] = self.weight(f"{prefix}{name}", norm.weight.numpy())
            names[f"{name}_bias"] = self.weight(f"{prefix}{name}_bias", norm.bias.numpy())
            names[f"{name}_epsilon"] = epsilon_of(norm)
        return {**names, "activation": _activation_of(layer)}

    def behind_attention(self, states: str, attended: str, names: Dict[str, Any]) -> str:
        """Return the states after a layer, of those before it and what its heads give."""
        states = self.added(states, attended, names, "out", "norm1")
        inner = self.product(states, names["inner"])
        if names["activation"] == "Relu":
            inner = self.node("Relu", self.node("Add", inner, names["inner_bias"]))
        else:
            inner = self.fused(names["activation"], inner, names["inner_bias"])
        return self.added(states, inner, names, "outer", "norm2")

    def added(self, states: str, inner: str, names: Dict[str, Any], part: str, norm: str) -> str:
        """Return the norm of ``states`` and what the linear layer ``part`` makes of ``inner``."""
        by = names[norm], names[f"{norm}_bias"], names[f"{part}_bias"]
        epsilon, product = names[f"{norm}_epsilon"], self.product(inner, names[part])
        return self.fused("SkipLayerNormalization", product, states, *by, epsilon=epsilon)

    def padded(self, states: str, lengths: str, layers: List[Dict[str, Any]]) -> str:
        """Return the states [B, S, D] after ``layers``."""
        for names in layers:
            asked = states, names["qkv"], names["qkv_bias"], lengths
            attended = self.fused("Attention", *asked, num_heads=names["heads"])
            states = self.behind_attention(states, attended, names)
        return states

    def packed(self, states: str, lengths: str, layers: List[Dict[str, Any]]) -> str:
        """Return the states [B, S, D] after ``layers``, computed as [T, D] of the tokens alone; else 0."""
        rows, places, starts, _ = self.fused("RemovePadding", states, lengths, outputs=4)
        for names in layers:
            parts = self.node("Gemm", rows, names["packed_qkv"], names["packed_qkv_bias"])
            packed = self.node("Reshape", parts, self.number([-1, names["heads"], 3, names["size"]]))
            asked = packed, "", "", "", places, starts
            attended = self.fused("PackedMultiHeadAttention", *asked, num_heads=names["heads"])
            rows = self.behind_attention(rows, attended, names)
        return self.fused("RestorePadding", rows, places)

    def either(self, states: str, lengths: str, layers: List[Dict[str, Any]]) -> str:
        """Return the states [B, S, D] after ``layers``, in the way that is faster for the batch."""
        from onnx import helper

        shape = self.node("Shape", "input_ids")
        longest = self.node("Gather", shape, self.number(1))
        places = self.node("ReduceProd", shape, keepdims=0)
        tokens = self.node("ReduceSum", self.node("Cast", lengths, to=7), keepdims=0)
        more, fewer = (
            self.node("Mul", size, self.number(by)) for size, by in zip((tokens, places), FULL_PARTS)
        )
        is_short = self.node("Less", longest, self.number(PACKED_LENGTH))
        is_packed = self.node("Or", is_short, self.node("Less", more, fewer))
        branches, outside = {}, self.nodes
        for name, way in (("then_branch", self.packed), ("else_branch", self.padded)):
            self.nodes = []
            answer = helper.make_tensor_value_info(way(states, lengths, layers), self.dtype, None)
            branches[name] = helper.make_graph(self.nodes, name, [], [answer])
        self.nodes = outside
        return self.node("If", is_packed, **branches)
