"""Weight files: what is written and read, bfloat16 as bits, and what is refused unexecuted."""

import _codecs
import collections
import contextlib
import functools
import importlib
import io
import json
import logging
import os
import pickle
import struct

import numpy as np
import paddle
import pytest
from children import output_of
from safetensors import safe_open
from safetensors.numpy import save as save_safetensors

from ernie_pair.core.errors import CheckpointError
from ernie_pair.models.networks.encoders import set_weight, widen_tensors
from ernie_pair.weights import weight_files


class Payload:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


def write_pickle(path, value):
    path.write_bytes(pickle.dumps(value, protocol=2))
    return path


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "float16"])
def test_arrays_survive_a_round_trip(dtype, tmp_path):
    arrays = {"a": np.arange(6, dtype=dtype).reshape(2, 3).T, "b": np.ones((), dtype)}
    back = weight_files.from_safetensors(b"".join(weight_files.safetensors_parts(arrays)), "x")
    pickled = weight_files.read_weights(write_pickle(tmp_path / "w.pdparams", arrays))
    for name, array in arrays.items():
        assert np.array_equal(back[name], array) and np.array_equal(pickled[name], array)


def test_written_safetensors_match_the_library_byte_for_byte():
    rng = np.random.default_rng(0)
    arrays = {'é"\\ name': np.array(3.0), "empty": np.zeros((0, 4), np.int32), "flags": np.ones(2, bool)}
    for number, kind in enumerate(weight_files.NAMES_OF_TYPES):
        shape = rng.integers(1, 5, number % 4)
        arrays[f"{number}/{kind.name}"] = rng.integers(0, 2, shape).astype(kind).T
    whole = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    assert b"".join(weight_files.safetensors_parts(arrays)) == save_safetensors(whole)
    assert b"".join(weight_files.safetensors_parts({})) == save_safetensors({})


def test_a_file_for_torch_says_so(tmp_path):
    weight_files.write_for_torch(tmp_path / "model.safetensors", {"a": np.arange(3, dtype=np.float32)})
    with safe_open(tmp_path / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"} and file.get_tensor("a").tolist() == [0, 1, 2]


def test_paddles_own_metadata_is_ignored(tmp_path):
    path = write_pickle(
        tmp_path / "w.pdparams", {"a": np.ones(2), "StructuredToParameterName@@": {"a": "linear_0"}}
    )
    assert list(weight_files.read_weights(path)) == ["a"]


def test_what_a_wrapper_puts_before_all_names_is_left_out(caplog):
    caplog.set_level("INFO")
    one = np.ones(2)
    assert list(weight_files.unwrapped({"module.a": one, "module._b": one}, "w")) == ["a", "_b"]
    assert caplog.messages == ["w: all names begin with module., which a wrapper added: it is left out"]
    for kept in ({}, {"module.a": one, "b": one}):
        assert weight_files.unwrapped(kept, "w") == kept


@pytest.mark.parametrize("payload", [
    Payload(os.system, ("touch canary",)),
    Payload(eval, ("open('canary','w')",)),
    Payload(getattr, ("canary", "upper")),
    Payload(np.load, ("canary",)),
    Payload(exec, ("open('canary','w')",)),
    Payload(functools.partial, (os.system, "touch canary")),
    Payload(__import__, ("os",)),
    Payload(np.fromfile, ("canary",)),
])  # fmt: skip
@pytest.mark.parametrize("wrap", [lambda p: p, lambda p: {"a": p}, lambda p: {"a": [np.ones(1), p]}])
def test_a_pickle_with_other_objects_is_refused_unexecuted(payload, wrap, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="blocked global"):
        weight_files.read_weights(write_pickle(tmp_path / "w.pdparams", wrap(payload)))
    assert not (tmp_path / "canary").exists()


def doubled(make, times=50):
    """A value that holds the previous one twice, ``times`` levels deep: 2^times nodes to traverse."""
    value = make(())
    for _ in range(times):
        value = make((value, value))
    return value


class State:
    """Unpickles to an array whose ``__setstate__`` is given ``state``."""

    def __init__(self, state):
        self.state = state

    def __reduce__(self):
        return np.zeros(1).__reduce__()[:2] + (self.state,)


def objects_of(value):
    """An object array whose content numpy does not inspect."""
    array = np.empty(1, dtype=object)
    array[0] = value
    return array


ENDLESS = {  # never printed: that would not end either
    "lists": {"a": doubled(list)},
    "tuples": {"a": doubled(tuple)},
    "a key": b"\x80\x04}" + b")" + b"2\x86" * 50 + b"K\x01s.",
    "keys": b"\x80\x04}(K\x01K\x01" + b")" + b"2\x86" * 50 + b"K\x01u.",
    "a key of a dictionary at once": b"\x80\x02(K\x01K\x01" + b")" + b"2\x86" * 50 + b"K\x01d.",
    "in a set": b"\x80\x04\x8f(" + b")" + b"2\x86" * 50 + b"\x90.",
    "an argument": {"a": Payload(np.dtype, (doubled(list),))},
    "a state": {"a": State(doubled(tuple))},
    "in an array of objects": {"a": objects_of(doubled(list))},
    "deep": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "an array without numbers": {"a": Payload(np.ndarray, ((1 << 40,), "i1"))},
}


READS = """
import sys, ernie_pair.weights.weight_files as w
for name in sys.argv[1:]:
    try: w.read_weights(w.Path(name))
    except w.CheckpointError as error: print(error)
"""


def test_a_pickle_bomb_is_refused_at_once(tmp_path):
    files = [tmp_path / f"{number}.pdparams" for number in range(len(ENDLESS))]
    for path, content in zip(files, ENDLESS.values()):
        path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol=2))
    lines = output_of("-c", READS, *files, timeout=60).splitlines()
    assert len(lines) == len(files)
    assert all(str(path) in line for path, line in zip(files, lines))


