"""Which path a model takes: every reason for the plain one, every refusal, and where it is said."""

import ctypes
import hashlib
import json
import platform
import re
import shutil
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import SimpleNamespace

import paddle
import pytest
from places import ROOT
from tiny_pair import train_config, write_model, write_new

from data_tools.base.errors import InputError
from ernie_pair.checkpoint.checkpoint_folder import MANIFEST
from ernie_pair.device import doctor
from ernie_pair.kernels import c_interface, library
from ernie_pair.kernels import choice as choice_module
from ernie_pair.kernels.choice import choose_kernels
from ernie_pair.kernels.kernel_flags import KernelFlags
from ernie_pair.kernels.levels import LEVEL_ASKED, LEVELS
from ernie_pair.kernels.library import Kernels, open_kernels
from ernie_pair.model_files.source import open_model
from ernie_pair.pair.config.ask_config import PredictConfig
from ernie_pair.pair.model.classifier import build_classifier
from ernie_pair.pair.model.kernel_path import choose_path
from ernie_pair.pair.train.train_pair import train_pair

HEADER = ROOT / "ernie_pair/kernels/cpp/fused.h"
PINNED = 5, "ade5a2aa4d97394c"  # FUSED_VERSION, and what fused.h declares
needs_kernels = pytest.mark.skipif(bool(open_kernels().reason), reason=open_kernels().reason or "never")


@pytest.fixture
def without(monkeypatch, tmp_path):
    """No compiled file at all, in a folder where a test may put another."""
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
    """The header without comments, each gap one space."""
    return re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S))


def type_of(declared):
    """What ctypes has for a type of the header; a pointer is any, but to a structure or to a text."""
    declared = declared.replace("const ", "").strip()
    if declared == "void":
        return None
    if declared == "char *":
        return ctypes.c_char_p
    if "*" not in declared:
        return NUMBERS[declared]
    pointed = declared.rstrip("* ")
    if pointed in STRUCTURES and declared.count("*") == 1:
        return ctypes.POINTER(getattr(c_interface, STRUCTURES[pointed]))
    return ctypes.c_void_p


def arguments_of(text):
    found = [] if text.strip() in ("", "void") else text.split(",")
    return [type_of(re.fullmatch(r"(.*?[ *])\w+", one.strip()).group(1)) for one in found]


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures_are_those_of_the_header(name):
    (body,) = re.findall(rf"typedef struct {{([^}}]*)}} {name};", interface_text())
    fields = []
    for line in filter(str.strip, body.split(";")):
        kind, names = re.fullmatch(r"((?:const )?\w+ \*?)(.*)", line.strip()).groups()
        fields += [(one.strip(), type_of(kind)) for one in names.split(",")]
    assert getattr(c_interface, STRUCTURES[name])._fields_ == fields


def test_functions_are_those_of_the_header():
    declared = {
        name: (type_of(result), arguments_of(arguments))
        for result, name, arguments in re.findall(
            r"FUSED_API (\w+) (fused_\w+)\(([^)]*)\);", interface_text()
        )
    }
    assert len(declared) >= len(c_interface.FUNCTIONS)
    for name, result, arguments in c_interface.FUNCTIONS:
        assert declared[name] == (result, list(arguments)), name


def test_a_changed_header_has_a_version_of_its_own():
    """Whoever changes what fused.h declares raises FUSED_VERSION, VERSION and this pin."""
    version, digest = PINNED
    assert f"#define FUSED_VERSION {c_interface.VERSION} " in interface_text()
    unnumbered = re.sub(r"FUSED_VERSION \d+", "FUSED_VERSION", interface_text())
    found = hashlib.sha256(unnumbered.encode()).hexdigest()[:16]
    assert (c_interface.VERSION, found) == (version, digest), "raise the version, and pin it with the digest"


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64" or shutil.which("g++") is None,
    reason="no kernels are built here",
)
def test_where_there_is_a_compiler_the_kernels_are_built():
    """All other tests of them are skipped where a build of them has failed, which is no error of a build."""
    assert list(library.FOLDER.glob("_fused*.so")), "see what python setup.py build_ext --inplace says"
    if "avx2" in Path("/proc/cpuinfo").read_text():
        assert open_kernels().reason == ""


