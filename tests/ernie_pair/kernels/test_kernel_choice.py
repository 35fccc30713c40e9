"""Which path a model takes: every reason for the plain one, every error, and what processes agree on."""

import ctypes
import hashlib
import json
import platform
import re
import shutil
import sys
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from fake_ranks import on_ranks
from levels import needs_bf16, needs_fused
from places import ROOT
from tiny_pair import train_config, write_model, write_new

from ernie_pair.checkpoint.checkpoint_folder import MANIFEST
from ernie_pair.core.errors import InputError
from ernie_pair.kernels import library
from ernie_pair.kernels.choice import KernelChoice, KernelFlags, agree_on_path, choose_kernels, choose_plain
from ernie_pair.kernels.library import open_kernels
from ernie_pair.models.networks.classifier import build_classifier
from ernie_pair.models.networks.kernel_path import choose_path
from ernie_pair.models.source import open_model
from ernie_pair.pairs.config.ask_config import PredictConfig
from ernie_pair.pairs.train.train_pair import train_pair
from ernie_pair.runtime.cpu import LEVEL_ASKED, LEVELS

HEADER = ROOT / "ernie_pair/kernels/cpp/fused.h"
PINNED = 7, "222432fe080b7ead"  # FUSED_VERSION, and the digest of fused.h


@pytest.fixture
def without(monkeypatch, tmp_path):
    """No compiled kernels: an empty kernel folder, into which a test may put a file."""
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    return tmp_path


def refused(words, **flags):
    with pytest.raises(InputError) as caught:
        choose_kernels(KernelFlags(**flags), "cpu")
    assert re.search(words, caught.value.message) and "\n" not in caught.value.message


STRUCTURES = {"fused_layer": "LayerCall", "fused_embedding": "EmbeddingCall", "fused_adamw": "AdamwCall"}
NUMBERS = {f"{name}_t": getattr(ctypes, f"c_{name}") for name in ("int32", "uint32", "int64")}
NUMBERS.update(int=ctypes.c_int, size_t=ctypes.c_size_t, float=ctypes.c_float, double=ctypes.c_double)


def interface_text():
    """The header without comments, with whitespace collapsed to single spaces."""
    return re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S))


def type_of(declared):
    """The ctypes type for a type of the header; a pointer is void unless to a structure or a string."""
    declared = declared.replace("const ", "").strip()
    if declared == "void":
        return None
    if declared == "char *":
        return ctypes.c_char_p
    if "*" not in declared:
        return NUMBERS[declared]
    pointed = declared.rstrip("* ")
    if pointed in STRUCTURES and declared.count("*") == 1:
        return ctypes.POINTER(getattr(library, STRUCTURES[pointed]))
    return ctypes.c_void_p


def arguments_of(text):
    found = [] if text.strip() in ("", "void") else text.split(",")
    return [type_of(re.fullmatch(r"(.*?[ *])\w+", one.strip()).group(1)) for one in found]


@pytest.mark.parametrize("name", STRUCTURES)
def test_ctypes_structures_match_the_header(name):
    (body,) = re.findall(rf"typedef struct {{([^}}]*)}} {name};", interface_text())
    fields = []
    for line in filter(str.strip, body.split(";")):
        kind, names = re.fullmatch(r"((?:const )?\w+ \*?)(.*)", line.strip()).groups()
        fields += [(one.strip(), type_of(kind)) for one in names.split(",")]
    assert getattr(library, STRUCTURES[name])._fields_ == fields


def test_ctypes_functions_match_the_header():
    found = re.findall(r"FUSED_API (\w+) (fused_\w+)\(([^)]*)\);", interface_text())
    declared = {name: (type_of(result), arguments_of(given)) for result, name, given in found}
    assert len(declared) >= len(library.FUNCTIONS)
    for name, result, arguments in library.FUNCTIONS:
        assert declared[name] == (result, list(arguments)), name


