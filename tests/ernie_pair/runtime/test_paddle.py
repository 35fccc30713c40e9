"""Paddle and PaddleNLP as a run starts them: versions, patches, imports, flags, device and seed."""

import logging
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from children import output_of

from ernie_pair import set_seed
from ernie_pair.core.errors import InputError
from ernie_pair.models.families import FAMILIES
from ernie_pair.runtime import device, gpu
from ernie_pair.runtime.device import DETERMINISTIC, VIEWS, set_deterministic, start_device
from ernie_pair.runtime.gpu import Build
from ernie_pair.runtime.paddle_patches import static_programs
from ernie_pair.runtime.processes.world import World

# --- which versions are refused


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.delitem(sys.modules, "paddle", raising=False)

    def install(version):
        build = Build(version, "", Path("/no/paddle")) if version else None
        monkeypatch.setattr(gpu, "installed_build", lambda: build)

    return install


@pytest.mark.parametrize("version", ["", "3.3.0", "3.3.1", "3.3.1.post126"])
def test_supported_versions_of_paddle_are_accepted(installed, version):
    installed(version)
    gpu.check_paddle_version()


@pytest.mark.parametrize("version", ["2.6.2", "3.0.0", "3.1.1", "3.2.2", "3.4.0", "4.0.0"])
def test_other_versions_are_refused_before_they_load(installed, version):
    installed(version)
    words = rf"^Paddle {version} is not supported, 3\.3 is; pip install .*cpu\]"
    for starts in (lambda: start_device("cpu", World()), gpu.check_paddle_version):
        with pytest.raises(InputError, match=words) as caught:
            starts()
        assert "\n" not in caught.value.message and "paddle" not in sys.modules


def test_the_version_is_known_before_paddle_is_loaded():
    program = (
        "import ernie_pair, sys; from ernie_pair.runtime import gpu as p; assert 'paddle' not in"
        " sys.modules; known = p.paddle_version(); import paddle; assert paddle.__version__ == known"
    )
    output_of("-c", program)


# --- patches: in effect only while needed, and failing on an unknown Paddle


@pytest.mark.parametrize(
    "is_initialized, is_cpu, lies_on_cpu", [(True, True, True), (True, False, False), (False, True, False)]
)
def test_the_place_of_a_cpu_variable_is_the_cpu(monkeypatch, is_initialized, is_cpu, lies_on_cpu):
    """On a GPU the powers of AdamW's betas are in CPU memory; uninitialised variables are nowhere."""
    monkeypatch.setattr(paddle, "CUDAPlace", lambda number: "gpu")  # which a CPU build cannot make
    place = SimpleNamespace(is_cpu_place=lambda: is_cpu)
    variable = SimpleNamespace(_is_initialized=lambda: is_initialized, _place=lambda: place)
    found = static_programs.place_of(variable, "gpu")
    assert (str(found) == str(paddle.CPUPlace())) is lies_on_cpu and (found == "gpu") is not lies_on_cpu


# --- PaddleNLP: its models alone are imported, and whoever asks for the rest gets it

HEAVY = ["datasets", "sklearn", "scipy", "jieba", "paddlenlp.taskflow", "paddlenlp.trainer"]
HEAVY += ["paddlenlp.transformers.gpt", "paddlenlp.transformers.llama"]
MODELS = "from ernie_pair.runtime.paddle_patches.paddlenlp_import import transformers"
COMPUTES = f"""
{MODELS}
paddle.seed(1)
model = transformers.ErnieModel(transformers.ErnieConfig(vocab_size=9, hidden_size=8, num_hidden_layers=2,
    num_attention_heads=2, intermediate_size=16, hidden_dropout_prob=0, attention_probs_dropout_prob=0))
states, _ = model(paddle.to_tensor([[1, 2, 3, 0]]))
print(*states.numpy().ravel().tolist())"""
PROGRAMS = {
    **{
        f"{module} alone": (f"import sys, ernie_pair.{module}; print(*{{*{HEAVY}}} & set(sys.modules))", [])
        for module in ("models.networks.encoders", "models.source")
    },
    "the rest": (
        "import ernie_pair.models.networks.encoders, paddlenlp; "
        "print(paddlenlp.Taskflow.__name__, paddlenlp.datasets.__name__)",
        ["Taskflow", "paddlenlp.datasets"],
    ),
    "the trainer afterwards": (
        "import ernie_pair.models.networks.encoders\nfrom paddlenlp.trainer import set_seed\n"
        "import paddlenlp, sys\nit = sys.modules['paddlenlp.trainer']\n"
        "print(paddlenlp.trainer is it, it.set_seed is set_seed, it.__spec__.origin == it.__file__)",
        ["True"] * 3,
    ),
    "every family alone": (
        f"import sys\n{MODELS}\n"
        f"for begins in {sorted({family.class_start for family in FAMILIES.values()})}:\n"
        "    for part in ('Model', 'ForSequenceClassification'):\n"
        "        getattr(transformers, begins + part).config_class\n"
        f"print(*{{*{HEAVY}}} & set(sys.modules) - {{'jieba'}})",
        [],
    ),
    "another part": (
        "import ernie_pair.models.networks.encoders, paddlenlp.peft; "
        "print(paddlenlp.peft.LoRAModel.__name__)",
        ["LoRAModel"],
    ),
}