@needs_kernels
@pytest.mark.parametrize("level", ["avx2", "avx512"])
def test_a_lower_level_is_used_and_refuses_bf16(monkeypatch, level):
    if LEVELS.index(level) > LEVELS.index(open_kernels().level):
        pytest.skip(f"this processor has no {level}")
    monkeypatch.setenv(LEVEL_ASKED, level)
    choice = choose_kernels(KernelFlags(), "cpu")
    assert (choice.path, choice.level, choice.name) == ("fused", level, f"fused {level} fp32")
    why = rf"(this processor has no AVX512-BF16|{LEVEL_ASKED}={level} is set)"
    assert re.search(f"^fused kernels, {level}, products in fp32; no bf16: {why}$", choice.describe())
    refused(rf"--precision bf16 needs .*AVX512-BF16 \({why}\); use --precision fp32", precision="bf16")


@needs_kernels
def test_bf16_that_was_not_compiled_is_no_processors(monkeypatch):
    monkeypatch.delenv(LEVEL_ASKED, raising=False)
    library = SimpleNamespace(fused_processor_level=lambda: LEVELS.index("avx512_bf16"))
    kernels = Kernels(library, "avx512")
    monkeypatch.setattr(choice_module, "open_kernels", lambda: kernels)
    assert (
        choose_kernels(KernelFlags(), "cpu")
        .describe()
        .endswith("; no bf16: the kernels were compiled without it, or libdnnl.so.3 of this Paddle has none")
    )


@needs_kernels
def test_embeddings_that_paddle_computes_are_named(tmp_path):
    """Those of an ELECTRA are none of the kernels' own."""
    for family, by_paddle in (("electra", True), ("ernie", False)):
        source = open_model(str(write_new(tmp_path / family, family)), model_type="", from_scratch=True)
        choice = choose_path(build_classifier(source, 0, 0.0), KernelFlags(), "cpu")
        assert choice.is_fused and choice.describe().endswith("; embeddings by Paddle") == by_paddle


def test_none_is_plain_and_says_why(monkeypatch):
    monkeypatch.setenv(LEVEL_ASKED, "none")
    choice = choose_kernels(KernelFlags(), "cpu")
    assert choice.describe() == f"plain kernels of Paddle: {LEVEL_ASKED}=none is set" and not choice.is_fused
    refused("--kernels fused: .*=none is set; use --kernels auto", kernels="fused")
    refused("--precision bf16 is of the fused kernels: .*use --precision fp32", precision="bf16")


def test_a_level_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv(LEVEL_ASKED, "sse")
    refused("ERNIE_PAIR_KERNELS_LEVEL=sse in the environment is none of none, avx2")


def test_without_a_compiled_file_the_plain_path_is_taken(without):
    assert "built without its compiled kernels" in choose_kernels(KernelFlags(), "cpu").reason
    refused("--kernels fused: the package was built without", kernels="fused")


def test_another_processor_is_named_as_the_reason(without, monkeypatch):
    monkeypatch.setattr(library.platform, "machine", lambda: "aarch64")
    reason = "the fused kernels are for x86-64 processors, and this one is aarch64"
    assert choose_kernels(KernelFlags(), "cpu").reason == reason
    refused(f"--kernels fused: {reason}; use --kernels auto", kernels="fused")


@needs_kernels
def test_the_file_of_this_python_comes_before_others(without):
    """Those of other Pythons may be of an earlier build; their names come first in the alphabet."""
    compiled = next(path for path in (ROOT / "ernie_pair/kernels").glob("_fused*.so"))
    (without / "_fused.cpython-30-x86_64-linux-gnu.so").write_bytes(b"of an earlier build")
    shutil.copy(compiled, without / f"_fused{EXTENSION_SUFFIXES[0]}")
    assert choose_kernels(KernelFlags(), "cpu").is_fused


def test_a_broken_compiled_file_is_the_plain_path(without):
    (without / "_fused.so").write_bytes(b"\x7fELF nothing of the kind")
    assert choose_kernels(KernelFlags(), "cpu").reason.startswith("_fused.so cannot be used (")
    refused("--kernels fused: _fused.so cannot be used", kernels="fused")


@needs_kernels
def test_another_library_is_the_plain_path(without):
    """One without the functions, and one of another version."""
    shutil.copy(Path(paddle.__file__).parent / "libs" / library.OPENMP, without / "_fused.so")
    assert "cannot be used (" in choose_kernels(KernelFlags(), "cpu").reason


@needs_kernels
def test_an_older_compiled_file_is_the_plain_path(monkeypatch):
    monkeypatch.setattr(library, "VERSION", 99)
    monkeypatch.setenv(LEVEL_ASKED, "avx2")  # not the level that is open
    assert re.search(
        r"is of version \d+ of the kernels, and not 99", choose_kernels(KernelFlags(), "cpu").reason
    )
    library._open.cache_clear()