def test_a_changed_header_needs_a_new_version():
    """After a change of what fused.h declares, raise FUSED_VERSION and VERSION, and update this pin."""
    version, digest = PINNED
    assert f"#define FUSED_VERSION {library.VERSION} " in interface_text()
    unnumbered = re.sub(r"FUSED_VERSION \d+", "FUSED_VERSION", interface_text())
    found = hashlib.sha256(unnumbered.encode()).hexdigest()[:16]
    assert (library.VERSION, found) == (version, digest), "raise the version, and pin it with the digest"


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64" or shutil.which("g++") is None,
    reason="no kernels are built here",
)
def test_kernels_are_built_if_a_compiler_is_available():
    """A failed kernel build does not fail the package build, and all other kernel tests are then skipped."""
    assert list(library.FOLDER.glob("_fused*.so")), "see what python setup.py build_ext --inplace says"
    if "avx2" in Path("/proc/cpuinfo").read_text():
        assert open_kernels().reason == ""


@needs_fused
@pytest.mark.parametrize("level", ["avx2", "avx512"])
def test_a_requested_lower_level_is_used_and_rejects_bf16(monkeypatch, level):
    if LEVELS.index(level) > LEVELS.index(open_kernels().level):
        pytest.skip(f"this processor has no {level}")
    monkeypatch.setenv(LEVEL_ASKED, level)
    choice = choose_kernels(KernelFlags(), "cpu")
    assert (choice.path, choice.level, choice.name) == ("fused", level, f"fused {level} fp32")
    why = rf"(this processor has no AVX512-BF16|{LEVEL_ASKED}={level} is set)"
    assert re.search(f"^fused kernels, {level}, products in fp32; no bf16: {why}$", choice.describe())
    refused(rf"--precision bf16 needs .*AVX512-BF16 \({why}\); use --precision fp32", precision="bf16")


@needs_fused
def test_embeddings_computed_by_paddle_are_reported(tmp_path):
    """The kernels do not support ELECTRA's embeddings."""
    for family, by_paddle in (("electra", True), ("ernie", False)):
        source = open_model(str(write_new(tmp_path / family, family)), model_type="", from_scratch=True)
        choice = choose_path(build_classifier(source, 0, 0.0), KernelFlags(), "cpu")
        assert choice.is_fused and choice.describe().endswith("; embeddings by Paddle") == by_paddle


def test_levels_none_and_unknown_are_told_apart(monkeypatch):
    monkeypatch.setenv(LEVEL_ASKED, "none")
    choice = choose_kernels(KernelFlags(), "cpu")
    assert choice.describe() == f"plain kernels of Paddle: {LEVEL_ASKED}=none is set" and not choice.is_fused
    refused("--kernels fused: .*=none is set; use --kernels auto", kernels="fused")
    refused("--precision bf16 needs the fused kernels: .*use --precision fp32", precision="bf16")
    monkeypatch.setenv(LEVEL_ASKED, "sse")
    refused("ERNIE_PAIR_KERNELS_LEVEL=sse in the environment is not one of none, avx2")


def test_without_kernels_or_processor_the_reason_is_given(without, monkeypatch):
    assert "built without its compiled kernels" in choose_kernels(KernelFlags(), "cpu").reason
    refused("--kernels fused: the package was built without", kernels="fused")
    library._open.cache_clear()
    monkeypatch.setattr(library.platform, "machine", lambda: "aarch64")
    reason = "the fused kernels are for x86-64 processors, and this one is aarch64"
    assert choose_kernels(KernelFlags(), "cpu").reason == reason
    refused(f"--kernels fused: {reason}; use --kernels auto", kernels="fused")


@needs_fused
def test_weights_of_another_dtype_get_no_fused_kernels(tmp_path):
    source = open_model(str(write_model(tmp_path / "m")), model_type="ernie", from_scratch=True)
    model = build_classifier(source, 0, 0.0)
    model.layers()[0].linear1.to(dtype="float64")
    with pytest.raises(InputError, match="need every weight and bias in float32"):
        choose_path(model, KernelFlags(kernels="fused"), "cpu")


@needs_fused
def test_kernels_built_for_this_python_are_preferred(without):
    """Files for other Pythons may be from an earlier build, and their names sort first."""
    compiled = next(path for path in (ROOT / "ernie_pair/kernels").glob("_fused*.so"))
    (without / "_fused.cpython-30-x86_64-linux-gnu.so").write_bytes(b"of an earlier build")
    shutil.copy(compiled, without / f"_fused{EXTENSION_SUFFIXES[0]}")
    assert choose_kernels(KernelFlags(), "cpu").is_fused


