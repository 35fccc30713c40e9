"""Exported models on a GPU: the settings given to the libraries, and every refusal; needs no GPU."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from tiny_ship import PROGRAM, ship, write_trained

from ernie_pair.core.errors import InputError, MachineError
from ernie_pair.inference import backends
from ernie_pair.inference.backends import CUDA_PROVIDER, FIRST_POOL_MB, GPU_TOKENS, MAX_GPU_TOKENS
from ernie_pair.inference.exported_model import FILES_OF, GPU, ExportedModel, read_exported
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.runtime.device import start_device
from ernie_pair.runtime.gpu import SELECTED_GPUS
from ernie_pair.runtime.processes.world import World

CPU = "CPUExecutionProvider"


class FakeConfig:
    """Records the calls made on it, in place of paddle.inference.Config."""

    def __init__(self, *files):
        self.asked = []

    def __getattr__(self, name):
        return lambda *words: self.asked.append((name, *words))


class FakePredictor:
    """Returns the first two token ids of a row as its logits."""

    def __init__(self, config):
        self.config, self.given = config, {}

    def get_input_handle(self, name):
        return SimpleNamespace(copy_from_cpu=lambda array: self.given.update({name: array}))

    def get_output_names(self):
        return ["logits"]

    def get_output_handle(self, name):
        return SimpleNamespace(copy_to_cpu=lambda: self.given["input_ids"][:, :2].astype(np.float32))

    def run(self):
        pass


def fake_paddle(is_cuda=True):
    precisions = SimpleNamespace(Float32="32", Half="16", Bfloat16="b16")
    inference = SimpleNamespace(Config=FakeConfig, create_predictor=FakePredictor, PrecisionType=precisions)
    return SimpleNamespace(inference=inference, is_compiled_with_cuda=lambda: is_cuda)


def fake_onnxruntime(available, started=(CUDA_PROVIDER, CPU), room=1 << 20):
    made, asked, loaded, failure = [], [], [], []

    class Session:
        def __init__(self, path, options, providers):
            made.append(providers)
            if not started:
                raise RuntimeError("Type 'tensor(bfloat16)' of input parameter (x) of operator (Attention)")

        def get_providers(self):
            return list(started)

        def get_modelmeta(self):
            return SimpleNamespace(custom_metadata_map={"precision": "fp16"})

        def run(self, names, feed):
            rows, tokens = feed["input_ids"].shape
            asked.append(rows)
            if failure:
                raise RuntimeError(f"Non-zero status code:\n{failure[0]}")
            if rows * tokens > room:
                raise RuntimeError("BFCArena: Failed to allocate memory for requested buffer of size 9")
            return [feed["input_ids"][:, :1].astype(np.float32)]

    options = lambda: SimpleNamespace(add_session_config_entry=lambda *words: None)  # noqa: E731
    return SimpleNamespace(
        InferenceSession=Session,
        SessionOptions=options,
        get_available_providers=lambda: list(available),
        preload_dlls=lambda: loaded.append("libraries of wheels"),
        __version__="1.19.2",
        cuda_version="99.1",
        made=made,
        asked=asked,
        loaded=loaded,
        failure=failure,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    trained = write_trained(tmp_path_factory.mktemp("trained") / "best")
    return ship(trained, tmp_path_factory.mktemp("exported") / "ship")


@pytest.fixture
def exported(folder, monkeypatch):
    """A model that holds every format but that for cards; none of its files is opened here."""
    held = {name: "" for kind, names in FILES_OF.items() for name in names if kind != GPU}
    monkeypatch.setattr(ExportedModel, "file", lambda self, name: Path(name))
    return replace(read_exported(folder), files=held)


@pytest.fixture
def libraries(monkeypatch):
    """Replace the installed libraries by those of a machine with a GPU of compute capability 8.0."""

    def put(capability=(8, 0), **modules):
        monkeypatch.setattr(backends, "import_optional", lambda name, extra="": modules[name])
        monkeypatch.setattr(backends, "find_spec", modules.get)
        card = "ernie_pair.runtime.device.start_device"
        monkeypatch.setattr(card, lambda device, world: f"gpu:{device[4:] or 1}, A card")
        monkeypatch.setattr(paddle.device.cuda, "get_device_capability", lambda number: capability)

    return put


@pytest.mark.parametrize("precision, kind", [("fp32", "32"), ("fp16", "16"), ("bf16", "b16")])
@pytest.mark.parametrize("name, given", [("auto", "gpu"), ("paddle", "gpu:3")])
def test_paddle_is_given_the_gpu_and_the_precision(libraries, exported, precision, kind, name, given):
    libraries(paddle=fake_paddle())
    backend = backends.open_backend(exported, name, 1, precision, given)
    asked = backend._predictor.config.asked
    assert ("enable_use_gpu", FIRST_POOL_MB, int(given[4:] or 1), kind) in asked
    words = {name for name, *_ in asked}
    assert not words & {"disable_gpu", "enable_mkldnn", "enable_mkldnn_bfloat16"}
    assert (backend.name, backend.where) == ("paddle", f"gpu:{given[4:] or 1}, A card")
    assert backend.rules.most_tokens == MAX_GPU_TOKENS
    ids = np.arange(6).reshape(2, 3)
    assert backend.logits(ids, ids).tolist() == [[0, 1], [3, 4]]


def test_paddle_inference_settings_for_the_cpu_are_unchanged(libraries, exported):
    libraries(paddle=fake_paddle())
    asked = backends.open_backend(exported, "paddle", 3)._predictor.config.asked
    threads = ("set_cpu_math_library_num_threads", 3)
    alone = ("disable_gpu", "enable_mkldnn", "disable_mkldnn_fc_passes")
    assert asked == [("disable_glog_info",), threads, *((word,) for word in alone)]


def test_the_installed_paddle_accepts_the_settings(folder):
    """The names and arguments exist in the installed Paddle, even in a CPU build."""
    for precision in ("fp32", "fp16", "bf16"):
        config = paddle.inference.Config(*(str(folder / name) for name in (PROGRAM, "model.pdiparams")))
        kind = getattr(paddle.inference.PrecisionType, backends.PRECISION_TYPES[precision])
        config.enable_use_gpu(FIRST_POOL_MB, 0, kind)
        assert config.use_gpu() == paddle.is_compiled_with_cuda()


def test_onnx_runtime_uses_cuda_without_tf32_after_paddle(libraries, exported, monkeypatch):
    onnxruntime = fake_onnxruntime([CUDA_PROVIDER, CPU])
    libraries(onnxruntime=onnxruntime)
    for name, given, number in (("auto", "gpu", "0"), ("onnx", "gpu:3", "3"), ("onnx", "gpu", "2")):
        monkeypatch.setenv(SELECTED_GPUS, "2" if number == "2" else "")  # of one process of a launcher
        backend = backends.open_backend(exported, name, 1, "fp32", given)
        assert (backend.where, backend.rules.most_tokens) == (f"gpu:{number}, by CUDA", GPU_TOKENS)
        assert onnxruntime.made.pop() == [(CUDA_PROVIDER, {"device_id": number, "use_tf32": "0"}), CPU]
        assert onnxruntime.loaded.pop()
    with pytest.raises(InputError, match="device gpu:1, but the launcher gives this process gpu:2; pass dev"):
        backends.open_backend(exported, "onnx", 1, "fp32", "gpu:1")
    onnxruntime = fake_onnxruntime([CUDA_PROVIDER, CPU])
    libraries(paddle=fake_paddle(), onnxruntime=onnxruntime)
    assert backends.open_backend(exported, "auto", 1, "fp32", "gpu").name == "paddle"
    libraries(paddle=fake_paddle(is_cuda=False), onnxruntime=onnxruntime)
    assert backends.open_backend(exported, "auto", 1, "fp32", "gpu").name == "onnx"


def test_the_file_for_cards_is_asked_in_parts_that_fit(libraries, exported):
    exported = replace(exported, files={**exported.files, "model.gpu.onnx": ""})
    onnxruntime = fake_onnxruntime([CUDA_PROVIDER, CPU], room=10)
    libraries(paddle=fake_paddle(), onnxruntime=onnxruntime)
    backend = backends.open_backend(exported, "auto", 1, "fp32", "gpu")
    assert (backend.name, backend.precision) == (GPU, "fp16")
    ids = np.arange(35).reshape(7, 5)
    assert backend.logits(ids, ids).ravel().tolist() == ids[:, 0].tolist()
    assert onnxruntime.asked == [7, 3, 1, 2, 4, 2, 2]
    with pytest.raises(MachineError, match="gpu:0, by CUDA: no memory for 1 row of 11 tokens; stop what"):
        backend.logits(np.zeros((2, 11), np.int64), np.zeros((2, 11), np.int64))
    onnxruntime.failure.append("CUDA failure 700: an illegal memory access was encountered")
    with pytest.raises(MachineError, match="gpu:0, by CUDA: CUDA failure 700: .*; see nvidia-smi, or pass"):
        backend.logits(ids, ids)
    libraries(onnxruntime=fake_onnxruntime([CUDA_PROVIDER], started=()))
    with pytest.raises(InputError, match="ONNX Runtime 1.19.2 lacks bfloat16; update it to 1.24, or export"):
        backends.open_backend(exported, GPU, 1, "fp32", "gpu")


def test_two_builds_of_onnx_runtime_are_refused(libraries, exported, monkeypatch):
    libraries(onnxruntime=fake_onnxruntime([CUDA_PROVIDER, CPU]))
    monkeypatch.setattr(backends, "version_of", lambda package: "1.31.1")
    with pytest.raises(InputError, match="lie over each other; pip uninstall -y onnxruntime onnxruntime-gpu"):
        backends.open_backend(exported, "onnx", 1, "fp32", "gpu")


ON_CUDA, NONE_OF = [CUDA_PROVIDER], "device {} is none of cpu, gpu and gpu:N; use one of them"


@pytest.mark.parametrize("files, name, precision, given, available, message", [
    ("", "onnx", "fp32", "gpu", [CPU], "has no CUDA; pip uninstall -y onnxruntime, then pip install"),
    ("onnx gpu.onnx", "auto", "fp32", "gpu", [CPU], "has no CUDA; pip uninstall -y onnxruntime, then pip"),
    ("", "onnx", "fp32", "gpu:1", ON_CUDA, "start CUDA there; libcudart.so.99, .* is missing: pip"),
    ("", "onnx", "fp16", "gpu", ON_CUDA, "precision fp16 is for backend paddle, not onnx; leave it out"),
    ("", "onnx-int8", "fp32", "gpu", ON_CUDA, "int8 runs on the CPU; use backend auto, or device cpu"),
    ("", "auto", "fp32", "gpu", [CPU], "precision fp32; pip uninstall .* && pip install .*, or pass device"),
    ("", "auto", "bf16", "gpu", ON_CUDA, "has a GPU here for precision bf16; pip uninstall -y paddlepaddle"),
    ("", "auto", "fp16", "cpu", [CPU], "precision fp16 needs device gpu; use fp32, or bf16 with backend"),
    ("onnx", "auto", "bf16", "gpu", ON_CUDA, "no model for paddle; precision bf16 takes one; export it with"),
    ("onnx", "paddle", "fp16", "gpu", ON_CUDA, "no model for paddle; precision fp16 takes one; export it"),
    *(("", "onnx", "fp32", given, ON_CUDA, NONE_OF.format(given)) for given in ("gpu:x", "gpu:-1", "cuda")),
])  # fmt: skip
def test_what_cannot_run_on_a_gpu_is_refused(
    libraries, exported, files, name, precision, given, available, message
):
    libraries(paddle=fake_paddle(is_cuda=False), onnxruntime=fake_onnxruntime(available, started=[CPU]))
    there = {f"model.{kind}": "" for kind in files.split()} or exported.files
    with pytest.raises(InputError, match=message) as caught:
        backends.open_backend(replace(exported, files=there), name, 1, precision, given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("precision, capability, least", [("bf16", (7, 5), 8), ("fp16", (6, 1), 7)])
def test_a_precision_that_an_old_gpu_lacks_is_refused(libraries, exported, precision, capability, least):
    libraries(capability, paddle=fake_paddle())
    wanted = f"precision {precision} needs a GPU of compute capability {least}.0, this one has "
    with pytest.raises(InputError, match=wanted):
        backends.open_backend(exported, "paddle", 1, precision, "gpu")


@pytest.mark.skipif(bool(paddle.device.cuda.device_count()), reason="there is a GPU")
def test_device_gpu_without_a_gpu_is_refused(folder):
    with pytest.raises(InputError, match="device gpu, but .*pass device cpu"):
        PairPredictor(folder, "paddle", device="gpu")


@pytest.mark.gpu
@pytest.mark.skipif(not paddle.device.cuda.device_count(), reason="no GPU")
@pytest.mark.parametrize("precision, bound", [("fp32", 1e-3), ("fp16", 0.05), ("bf16", 0.2)])
def test_gpu_logits_match_those_of_the_cpu(folder, precision, bound):
    start_device("gpu", World())
    pairs = [("今天天气真好", "今天天气很好"), ("你", "我们去上下左右")] * 40
    expected = PairPredictor(folder, "paddle").logits(pairs)
    found = PairPredictor(folder, "paddle", precision=precision, device="gpu").logits(pairs)
    assert np.abs(found - expected).max() < bound * np.abs(expected).max()
