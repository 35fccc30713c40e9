import os
import pickle

import numpy as np
import pytest

from data_tools.errors import CheckpointError
from ernie_pair.weights import from_safetensors, read_weights, refuse_mismatch, to_safetensors


class Payload:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


def write_pickle(path, value):
    path.write_bytes(pickle.dumps(value, protocol=2))
    return path


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "float16"])
def test_arrays_come_back_as_they_were(dtype, tmp_path):
    arrays = {"a": np.arange(6, dtype=dtype).reshape(2, 3).T, "b": np.ones((), dtype)}
    back = from_safetensors(to_safetensors(arrays), "x")
    pickled = read_weights(write_pickle(tmp_path / "w.pdparams", arrays))
    for name, array in arrays.items():
        assert np.array_equal(back[name], array) and np.array_equal(pickled[name], array)


def test_paddles_own_notes_are_passed_over(tmp_path):
    path = write_pickle(
        tmp_path / "w.pdparams", {"a": np.ones(2), "StructuredToParameterName@@": {"a": "linear_0"}}
    )
    assert list(read_weights(path)) == ["a"]


@pytest.mark.parametrize(
    "payload",
    [
        Payload(os.system, ("touch canary",)),
        Payload(eval, ("open('canary','w')",)),
        Payload(getattr, ("canary", "upper")),
        Payload(np.load, ("canary",)),
    ],
)
@pytest.mark.parametrize("wrap", [lambda p: p, lambda p: {"a": p}, lambda p: {"a": [np.ones(1), p]}])
def test_a_pickle_that_asks_for_more_than_arrays_is_refused_and_not_run(payload, wrap, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="blocked global"):
        read_weights(write_pickle(tmp_path / "w.pdparams", wrap(payload)))
    assert not (tmp_path / "canary").exists()


def test_an_array_of_objects_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="not an array of numbers"):
        read_weights(write_pickle(tmp_path / "w.pdparams", {"a": np.array([{}, []], dtype=object)}))


@pytest.mark.parametrize("name", ["w.pdparams", "w.safetensors"])
def test_a_damaged_file_is_one_line(name, tmp_path):
    (tmp_path / name).write_bytes(b"\x80\x02}rubbish")
    with pytest.raises(CheckpointError, match=name):
        read_weights(tmp_path / name)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="no weights at"):
        read_weights(tmp_path / "w.pdparams")


def test_every_kind_of_mismatch_is_listed():
    found = {"a": np.ones((2, 3)), "c": np.ones(1)}
    with pytest.raises(CheckpointError, match=r"1 missing: b; 1 unknown: c; 1 of another shape: a \(2, 3\)"):
        refuse_mismatch({"a": (3, 2), "b": (1,)}, found, "file")