@pytest.mark.parametrize("name, write, message", [
    ("w.pdparams", lambda path: path.write_bytes(b"\x80\x02}rubbish"), "w.pdparams"),
    ("w.safetensors", lambda path: path.write_bytes(b"\x80\x02}rubbish"), "w.safetensors"),
    ("w.pdparams", lambda path: None, "no weights at"),
    ("folder", lambda path: path.mkdir(), "holds no parameters"),
    ("w.pdparams", lambda path: write_pickle(path, {"a": objects_of({})}), "not an array of numbers"),
])  # fmt: skip
def test_the_error_names_a_damaged_file(name, write, message, tmp_path):
    write(tmp_path / name)
    with pytest.raises(CheckpointError, match=message):
        weight_files.read_weights(tmp_path / name)


def test_every_kind_of_mismatch_is_listed():
    found = {"a": np.ones((2, 3)), "c": np.ones(1)}
    with pytest.raises(CheckpointError, match=r"1 missing: b; 1 unknown: c; 1 of another shape: a \(2, 3\)"):
        weight_files.check_match({"a": (3, 2), "b": (1,)}, found, "file")


def variable(shape=(2, 3), kind=5, packed=False, values=None, **header):
    """A file as Paddle's C++ save op writes it; ``header`` overrides fields of the header."""
    sizes = b"".join(bytes([size]) for size in shape)
    dims = bytes([0x12, len(sizes)]) + sizes if packed else b"".join(bytes([0x10, s]) for s in sizes)
    fields = {"version": 0, "levels": 0, "tensor": 0, "description": bytes([0x08, kind]) + dims, **header}
    description = fields["description"]
    head = struct.pack("<IQIi", *(fields[k] for k in ("version", "levels", "tensor")), len(description))
    values = np.arange(np.prod(shape), dtype=np.float32) if values is None else values
    return head + description + values.tobytes()


@pytest.mark.parametrize("packed", [False, True])
def test_a_paddle_variable_file_is_read(packed, tmp_path):
    (tmp_path / "w").write_bytes(variable(packed=packed))
    array = weight_files.read_variable(tmp_path / "w")
    assert array.dtype == np.float32 and array.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("kind, dtype", [(3, "int64"), (4, "float16"), (6, "float64"), (22, "uint16")])
def test_variable_files_of_other_dtypes_are_read(kind, dtype, tmp_path):
    values = np.arange(6, dtype=dtype)
    (tmp_path / "w").write_bytes(variable(kind=kind, values=values))
    assert np.array_equal(weight_files.read_variable(tmp_path / "w").ravel(), values)


