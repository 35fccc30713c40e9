"""Write a program of Paddle 3.3 (PIR), as `paddle.jit.save` leaves it, as a model of ONNX.

paddle2onnx has no wheel for Python 3.13. The programs of encoders and of most other classifiers are made of
the operators below, each a node or a few of ONNX.
"""

from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import paddle

DIALECT = "pd_op."
# What ONNX has under another name, with the same inputs and no attributes.
SAME = {
    "abs": "Abs", "add": "Add", "asinh": "Asinh", "assign": "Identity", "ceil": "Ceil", "cos": "Cos",
    "divide": "Div", "elementwise_pow": "Pow", "equal": "Equal", "erf": "Erf", "exp": "Exp", "floor": "Floor",
    "greater_equal": "GreaterOrEqual", "greater_than": "Greater", "less_equal": "LessOrEqual",
    "less_than": "Less", "log": "Log", "logical_and": "And", "logical_not": "Not", "logical_or": "Or",
    "maximum": "Max", "minimum": "Min", "multiply": "Mul", "relu": "Relu", "shape64": "Shape",
    "sigmoid": "Sigmoid", "sin": "Sin", "sqrt": "Sqrt", "subtract": "Sub", "tanh": "Tanh", "where": "Where",
}  # fmt: skip


class UntranslatedError(ValueError):
    """An operator has no translation here; its text says which."""


def onnx_of_program(prefix: Path, opset: int):
    """Return the `onnx.ModelProto` of ``prefix``.json and ``prefix``.pdiparams. Raises UntranslatedError."""
    from onnx import helper

    layer = paddle.jit.load(str(prefix))  # it owns the program: the operators live as long as it does
    program = layer.program()
    operators = program.global_block().ops
    names = {op.name().removeprefix(DIALECT) for op in operators}
    missing = sorted(names - {*SAME, *TRANSLATIONS, *OF_GRAPH})
    if missing:
        raise UntranslatedError(", ".join(missing))
    arrays = {parameter.name: parameter.numpy() for parameter in layer.state_dict().values()}
    graph = _Graph(arrays)
    for op in operators:
        graph.translate(_Operator(op))
    nodes, initializers = graph.used()
    content = helper.make_graph(nodes, "model", graph.inputs, graph.outputs, initializers)
    opsets = [helper.make_opsetid("", opset)]
    version = helper.find_min_ir_version_for(opsets)  # of the file: the oldest, for older ONNX Runtimes
    return helper.make_model(content, opset_imports=opsets, ir_version=version)


class _Operator:
    """An operator of a program: its name, its attributes, and the values that it takes and makes."""

    def __init__(self, op):
        self.name, self.attributes = op.name().removeprefix(DIALECT), op.attrs()
        self.inputs, self.outputs = op.operands_source(), op.results()

    def __getitem__(self, name: str) -> Any:
        return self.attributes[name]

    def refuse(self, how: str) -> UntranslatedError:
        """Return the error for a variant that has no translation."""
        return UntranslatedError(f"{self.name} {how}")


