"""Which GPU a process uses and what is refused on it; GPUs are faked, so that none is needed."""

import ctypes
import os

import paddle
import pytest

from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.errors import InputError, MachineError
from ernie_pair.experiments.config import SearchParamsConfig
from ernie_pair.pairs.config.pair_config import TrainConfig
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.runtime import amp_flags, device, gpu
from ernie_pair.runtime import gpu as of_gpus
from ernie_pair.runtime.paddle_patches import core_settings
from ernie_pair.runtime.processes.world import World

BUILD = gpu.Build("3.3.1", "12.6", gpu.__file__)
A100, V100 = gpu.Card(0, "NVIDIA A100", (8, 0)), gpu.Card(0, "Tesla V100", (7, 0))
P40 = gpu.Card(0, "Tesla P40", (6, 1))


@pytest.fixture
def machine(monkeypatch):
    """Give this process fake GPUs of these compute capabilities and a Paddle build."""

    def has(*capabilities, build=BUILD):
        found = [gpu.Card(number, f"card {number}", one) for number, one in enumerate(capabilities)]
        monkeypatch.setattr(paddle, "is_compiled_with_cuda", lambda: True)
        monkeypatch.setattr(gpu, "count_cards", lambda: len(found))
        monkeypatch.setattr(gpu, "card_at", found.__getitem__)
        monkeypatch.setattr(gpu, "installed_build", lambda: build)
        monkeypatch.delenv(gpu.SELECTED_GPUS, raising=False)

    return has


@pytest.mark.parametrize("error, raised, message", [
    (
        OSError(
            "(External) CUDA error(209), no kernel image is available for execution on the device. \n"
            "  [Hint: 'cudaErrorNoKernelImageForDevice'.] (at /paddle/gpu_info.cc:275)\n"
        ),
        InputError,
        r"Paddle has no code for GPU 0 \(H200.*pip install .* paddlepaddle-gpu==3",
    ),
    (
        RuntimeError("\n---\nError Message Summary:\n---\nResourceExhausted: out of memory\n [Hint: x]"),
        MachineError,
        r"H200.*cannot compute: ResourceExhausted: out of memory; see",
    ),
])  # fmt: skip
def test_a_gpu_that_cannot_compute_is_reported_in_one_line(monkeypatch, error, raised, message):
    def ones(shape):
        raise error

    monkeypatch.setattr(paddle, "ones", ones)
    with pytest.raises(raised, match=message):
        gpu.open_card(gpu.Card(0, "H200", (9, 0)))
    assert gpu.summary_of(OSError("")) == "OSError"


def test_the_launchers_variable_selects_a_visible_gpu(machine, monkeypatch):
    machine((9, 0), (8, 6))
    monkeypatch.setenv(gpu.SELECTED_GPUS, "1")
    assert gpu.choose_card(1) == gpu.Card(1, "card 1", (8, 6))
    machine((8, 6), (8, 6))
    monkeypatch.setenv(gpu.SELECTED_GPUS, "3")
    with pytest.raises(InputError, match=r"rank 3 should run on GPU 3, but 2 are visible.*at most 2 process"):
        gpu.choose_card(3)
    assert InputError.exit_code == 2


@pytest.mark.parametrize("driver, said", [(True, "check nvidia-smi"), (False, "no NVIDIA driver is loaded")])
def test_no_visible_gpu_is_an_error_that_says_what_to_check(machine, monkeypatch, driver, said):
    machine()
    monkeypatch.setattr(gpu, "has_driver", lambda: driver)
    with pytest.raises(InputError) as caught:
        gpu.choose_card(0)
    message = caught.value.message
    assert said in message and message.startswith("--device gpu, but ") and message.endswith("--device cpu")


def test_the_driver_is_found_on_linux_and_on_wsl(monkeypatch):
    there = set()
    monkeypatch.setattr(os.path, "exists", there.__contains__)
    assert not gpu.has_driver()
    there.add("/dev/dxg")  # also there for GPUs of other vendors
    monkeypatch.setattr(device, "installed_build", lambda: BUILD)
    assert not gpu.has_driver() and device.default_device() == "cpu"
    there.add("/usr/lib/wsl/lib/libcuda.so.1")
    assert gpu.has_driver() and device.default_device() == "gpu"
    there.clear()
    there.add("/dev/nvidiactl")
    assert gpu.has_driver()