@needs_fused
@pytest.mark.parametrize("kind", ["broken", "foreign"])
def test_a_file_that_is_no_kernels_falls_back_to_plain(without, kind):
    """Also a library without the expected functions."""
    if kind == "foreign":
        shutil.copy(Path(paddle.__file__).parent / "libs" / library.OPENMP, without / "_fused.so")
    else:
        (without / "_fused.so").write_bytes(b"\x7fELF nothing of the kind")
    assert choose_kernels(KernelFlags(), "cpu").reason.startswith("_fused.so cannot be used (")
    refused("--kernels fused: _fused.so cannot be used", kernels="fused")


@needs_fused
def test_an_outdated_compiled_file_falls_back_to_plain(monkeypatch):
    monkeypatch.setattr(library, "VERSION", 99)
    monkeypatch.setenv(LEVEL_ASKED, "avx2")  # not the level that is already loaded
    assert re.search(r"has version \d+ of the kernels, not 99", choose_kernels(KernelFlags(), "cpu").reason)
    library._open.cache_clear()


@needs_fused
@pytest.mark.parametrize(
    "level, why", [(0, "this processor has no AVX2"), (1, "of this Paddle does not work")]
)
def test_kernels_that_do_not_open_say_why(monkeypatch, level, why):
    answers = {"fused_version": library.VERSION, "fused_processor_level": level}
    fake = SimpleNamespace()
    for name, *_ in library.FUNCTIONS:
        setattr(fake, name, partial(lambda answer, *given: answer, answers.get(name, 0)))
    monkeypatch.setattr(library.ctypes, "CDLL", lambda *given, **flags: fake)
    assert library._open.__wrapped__(library.FOLDER, "avx512").reason.endswith(why)


@needs_fused
def test_a_paddle_without_onednn_falls_back_to_plain(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "_paddle_libraries", lambda: tmp_path)
    library._open.cache_clear()
    assert choose_kernels(KernelFlags(), "cpu").reason == "this Paddle has no libiomp5.so"
    library._open.cache_clear()


def test_a_gpu_uses_the_plain_path_and_amp_for_bf16(tmp_path):
    assert "for the CPU" in choose_kernels(KernelFlags(), "gpu").reason
    with pytest.raises(InputError, match="use use_amp=True amp_dtype bfloat16 instead"):
        choose_kernels(train_config(tmp_path, precision="bf16"), "gpu")


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_inference_on_a_gpu_casts_products(precision):
    choice = choose_kernels(KernelFlags(precision=precision), "gpu", casts=True)
    assert (choice.is_fused, choice.is_cast, choice.name) == (False, True, f"plain {precision}")
    assert f"plain kernels of Paddle, products in {precision}: " in choice.describe()
    plain = choose_kernels(KernelFlags(), "gpu", casts=True)
    assert (plain.is_cast, plain.name) == (False, "plain")
    with pytest.raises(InputError, match="needs the fused kernels: .*; use precision fp32"):
        choose_kernels(KernelFlags(precision=precision), "gpu")


def test_fp16_and_bf16_are_refused_where_they_cannot_be():
    refused("--precision fp16 needs a GPU; use fp32, or bf16 if", precision="fp16")
    with pytest.raises(InputError, match="kernels fused: the fused kernels are for the CPU"):
        choose_kernels(KernelFlags(kernels="fused"), "gpu", casts=True)
    asked = PredictConfig(model_path="m", input_file="i", output_file="o", device="gpu", precision="bf16")
    with pytest.raises(InputError, match="precision bf16 needs the fused kernels: .*; use precision fp32$"):
        choose_kernels(asked, "gpu")