class _Graph:
    """The nodes, weights and ends of a growing ONNX graph; ``arrays``: the weights by name in the program."""

    def __init__(self, arrays: Dict[str, np.ndarray]):
        self.arrays = arrays
        self.nodes: List[Any] = []
        self.inputs: List[Any] = []
        self.outputs: List[Any] = []
        self.initializers: List[Any] = []
        self._names: Dict[str, str] = {}  # of values
        self._constants: Dict[str, np.ndarray] = {}  # values that are known: shapes, axes, factors
        self.lists: Dict[str, List[Any]] = {}  # values that are lists of values
        self._written: Dict[bytes, str] = {}  # constants that are among the initializers

    def translate(self, op: _Operator) -> None:
        """Add what computes the first value of ``op``; raises UntranslatedError."""
        if op.name in OF_GRAPH:
            OF_GRAPH[op.name](self, op)
        elif op.name in SAME:
            self._names[op.outputs[0].id] = self.add(SAME[op.name], *self.names_of(op))
        else:
            self._names[op.outputs[0].id] = TRANSLATIONS[op.name](self, op)

    def used(self) -> Tuple[List[Any], List[Any]]:
        """Return the nodes and initializers that an output depends on; of others ONNX Runtime warns."""
        wanted, nodes = {output.name for output in self.outputs}, []
        for node in reversed(self.nodes):
            if node.output[0] in wanted:
                wanted.update(node.input)
                nodes.append(node)
        return nodes[::-1], [tensor for tensor in self.initializers if tensor.name in wanted]

    def add(self, kind: str, *inputs: str, **attributes) -> str:
        """Add a node of one output, and return the name of that."""
        from onnx import helper

        output = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def names_of(self, op: _Operator) -> List[str]:
        """Return the names of all values that ``op`` takes."""
        return [self.name(value) for value in op.inputs]

    def first(self, op: _Operator) -> str:
        """Return the name of the first value that ``op`` takes."""
        return self.name(op.inputs[0])

    def name(self, value) -> str:
        """Return the name of a value; a known one or a list becomes a tensor of the graph first."""
        if value.id in self._constants:
            return self.constant(self._constants[value.id])
        if value.id in self.lists:
            return self.add("Concat", *self.unsqueezed(value, 0), axis=0)
        return self._names[value.id]

    def constant(self, array: np.ndarray) -> str:
        """Return the name of an initializer of this content."""
        key = f"{array.dtype} {array.shape} ".encode() + array.tobytes()
        if key not in self._written:
            self._written[key] = self._weight(f"constant_{len(self._written)}", array)
        return self._written[key]

    def known(self, op: _Operator, index: int) -> np.ndarray:
        """Return what input ``index`` of ``op`` always is; raises UntranslatedError where it is computed."""
        value = op.inputs[index]
        if value.id not in self._constants:
            raise op.refuse(f"with an input {index} that is computed")
        return self._constants[value.id]

    def whole(self, value) -> str:
        """Return the name of a value, of int64."""
        is_whole = value.id in self.lists or str(value.dtype).endswith("int64")
        return self.name(value) if is_whole else self.cast(self.name(value), np.int64)

    def cast(self, name: str, dtype) -> str:
        """Return the name of a tensor of ``dtype`` of the same numbers."""
        return self.add("Cast", name, to=_onnx_type(dtype))

    def unsqueezed(self, values, axis: int) -> List[str]:
        """Return the names of the values of a list, each with a new axis."""
        axes = self.constant(np.array([axis]))
        return [self.add("Unsqueeze", self.name(value), axes) for value in self.lists[values.id]]

    def _weight(self, name: str, array: np.ndarray) -> str:
        from onnx import numpy_helper

        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def take_parameter(self, op: _Operator) -> None:
        name = op["parameter_name"]
        self._names[op.outputs[0].id] = self._weight(name, self.arrays[name])

    def take_full(self, op: _Operator) -> None:
        shape = op.attributes.get("shape", [len(np.atleast_1d(op["value"]))])
        array = np.broadcast_to(np.asarray(op["value"], _numpy_type(op["dtype"])), shape)
        self._constants[op.outputs[0].id] = np.ascontiguousarray(array).reshape(shape)

    def take_assign_value(self, op: _Operator) -> None:
        array = np.array(op["values"], _numpy_type(op["dtype"])).reshape(op["shape"])
        self._constants[op.outputs[0].id] = array

    def take_combine(self, op: _Operator) -> None:
        self.lists[op.outputs[0].id] = list(op.inputs)

    def take_data(self, op: _Operator) -> None:
        self._names[op.outputs[0].id] = op["name"]
        self.inputs.append(_end(op["name"], op.outputs[0]))

    def give_output(self, op: _Operator) -> None:
        value = op.inputs[0]
        self.outputs.append(_end(self.name(value), value))


OF_GRAPH: Dict[str, Callable[[_Graph, _Operator], None]] = {
    "builtin.parameter": _Graph.take_parameter,
    "builtin.combine": _Graph.take_combine,
    "builtin.shadow_output": _Graph.give_output,
    "assign_value_": _Graph.take_assign_value,
    "data": _Graph.take_data,
    "full": _Graph.take_full,
    "full_int_array": _Graph.take_full,
}


def _numpy_type(dtype) -> np.dtype:
    return np.dtype(str(dtype).rpartition(".")[2])


def _onnx_type(dtype) -> int:
    from onnx import helper

    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def _end(name: str, value):
    """Return an input or output of the graph; its open dimensions have no name yet."""
    from onnx import helper

    shape = [None if size < 0 else size for size in value.shape]
    return helper.make_tensor_value_info(name, _onnx_type(_numpy_type(value.dtype)), shape)


def _scale(graph: _Graph, op: _Operator) -> str:
    """Return the name of x * factor + bias, or (x + bias) * factor."""
    dtype = _numpy_type(op.inputs[0].dtype)
    steps = [("Mul", float(graph.known(op, 1).item()), 1.0), ("Add", op["bias"], 0.0)]
    name = graph.first(op)
    for kind, number, nothing in steps if op["bias_after_scale"] else steps[::-1]:
        if number != nothing:
            name = graph.add(kind, name, graph.constant(np.array(number, dtype)))
    return name


