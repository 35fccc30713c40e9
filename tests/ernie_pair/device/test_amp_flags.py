"""The flags of mixed precision: the type of this machine's GPU, and what is refused."""

import ctypes

import pytest

from data_tools.base.errors import InputError
from ernie_pair.device import amp_flags
from ernie_pair.device.gpu import capability as of_gpus
from ernie_pair.pair.config.pair_config import TrainConfig
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig

PRETRAIN = {name: "unused" for name in ("model_name_or_path", "input_dir", "output_dir")}
PAIRS = {name: "unused" for name in ("model_name_or_path", "train_file", "dev_file", "output_dir")}
O2 = {"use_amp": True, "amp_level": "O2"}


@pytest.fixture(params=[(PretrainConfig, PRETRAIN), (TrainConfig, PAIRS)], ids=["pretraining", "pairs"])
def configure(request):
    config_class, needed = request.param
    return lambda **flags: config_class(**needed, **{"device": "gpu", **flags})


@pytest.mark.parametrize(
    "capability, dtype",
    [((7, 5), "float16"), ((8, 0), "bfloat16"), ((9, 0), "bfloat16"), (None, "float16")],
)
def test_the_usual_type_is_that_of_the_gpu(configure, monkeypatch, capability, dtype):
    monkeypatch.setattr(amp_flags, "gpu_capability", lambda: capability)
    assert configure(use_amp=True).amp_dtype == dtype
    assert configure(use_amp=True, amp_dtype="float16").amp_dtype == "float16"
    assert configure(use_amp=True, amp_dtype="float32").amp_dtype == "float32"


def test_without_mixed_precision_no_gpu_is_asked(configure, monkeypatch):
    monkeypatch.setattr(amp_flags, "gpu_capability", lambda: pytest.fail("asked"))
    assert configure().amp_dtype == "float16"  # as checkpoints of earlier versions have it


class FakeDriver:
    """The driver interface of a machine with one GPU of capability 8.6, or with none."""

    def __init__(self, gpus):
        self.gpus = gpus

    def cuInit(self, flags):
        return 0 if self.gpus else 100

    def cuDeviceGet(self, device, number):
        return 0 if number < self.gpus else 101

    def cuDeviceGetAttribute(self, value, attribute, device):
        value._obj.value = {75: 8, 76: 6}[attribute]
        return 0


@pytest.fixture
def asked_anew():
    of_gpus.gpu_capability.cache_clear()
    yield
    of_gpus.gpu_capability.cache_clear()


@pytest.mark.parametrize("gpus, capability", [(1, (8, 6)), (0, None)])
def test_the_driver_tells_the_capability(asked_anew, monkeypatch, gpus, capability):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeDriver(gpus))
    assert of_gpus.gpu_capability() == capability


def test_without_a_driver_there_is_no_capability(asked_anew, monkeypatch):
    monkeypatch.setattr(of_gpus, "LIBRARY", "libabsent.so.1")
    assert of_gpus.gpu_capability() is None


def test_half_sums_need_gradients_in_half_precision(configure):
    for flags in ({}, {"use_amp": True, "amp_dtype": "float32"}):
        with pytest.raises(InputError, match="^reduce_dtype half is of gradients in half precision, and"):
            configure(reduce_dtype="half", **flags)
    assert configure(reduce_dtype="half", **O2).widens_sums is False
    assert configure(**O2).widens_sums is True


def test_half_sums_of_float32_gradients_of_pairs_are_refused():
    with pytest.raises(InputError, match="reduce_dtype half: with amp_level O1 the gradients are in float32"):
        TrainConfig(**PAIRS, device="gpu", use_amp=True, reduce_dtype="half")


def test_half_sums_of_merged_gradients_are_refused():
    with pytest.raises(
        InputError, match="^reduce_dtype half: the 2 micro-batches .* leave it out, or"
    ) as caught:
        PretrainConfig(**PRETRAIN, device="gpu", use_amp=True, global_batch_size=16, reduce_dtype="half")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("words", ["softmax,layer_norm", "layer_norm softmax"])
def test_ops_are_taken_back_to_float32_by_name(words):
    config = PretrainConfig(**PRETRAIN, amp_fp32_ops=words)
    assert config.float32_ops == {"softmax", "layer_norm"}
    with pytest.raises(
        InputError, match="amp_fp32_ops matmul: there is no choice about it; use some of gelu"
    ):
        PretrainConfig(**PRETRAIN, amp_fp32_ops="matmul")
