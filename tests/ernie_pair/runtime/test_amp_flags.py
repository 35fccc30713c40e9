"""The flags of mixed precision: the default type for this machine's GPU, and what is refused."""

import ctypes

import pytest

from ernie_pair.core.errors import InputError
from ernie_pair.experiments.config import SearchParamsConfig
from ernie_pair.pairs.config.pair_config import TrainConfig
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.runtime import amp_flags
from ernie_pair.runtime import gpu as of_gpus

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
def test_the_default_amp_dtype_depends_on_the_gpu(configure, monkeypatch, capability, dtype):
    monkeypatch.setattr(amp_flags, "gpu_capability", lambda: capability)
    assert configure(use_amp=True).amp_dtype == dtype
    for asked in ("float16", "float32"):
        assert configure(use_amp=True, amp_dtype=asked).amp_dtype == asked
    monkeypatch.setattr(amp_flags, "gpu_capability", lambda: pytest.fail("asked"))
    assert configure().amp_dtype == "auto"


@pytest.mark.parametrize("value", ["float16", "float32"])
def test_mixed_precision_flags_require_use_amp(configure, value):
    with pytest.raises(InputError, match="^amp_dtype needs use_amp=True; add it, or leave"):
        configure(amp_dtype=value)
    with pytest.raises(InputError, match="^amp_level needs use_amp=True; add it, or leave"):
        TrainConfig(**PAIRS, device="gpu", amp_level="O2")


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
    of_gpus.gpu_capability.cache_clear()