def test_variable_files_of_all_dtypes_and_shapes_are_read(tmp_path):
    (tmp_path / "none").write_bytes(variable(shape=(0, 3)))
    (tmp_path / "one").write_bytes(variable(shape=()))
    assert (
        weight_files.read_variable(tmp_path / "none").shape == (0, 3)
        and weight_files.read_variable(tmp_path / "one").shape == ()
    )


GOOD = variable()
HOSTILE = {
    "empty": b"",
    "a header cut short": GOOD[:19],
    "a description cut short": GOOD[:22],
    "numbers cut short": GOOD[:-1],
    "numbers too many": GOOD + b"0",
    "another version": variable(version=1),
    "another tensor version": variable(tensor=7),
    "levels of detail": variable(levels=1),
    "levels beyond memory": variable(levels=2**60),
    "a description of negative size": struct.pack("<IQIi", 0, 0, 0, -1) + GOOD[20:],
    "a description beyond the file": struct.pack("<IQIi", 0, 0, 0, 2**31 - 1) + GOOD[20:],
    "numbers of no kind": variable(kind=17),
    "no kind at all": variable(description=b"\x10\x02\x10\x03"),
    "an unknown field": variable(description=b"\x08\x05\x18\x01"),
    "packed beyond the description": variable(description=b"\x08\x05\x12\x7f\x02"),
    "a packed number beyond its list": variable(description=b"\x08\x05\x12\x02\x02\x83\x00"),
    "a number cut short": variable(description=b"\x08\x05\x10\xff"),
    "a number without an end": variable(description=b"\x08\x05\x10" + b"\xff" * 12),
    "a size beyond memory": variable(description=b"\x08\x05\x10" + b"\xff" * 8 + b"\x7f"),
    "a negative size": variable(description=b"\x08\x05\x10" + b"\xff" * 9 + b"\x01"),
    "twenty dimensions": variable(description=b"\x08\x05" + b"\x10\x01" * 20),
    "a pickle": pickle.dumps({"a": np.ones(2)}),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_an_invalid_variable_file_gives_a_one_line_error(content, tmp_path):
    (tmp_path / "linear_0.w_0").write_bytes(content)
    with pytest.raises(CheckpointError, match="linear_0.w_0 is not a variable") as caught:
        weight_files.read_weights(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_of_variables_loads_what_it_should(tmp_path):
    for name in ("linear_0.w_0", "linear_0.b_0"):
        (tmp_path / name).write_bytes(GOOD)
    others = "linear_0.w_0_moment1_0 linear_0.b_0_beta2_pow_acc_0 learning_rate_0 loss_scaling_1"
    for name in others.split():
        (tmp_path / name).write_bytes(b"never read")
    assert sorted(weight_files.read_weights(tmp_path)) == ["linear_0.b_0", "linear_0.w_0"]
    assert weight_files.is_state("w_0_fp32_master_0_moment2_0") and not weight_files.is_state(
        "encoder_layer_0_ffn_fc_0.w_0"
    )
    os.mkfifo(tmp_path / "linear_1.w_0")  # which would block
    with pytest.raises(CheckpointError, match="is not a file"):
        weight_files.read_weights(tmp_path)


def safetensors(header, numbers=b""):
    text = json.dumps(header).encode() if isinstance(header, dict) else header
    return struct.pack("<Q", len(text)) + text + numbers


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize("data", [
    struct.pack("<Q", 2**62) + b"{}",
    safetensors(b"[" * 100_000),
    safetensors({"a": entry(), "b": entry()}, b"0000"),
    safetensors({"a": entry(offsets=(0, 4000))}, b"0000"),
    safetensors({"a": entry(shape=(2**40, 2**40))}, b"0000"),
    safetensors({"a": entry()}, b"00000000"),
    safetensors({"a": entry(shape=(-1,))}, b"0000"),
    safetensors({"a": entry(dtype="F8_E4M3", offsets=(0, 1))}, b"0"),
])  # fmt: skip
def test_malformed_safetensors_are_refused(data):
    with pytest.raises(CheckpointError, match="w.safetensors"):
        weight_files.from_safetensors(data, "w.safetensors")


def test_half_precision_is_cast_to_float32_and_reported(caplog):
    values = np.array([1.5, -2.0, 0.0078125], np.float32)
    narrow = (values.view(np.uint32) >> 16).astype(np.uint16)
    stored = weight_files.from_safetensors(
        safetensors({"b": entry("BF16", (3,), (0, 6))}, narrow.tobytes()), "w"
    )
    found = {"f": values.astype(np.float16), "d": values.astype(np.float64), "s": values, **stored}
    with caplog.at_level(logging.INFO):
        wide = weight_files.as_float32({**found, "none": np.zeros((0, 4), np.float16)}, "w")
    assert all(wide[name].dtype == np.float32 and np.array_equal(wide[name], values) for name in found)
    assert wide["none"].shape == (0, 4)
    assert "2 of 5 arrays of w are float16: cast to float32" in caplog.text and "bfloat16" in caplog.text


@pytest.mark.parametrize("array, message", [
    (np.array([1, 2]), "is of int64, which is not a type of weights"),
    (np.array([True]), "is of bool"),
    (np.array([1.0, np.nan]), "holds NaN or infinity"),
    (np.array([1e300]), "holds NaN or infinity"),
    (np.array([0x7F80], np.uint16), "holds NaN or infinity"),
])  # fmt: skip
def test_invalid_weight_types_and_values_are_refused(array, message):
    with pytest.raises(CheckpointError, match=message):
        weight_files.as_float32({"a": array}, "w")


def resolved(module, name):
    """What a pickle gets if it asks for ``module``.``name``, in the oldest protocol."""
    return weight_files.PlainUnpickler(io.BytesIO(f"c{module}\n{name}\n.".encode())).load()


@pytest.mark.parametrize("module", [
    "builtins", "__builtin__", "os", "posix", "sys", "operator", "_operator", "functools", "types",
    "subprocess", "importlib", "runpy", "pickle", "_pickle", "copyreg", "copy_reg", "codecs", "io",
    "numpy", "numpy.core.multiarray", "numpy._core.multiarray", "_codecs", "collections", "marshal",
])  # fmt: skip
def test_unpickling_allows_only_the_names_that_arrays_need(module):
    there = importlib.import_module({"__builtin__": "builtins", "copy_reg": "copyreg"}.get(module, module))
    wanted = {"_reconstruct", "scalar", "ndarray", "dtype", "encode", "OrderedDict"}
    passed = set()
    for name in dir(there):
        try:
            passed.add(resolved(module, name))
        except CheckpointError as error:
            assert f"blocked global {module}.{name}" in str(error)
    assert {found.__name__ for found in passed} <= wanted
    assert all(getattr(found, "__module__", "") != "builtins" for found in passed)


def test_the_allow_list_holds_only_array_constructors():
    """Every entry is something that an untrusted file may call: prove a new one harmless before adding it."""
    found = set()
    for module, name in weight_files.ALLOWED:
        with contextlib.suppress(ModuleNotFoundError):  # numpy 1 has no numpy._core, numpy 2 no numpy.core
            found.add(getattr(importlib.import_module(module), name))
    multiarray = {np.empty(0).__reduce__()[0], np.float32(1).__reduce__()[0]}
    assert found == {*multiarray, np.ndarray, np.dtype, _codecs.encode, collections.OrderedDict}


# --- bfloat16 as bits

EVERY = np.arange(1 << 16, dtype=np.uint16)


def test_bfloat16_bits_show_what_is_not_finite():
    wide = weight_files.bfloat16_to_float32(EVERY)
    assert weight_files.is_bfloat16_finite(EVERY[np.isfinite(wide)])
    for place in np.flatnonzero(~np.isfinite(wide)):
        assert not weight_files.is_bfloat16_finite(EVERY[place : place + 1])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_conversions_agree_with_paddle(dtype):
    values = np.array([1.5, -2.0, 0.0078125], np.float32)
    tensor = paddle.to_tensor(values).astype(dtype)
    assert np.array_equal(widen_tensors({"a": tensor})["a"], values)
    parameter = paddle.zeros([3], dtype)
    set_weight(parameter, values * 2)
    assert parameter.dtype == tensor.dtype
    assert np.array_equal(widen_tensors({"a": parameter, "b": paddle.ones([1], "int64")})["a"], values * 2)