@pytest.mark.parametrize(
    "build, onnxruntime, chosen",
    [(BUILD, "", "gpu"), (BUILD._replace(cuda=""), "", "cpu"), (None, "", "cpu"), (None, "1.20.0", "gpu")],
)
def test_beside_a_driver_the_installed_build_decides(monkeypatch, build, onnxruntime, chosen):
    monkeypatch.setattr(device, "has_driver", lambda: True)
    monkeypatch.setattr(device, "installed_build", lambda: build)
    monkeypatch.setattr(device, "version_of", {"onnxruntime-gpu": onnxruntime}.get)
    assert device.default_device() == chosen


PLACES = {
    PretrainConfig: "--model_name_or_path m --input_dir d --output_dir o",
    TrainConfig: "--model_name_or_path m --output_dir o --train_file t --dev_file d",
}


def flags(config_class, more=""):
    return parse_config(config_class, f"{PLACES[config_class]} --device gpu {more}".split())


@pytest.mark.parametrize("config_class", [PretrainConfig, TrainConfig])
def test_bf16_is_refused_on_gpus_without_support(config_class):
    config = flags(config_class, "--use_amp true --amp_dtype bfloat16")
    config.refuse_on(A100)
    hint = "use amp_dtype float16"
    with pytest.raises(InputError, match=f"needs a GPU of compute capability 8.0, this one has 7.0; {hint}"):
        config.refuse_on(V100)
    flags(config_class, "--use_amp true --amp_dtype float16").refuse_on(V100)


def test_dynamic_graph_float16_needs_hardware_support():
    words = "--use_amp true --amp_dtype float16"
    flags(PretrainConfig, words).refuse_on(P40)  # a static program can compute in it anyway
    with pytest.raises(InputError, match="^amp_dtype float16 needs a GPU .* 7.0, this one has 6.1; use "):
        flags(TrainConfig, words).refuse_on(P40)
    flags(TrainConfig).refuse_on(P40)


class Core:
    """The part of Paddle's core that only GPU builds have."""

    cublas = cudnn = True

    def get_cublas_switch(self):
        return self.cublas

    def set_cublas_switch(self, value):
        self.cublas = value

    def set_cudnn_switch(self, value):
        self.cudnn = value


@pytest.fixture
def started(machine, monkeypatch):
    """Start a device as a run does; also return what Paddle was told."""
    core, said = Core(), []
    machine((8, 0))
    monkeypatch.setattr(paddle.base, "core", core)
    monkeypatch.setattr(paddle, "set_device", said.append)
    monkeypatch.setattr(device, "open_card", said.append)
    return lambda *words, **more: (device.start_device("gpu", World(), *words, **more), core, said)


def test_tf32_is_off_and_stays_off_in_an_evaluation(started):
    assert started()[1].cublas is False and started()[1].cudnn is False
    _, core, _ = started(flags(PretrainConfig))
    assert not core.cublas and not core.cudnn
    core_settings.set_tf32(True)  # of a user's own
    with core_settings.without_tf32():
        assert not core.cublas and not core.cudnn
    assert core.cublas and core.cudnn


@pytest.mark.parametrize("size, backend", [(1, None), (2, "gloo")])
def test_cpu_processes_use_gloo_with_any_build(monkeypatch, size, backend):
    monkeypatch.setenv(device.BACKEND_VARIABLE, "auto")
    monkeypatch.delenv(device.BACKEND_VARIABLE)
    device.start_device("cpu", World(0, size))
    assert os.environ.get(device.BACKEND_VARIABLE) == backend


def test_the_build_is_that_of_the_imported_paddle_if_any(monkeypatch):
    build = gpu.installed_build()
    assert build.version == paddle.version.full_version and (build.folder / "libs").is_dir()
    assert build.cuda == ("" if paddle.version.cuda() == "False" else paddle.version.cuda())
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    assert gpu.installed_build() is None


def test_the_kernel_check_passes_on_the_cpu():
    found = gpu.run_check("kernels", -1)
    assert not found.faults and len(found.facts["errors"]) == 7