def _matmul(graph: _Graph, op: _Operator) -> str:
    names = graph.names_of(op)
    for index, flag in enumerate(("transpose_x", "transpose_y")):
        if op[flag]:
            order = list(range(len(op.inputs[index].shape)))
            names[index] = graph.add("Transpose", names[index], perm=[*order[:-2], order[-1], order[-2]])
    return graph.add("MatMul", *names)


def _embedding(graph: _Graph, op: _Operator) -> str:
    if op["padding_idx"] >= 0:
        raise op.refuse("with a padding_idx")
    ids, table = graph.names_of(op)
    return graph.add("Gather", table, ids, axis=0)


def _layer_norm(graph: _Graph, op: _Operator) -> str:
    if not all(value.initialized() for value in op.inputs):
        raise op.refuse("without weight or bias")
    begin = op["begin_norm_axis"]
    if begin != len(op.inputs[0].shape) - 1:
        raise op.refuse("over several axes")
    return graph.add("LayerNormalization", *graph.names_of(op), axis=begin, epsilon=op["epsilon"])


def _gelu(graph: _Graph, op: _Operator) -> str:
    """Return the name of 0.5 x (1 + erf(x / sqrt 2)), in the order of nodes that ONNX Runtime fuses."""
    if op["approximate"]:
        raise op.refuse("approximate")
    name, dtype = graph.first(op), _numpy_type(op.inputs[0].dtype)
    root, one, half = (graph.constant(np.array(number, dtype)) for number in (np.sqrt(2), 1, 0.5))
    erf = graph.add("Erf", graph.add("Div", name, root))
    return graph.add("Mul", graph.add("Mul", name, graph.add("Add", erf, one)), half)


def _floor_divide(graph: _Graph, op: _Operator) -> str:
    """ONNX cuts a quotient of whole numbers towards 0; those here are below 2**53, and floats hold them."""
    left, right = (graph.cast(name, np.float64) for name in graph.names_of(op))
    floor = graph.add("Floor", graph.add("Div", left, right))
    return graph.cast(floor, _numpy_type(op.outputs[0].dtype))


def _dropout(graph: _Graph, op: _Operator) -> str:
    if not op["is_test"] or op["mode"] != "upscale_in_train":
        raise op.refuse("in training, or that scales its input afterwards")
    return graph.first(op)


def _sum(graph: _Graph, op: _Operator) -> str:
    """ONNX takes the axes of a sum as an input from this opset on, those of the others later."""
    name, dtype = graph.first(op), _numpy_type(op.outputs[0].dtype)
    if _numpy_type(op.inputs[0].dtype) != dtype:
        name = graph.cast(name, dtype)
    axes = graph.known(op, 1).astype(np.int64)
    inputs = [graph.constant(axes)] if axes.size else []
    return graph.add("ReduceSum", name, *inputs, keepdims=int(op["keepdim"]))


def _reduced(kind: str, graph: _Graph, op: _Operator) -> str:
    axes = graph.known(op, 1).tolist()
    over = {"axes": axes} if axes else {}
    return graph.add(kind, graph.first(op), keepdims=int(op["keepdim"]), **over)


def _any(graph: _Graph, op: _Operator) -> str:
    """Return the name of the maximum, which ONNX has of numbers alone."""
    number, axes = graph.cast(graph.first(op), np.int32), list(op["axis"])
    over = {"axes": axes} if axes else {}
    return graph.cast(graph.add("ReduceMax", number, keepdims=int(op["keepdim"]), **over), np.bool_)


def _p_norm(graph: _Graph, op: _Operator) -> str:
    if op["porder"] != 2 or op["asvector"]:
        raise op.refuse("of another order than 2")
    name = graph.first(op)
    return graph.add("ReduceL2", name, axes=[op["axis"]], keepdims=int(op["keepdim"]))


def _cumsum(graph: _Graph, op: _Operator) -> str:
    if op["flatten"]:
        raise op.refuse("of a flattened tensor")
    axis = graph.constant(graph.known(op, 1).astype(np.int64).reshape(()))
    how = {"exclusive": int(op["exclusive"]), "reverse": int(op["reverse"])}
    return graph.add("CumSum", graph.first(op), axis, **how)


def _filled(graph: _Graph, op: _Operator, index: int, shape: str) -> str:
    """Return the name of a tensor of ``shape`` that is filled with the number of input ``index``."""
    from onnx import numpy_helper

    value = graph.known(op, index).astype(_numpy_type(op.outputs[0].dtype)).reshape(1)
    return graph.add("ConstantOfShape", shape, value=numpy_helper.from_array(value))


def _flatten(graph: _Graph, op: _Operator) -> str:
    sizes = list(op.inputs[0].shape)
    after = sizes[op["stop_axis"] % len(sizes) + 1 :]
    if min(after, default=1) < 0:
        raise op.refuse("before an axis of open size")
    shape = [0] * (op["start_axis"] % len(sizes)) + [-1, *after]  # 0: as it is
    return graph.add("Reshape", graph.first(op), graph.constant(np.array(shape)))