@needs_fused
@pytest.mark.parametrize("family, changes, reason", [
    ("nezha", {"use_relative_position": True, "max_relative_position": 8}, "do not support "),
    ("ernie", {"hidden_act": "tanh"}, "support gelu and relu, not tanh"),
])  # fmt: skip
def test_unsupported_layers_take_the_plain_path(tmp_path, family, changes, reason):
    source = open_model(str(write_model(tmp_path / "m", **changes)), model_type=family, from_scratch=True)
    model = build_classifier(source, 0, 0.0)
    choice = choose_path(model, KernelFlags(), "cpu")
    assert not choice.is_fused and reason in choice.describe() and model.fused_state is None
    with pytest.raises(InputError, match=f"^kernels fused: .*{reason}"):
        choose_path(model, KernelFlags(kernels="fused"), "cpu")


@needs_fused
def test_a_run_logs_its_path_and_stores_it_in_the_checkpoint(tmp_path, capfd):
    train_pair(train_config(tmp_path, max_steps=1))
    level = open_kernels().level
    assert f"fused kernels, {level}, products in fp32" in capfd.readouterr().err
    (folder,) = (tmp_path / "out" / "checkpoints").glob("step_*")
    assert json.loads((folder / MANIFEST).read_text())["topology"]["kernels"] == f"fused {level} fp32"


@needs_bf16
def test_a_run_cannot_resume_in_another_precision(tmp_path):
    train_pair(train_config(tmp_path, max_steps=1))
    with pytest.raises(InputError, match="precision was 'fp32' and is now 'bf16'"):
        train_pair(train_config(tmp_path, max_steps=1, precision="bf16"))


# --- all processes of a run use the same path, or fail together


AUTO, FUSED = KernelFlags(), KernelFlags(kernels="fused")
HIGH, LOW = KernelChoice("fused", "avx512"), KernelChoice("fused", "avx2")
NONE = KernelChoice("plain", reason="no compiled file")


def agree(choices, flags=AUTO):
    """What each process gets, given the choices they made alone; an InputError is a process that refuses."""

    def choose(own):
        if isinstance(own, InputError):
            raise own
        return own

    def on_rank(world, all_reduce):
        own = choices[world.rank]
        return agree_on_path(lambda: choose(own), flags, "cpu", world.size, all_reduce)

    return on_ranks(len(choices), on_rank)


@pytest.mark.parametrize("choice", [HIGH, LOW, NONE])
def test_processes_with_the_same_choice_keep_it(choice):
    assert agree([choice] * 3) == [choice] * 3


@pytest.mark.parametrize("choices", [(HIGH, LOW), (LOW, NONE), (HIGH, HIGH, NONE)])
def test_differing_choices_fall_back_to_the_plain_path(choices):
    found = agree(choices)
    assert {choice.name for choice in found} == {"plain"}
    for own, choice in zip(choices, found):
        assert choice.reason == own.reason or "another process of this run cannot use" in choice.reason
    assert any("another process" in choice.reason for choice in found)


def test_mixed_levels_agree_in_float32_alone():
    """These levels differ only in their bfloat16 products."""
    choices = [KernelChoice("fused", level) for level in ("amx_bf16", "avx512", "avx512_bf16")]
    assert agree(choices) == choices
    found = agree([KernelChoice("fused", level, "bf16") for level in ("amx_bf16", "avx512_bf16")])
    hint = "multiply in different ways; set ERNIE_PAIR_KERNELS_LEVEL=avx512_bf16 in the environment of every"
    assert all(hint in one.message for one in found)


def test_one_failing_process_makes_all_of_them_fail():
    with pytest.raises(InputError) as caught:
        choose_plain(FUSED, "no compiled file", "cpu")
    found = agree([HIGH, caught.value, HIGH], FUSED)
    assert all(isinstance(one, InputError) for one in found) and found[1] is caught.value
    assert "another process of this run refuses --kernels or --precision" in found[0].message


@pytest.mark.parametrize("size, device, flags", [(1, "cpu", AUTO), (2, "gpu", AUTO), (2, "cpu", "plain")])
def test_no_collective_runs_if_the_choice_is_already_fixed(size, device, flags):
    def nobody(values: np.ndarray):
        raise AssertionError("a collective")

    flags = KernelFlags(kernels="plain") if flags == "plain" else flags
    assert agree_on_path(lambda: NONE, flags, device, size, nobody) == NONE