ENDS = {
    "aborts": ("import os; os.abort()", "was ended by SIGABRT"),
    "fails": ("raise OSError('CUDA error(35), driver too old')", "ended with exit code 1: OSError: CUDA"),
    "lacks a library": (
        "import os; os.write(2, b'Error: libnvrtc.so: cannot open shared object file\\nFatalError\\n'); "
        "os.abort()",
        "was ended by SIGABRT: Error: libnvrtc.so: cannot open shared object file",
    ),
    "hangs": ("import time; time.sleep(60)", "no answer within 1 s"),
    "says nonsense": ("print('{}')", "ended with exit code 0"),
}


@pytest.mark.parametrize("what", ENDS)
def test_a_failing_check_process_is_reported_in_one_line(what, monkeypatch, tmp_path):
    program, said = ENDS[what]
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexec '{gpu.sys.executable}' -c \"{program}\"\n")
    python.chmod(0o755)
    monkeypatch.setattr(gpu.sys, "executable", str(python))
    (fault,) = gpu.run_check("kernels", 0, 1 if what == "hangs" else 60).faults
    assert fault.startswith("kernels: ") and said in fault and "\n" not in fault


# --- mixed precision: the default type for this machine's GPU

PRETRAIN = {name: "unused" for name in ("model_name_or_path", "input_dir", "output_dir")}
PAIRS = {name: "unused" for name in ("model_name_or_path", "train_file", "dev_file", "output_dir")}
O2 = {"use_amp": True, "amp_level": "O2"}


@pytest.fixture(params=[(PretrainConfig, PRETRAIN), (TrainConfig, PAIRS)], ids=["pretraining", "pairs"])
def configure(request):
    config_class, needed = request.param
    return lambda **flags: config_class(**needed, **{"device": "gpu", **flags})


@pytest.mark.parametrize(
    "capability, dtype", [((7, 5), "float16"), ((8, 0), "bfloat16"), ((9, 0), "bfloat16"), (None, "float16")]
)
def test_the_default_amp_dtype_depends_on_the_gpu(configure, monkeypatch, capability, dtype):
    monkeypatch.setattr(amp_flags, "gpu_capability", lambda: capability)
    assert configure(use_amp=True).amp_dtype == dtype
    for asked in ("float16", "float32"):
        assert configure(use_amp=True, amp_dtype=asked).amp_dtype == asked
    monkeypatch.setattr(amp_flags, "gpu_capability", lambda: pytest.fail("asked"))
    assert configure().amp_dtype == "auto"


def test_a_search_may_try_with_and_without_use_amp():
    search = SearchParamsConfig(**PAIRS, device="gpu", use_amp=True, space="space.yaml")
    assert search.config_of({"use_amp": True}).amp_dtype == search.amp_dtype != "auto"
    assert search.config_of({"use_amp": False}).amp_dtype == "auto"
    with pytest.raises(InputError, match="amp_dtype needs use_amp"):
        search.config_of({"use_amp": False, "amp_dtype": "bfloat16"})


class FakeDriver:
    """The driver interface of a machine with one GPU of capability 8.6, or with none."""

    def __init__(self, gpus):
        self.gpus = gpus

    def cuInit(self, flags):
        return 0 if self.gpus else 100

    def cuDeviceGet(self, device, number):
        return 0 if number < self.gpus else 101

    def cuDeviceGetCount(self, count):
        count._obj.value = self.gpus
        return 0

    def cuDeviceGetAttribute(self, value, attribute, device):
        value._obj.value = {75: 8, 76: 6}[attribute]
        return 0


@pytest.mark.parametrize("gpus, capability", [(1, (8, 6)), (0, None), (None, None)])
def test_the_compute_capability_is_read_from_the_driver(monkeypatch, gpus, capability):
    if gpus is None:
        monkeypatch.setattr(of_gpus, "CUDA_LIBRARY", "libabsent.so.1")
    else:
        monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeDriver(gpus))
    of_gpus.gpu_capability.cache_clear()
    assert of_gpus.gpu_capability() == capability
    of_gpus.check_gpus(range(gpus), "--devices 0") if gpus else None
    with pytest.raises(InputError, match=f"^devices 0,1: CUDA shows {gpus or 0} GPU.* CUDA_VISIBLE_DEVICES"):
        of_gpus.check_gpus([0, 1], "--devices 0,1")
    of_gpus.gpu_capability.cache_clear()