def _with_axes(kind: str, graph: _Graph, op: _Operator) -> str:
    axes = graph.constant(graph.known(op, 1).astype(np.int64).reshape(-1))
    return graph.add(kind, graph.first(op), axes)


def _slice(graph: _Graph, op: _Operator) -> str:
    """Of a strided slice too, which has a fourth input and keeps its axes."""
    bounds = [graph.whole(value) for value in op.inputs[1:3]]
    steps = [graph.whole(value) for value in op.inputs[3:]]
    axes = graph.constant(np.array(op["axes"]))
    part = graph.add("Slice", graph.first(op), *bounds, axes, *steps)
    dropped = op.attributes.get("decrease_axis")
    return graph.add("Squeeze", part, graph.constant(np.array(dropped))) if dropped else part


def _concat(graph: _Graph, op: _Operator) -> str:
    parts = [graph.name(value) for value in graph.lists[op.inputs[0].id]]
    return graph.add("Concat", *parts, axis=int(graph.known(op, 1).item()))


def _expand(graph: _Graph, op: _Operator) -> str:
    """Paddle keeps a size where it is asked for -1, ONNX where it is asked for 1."""
    shape = graph.known(op, 1).astype(np.int64)
    return graph.add("Expand", graph.first(op), graph.constant(np.where(shape < 0, 1, shape)))


def _gather(graph: _Graph, op: _Operator) -> str:
    table, indices = graph.names_of(op)[:2]
    return graph.add("Gather", table, indices, axis=int(graph.known(op, 2).item()))


def _pad(graph: _Graph, op: _Operator) -> str:
    """ONNX has the sizes before all axes first, then those after."""
    pads = graph.constant(np.array(op["paddings"]).reshape(-1, 2).T.reshape(-1))
    number = graph.known(op, 1).astype(_numpy_type(op.inputs[0].dtype)).reshape(())
    return graph.add("Pad", graph.first(op), pads, graph.constant(number))


def _conv2d(graph: _Graph, op: _Operator) -> str:
    if op["padding_algorithm"] != "EXPLICIT" or op["data_format"] != "NCHW" or len(op["paddings"]) != 2:
        raise op.refuse("with another padding or order of axes")
    how = {"strides": op["strides"], "dilations": op["dilations"], "group": op["groups"]}
    return graph.add("Conv", *graph.names_of(op), pads=list(op["paddings"]) * 2, **how)


TRANSLATIONS: Dict[str, Callable[[_Graph, _Operator], str]] = {
    "any": _any, "concat": _concat, "conv2d": _conv2d, "cumsum": _cumsum, "dropout": _dropout,
    "embedding": _embedding, "expand": _expand, "flatten": _flatten, "floor_divide": _floor_divide,
    "gather": _gather, "gelu": _gelu, "layer_norm": _layer_norm, "matmul": _matmul, "p_norm": _p_norm,
    "pad": _pad, "scale": _scale, "slice": _slice, "strided_slice": _slice, "sum": _sum,
}  # fmt: skip
TRANSLATIONS.update({name: partial(_reduced, f"Reduce{name.title()}") for name in ("max", "mean", "min")})
TRANSLATIONS.update({name: partial(_with_axes, name.title()) for name in ("squeeze", "unsqueeze")})
TRANSLATIONS.update({
    "cast": lambda graph, op: graph.cast(graph.first(op), _numpy_type(op["dtype"])),
    "full_like": lambda graph, op: _filled(graph, op, 1, graph.add("Shape", graph.first(op))),
    "full_with_tensor": lambda graph, op: _filled(graph, op, 0, graph.whole(op.inputs[1])),
    "not_equal": lambda graph, op: graph.add("Not", graph.add("Equal", *graph.names_of(op))),
    "reshape": lambda graph, op: graph.add("Reshape", graph.first(op), graph.whole(op.inputs[1])),
    "rsqrt": lambda graph, op: graph.add("Reciprocal", graph.add("Sqrt", graph.first(op))),
    "silu": lambda graph, op: graph.add("Mul", graph.first(op), graph.add("Sigmoid", graph.first(op))),
    "softmax": lambda graph, op: graph.add("Softmax", graph.first(op), axis=op["axis"]),
    "square": lambda graph, op: graph.add("Mul", graph.first(op), graph.first(op)),
    "stack": lambda graph, op: graph.add(
        "Concat", *graph.unsqueezed(op.inputs[0], op["axis"]), axis=op["axis"]
    ),
    "transpose": lambda graph, op: graph.add("Transpose", graph.first(op), perm=op["perm"]),
})  # fmt: skip