@needs_kernels
def test_a_paddle_without_onednn_is_the_plain_path(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "_paddle_libraries", lambda: tmp_path)
    library._open.cache_clear()
    assert choose_kernels(KernelFlags(), "cpu").reason == "this Paddle brings no libiomp5.so"
    library._open.cache_clear()


def test_a_gpu_takes_the_plain_path_and_its_own_bf16(tmp_path):
    assert "of the CPU" in choose_kernels(KernelFlags(), "gpu").reason
    with pytest.raises(InputError, match="use use_amp=True amp_dtype bfloat16 in its place"):
        choose_kernels(train_config(tmp_path, precision="bf16"), "gpu")


def test_a_command_without_amp_is_not_told_to_use_it():
    asked = PredictConfig(model_path="m", input_file="i", output_file="o", device="gpu", precision="bf16")
    with pytest.raises(InputError, match="precision bf16 is of the fused kernels: .*; use precision fp32$"):
        choose_kernels(asked, "gpu")


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_who_asks_on_a_gpu_casts_products(precision):
    choice = choose_kernels(KernelFlags(precision=precision), "gpu", casts=True)
    assert (choice.is_fused, choice.is_cast, choice.name) == (False, True, f"plain {precision}")
    assert f"plain kernels of Paddle, products in {precision}: " in choice.describe()
    plain = choose_kernels(KernelFlags(), "gpu", casts=True)
    assert (plain.is_cast, plain.name) == (False, "plain")
    with pytest.raises(InputError, match="is of the fused kernels: .*; use precision fp32"):
        choose_kernels(KernelFlags(precision=precision), "gpu")


def test_fp16_is_of_gpus_alone():
    refused("--precision fp16 needs a GPU; use fp32, or bf16 where", precision="fp16")
    with pytest.raises(InputError, match="kernels fused: the fused kernels are of the CPU"):
        choose_kernels(KernelFlags(kernels="fused"), "gpu", casts=True)


def test_bf16_without_the_kernels_is_refused_at_once():
    with pytest.raises(InputError, match="^precision bf16 is not of kernels plain, .*; leave one"):
        KernelFlags(kernels="plain", precision="bf16")


@needs_kernels
@pytest.mark.parametrize(
    "family, changes, reason",
    [
        ("nezha", {"use_relative_position": True, "max_relative_position": 8}, "no layer such as "),
        ("ernie", {"hidden_act": "tanh"}, "know gelu and relu, and not tanh"),
    ],
)
def test_other_layers_take_the_plain_path(tmp_path, family, changes, reason):
    source = open_model(str(write_model(tmp_path / "m", **changes)), model_type=family, from_scratch=True)
    model = build_classifier(source, 0, 0.0)
    choice = choose_path(model, KernelFlags(), "cpu")
    assert not choice.is_fused and reason in choice.describe() and model.fused_state is None
    with pytest.raises(InputError, match=f"^kernels fused: .*{reason}"):
        choose_path(model, KernelFlags(kernels="fused"), "cpu")


@needs_kernels
def test_a_run_says_its_path_and_keeps_it_in_its_checkpoint(tmp_path, capfd):
    train_pair(train_config(tmp_path, max_steps=1))
    level = open_kernels().level
    assert f"fused kernels, {level}, products in fp32" in capfd.readouterr().err
    (folder,) = (tmp_path / "out" / "checkpoints").glob("step_*")
    assert json.loads((folder / MANIFEST).read_text())["topology"]["kernels"] == f"fused {level} fp32"


@pytest.mark.skipif(not open_kernels().has_bf16, reason="no AVX512-BF16 here")
def test_a_run_does_not_go_on_in_another_precision(tmp_path):
    train_pair(train_config(tmp_path, max_steps=1))
    with pytest.raises(InputError, match="precision was 'fp32' and is now 'bf16'"):
        train_pair(train_config(tmp_path, max_steps=1, precision="bf16"))


def test_doctor_says_what_the_kernels_are(monkeypatch):
    monkeypatch.setenv(LEVEL_ASKED, "none")
    assert doctor._kernels() == f"plain kernels of Paddle: {LEVEL_ASKED}=none is set"


@needs_kernels
def test_doctor_says_why_the_kernels_are_no_faster(monkeypatch):
    monkeypatch.setenv(LEVEL_ASKED, "avx2")
    assert doctor._kernels().startswith("fused kernels, avx2, products in fp32; no bf16: ")