def printed(code):
    return output_of("-W", "ignore", "-c", code).split()


@pytest.mark.parametrize("code, words", PROGRAMS.values(), ids=PROGRAMS)
def test_paddlenlp_is_imported_as_far_as_it_is_asked_for(code, words):
    assert printed(code) == words


BROKEN = f"""
import sys
from importlib import import_module
from ernie_pair.core.errors import InputError
sys.modules["aistudio_sdk"] = None
try:
    {MODELS}
except InputError as error:
    print(error.message)
"""


def test_a_paddlenlp_that_cannot_be_imported_is_one_line():
    said = output_of("-W", "ignore", "-c", BROKEN).strip()
    assert said.startswith("PaddleNLP cannot be imported: ") and "aistudio_sdk" in said
    assert "; pip install " in said and "\n" not in said


def test_paddlenlp_computes_what_its_models_alone_compute():
    assert printed(f"import paddle{COMPUTES}") == printed(f"import paddle, paddlenlp{COMPUTES}")


# --- flags for a GPU, views, seeds


@pytest.fixture
def gpu_build(monkeypatch):
    """The flags that a GPU build would have, at their defaults, in a dictionary."""
    found = dict.fromkeys(DETERMINISTIC, 0)

    def get_flags(name):
        if name not in found:
            raise ValueError(f"Flag {name} cannot get its value through this function.")
        return {name: found[name]}

    monkeypatch.setattr(paddle, "get_flags", get_flags)
    monkeypatch.setattr(paddle, "set_flags", found.update)
    return found


def test_on_a_gpu_all_flags_that_the_build_knows_are_set(gpu_build, caplog):
    del gpu_build["FLAGS_use_autotune"]
    with caplog.at_level(logging.INFO):
        assert set_deterministic(True, "gpu") == gpu_build
    assert gpu_build["FLAGS_embedding_deterministic"] == 1 and gpu_build["FLAGS_cudnn_deterministic"] is True
    assert "FLAGS_embedding_deterministic=1, FLAGS_cudnn_deterministic=1" in caplog.text


@pytest.mark.parametrize("is_wanted, device", [(False, "gpu"), (True, "cpu"), (False, "cpu")])
def test_no_flags_are_set_on_a_cpu_or_unless_requested(gpu_build, caplog, is_wanted, device):
    with caplog.at_level(logging.INFO):
        assert set_deterministic(is_wanted, device) == {}
    assert set(gpu_build.values()) == {0}
    assert ("--deterministic false" in caplog.text) == (device == "gpu")


@pytest.fixture
def views(monkeypatch):
    """Let Paddle transpose by views, as it does by default."""
    monkeypatch.setattr(device, "start_threads", lambda: None)
    before = paddle.get_flags(VIEWS)
    paddle.set_flags({VIEWS: True})
    yield
    paddle.set_flags(before)


@pytest.mark.parametrize("asked", [None, "1"])
def test_a_transposed_tensor_is_copied_on_a_cpu_unless_asked(views, monkeypatch, asked):
    def transposed():
        return paddle.ones([2, 3]).transpose([1, 0])

    monkeypatch.setenv(VIEWS, asked) if asked else monkeypatch.delenv(VIEWS, raising=False)
    assert not transposed().is_contiguous(), "Paddle makes no views any more: the setting can go"
    start_device("cpu", World())
    assert transposed().is_contiguous() is (asked is None)
    np.testing.assert_array_equal(transposed().numpy(), np.ones([3, 2]))


def drawn(seed):
    set_seed(seed)
    of_layer = paddle.nn.Linear(3, 3).weight.numpy().tolist()
    return random.random(), np.random.random(), paddle.rand([3]).tolist(), of_layer


def test_a_seed_repeats_what_each_library_draws():
    first = drawn(7)
    assert drawn(np.int64(7)) == first
    assert all(one != other for one, other in zip(first, drawn(8)))
