"""The detected instruction set level of the processor, which the environment may lower."""

import pytest

from data_tools.files.errors import InputError
from ernie_pair.runtime import cpu as module
from ernie_pair.runtime.cpu import LEVEL_ASKED, LEVELS, cpu_level, processor_name, refuse_no_bf16

AVX512 = "fma avx2 avx512f avx512bw avx512dq avx512vl"
PROCESSORS = [
    ("", "none"),
    ("avx2", "none"),
    ("fma avx2", "avx2"),
    ("fma avx2 avx512f", "avx2"),
    (AVX512, "avx512"),
    (f"{AVX512} avx512_bf16", "avx512_bf16"),
    (f"{AVX512} avx512_bf16 amx_bf16", "avx512_bf16"),
    (f"{AVX512} avx512_bf16 amx_tile amx_bf16 amx_int8", "amx_bf16"),
    ("fma avx2 avx512_bf16", "avx2"),
]


@pytest.fixture
def offer(tmp_path, monkeypatch):
    """A function that fakes the flags of the processor; the environment requests no level."""
    monkeypatch.delenv(LEVEL_ASKED, raising=False)
    monkeypatch.setattr(module, "CPU_INFO", tmp_path / "cpuinfo")

    def write(flags):
        (tmp_path / "cpuinfo").write_text(f"vendor_id\t: X\nflags\t\t: fpu {flags} avx512_vnni\npower\t: 1\n")

    return write


@pytest.mark.parametrize("flags, level", PROCESSORS)
def test_the_level_is_derived_from_the_processor_flags(offer, flags, level):
    offer(flags)
    assert cpu_level() == level


@pytest.mark.parametrize("asked", LEVELS)
def test_the_environment_can_only_lower_the_level(offer, monkeypatch, asked):
    monkeypatch.setenv(LEVEL_ASKED, asked)
    offer(AVX512)
    assert cpu_level() == min(asked, "avx512", key=LEVELS.index)


def test_without_processor_flags_the_level_is_none(offer):
    assert cpu_level() == "none"


def test_the_processor_name_is_read_from_cpuinfo(offer):
    assert processor_name() == ""
    module.CPU_INFO.write_text("processor\t: 0\nmodel name\t: A Processor (R) 7\nflags\t\t: fpu\n")
    assert processor_name() == "A Processor (R) 7"


def test_an_unknown_level_is_refused(offer, monkeypatch):
    monkeypatch.setenv(LEVEL_ASKED, "avx9")
    with pytest.raises(InputError, match="LEVEL=avx9 .* not one of none, avx2, .*; unset it"):
        cpu_level()


def test_bf16_is_refused_where_it_would_be_emulated(offer):
    offer(f"{AVX512} avx512_bf16")
    refuse_no_bf16()
    offer(AVX512)
    with pytest.raises(InputError, match=r"AVX512-BF16 \(this processor has no AVX512-BF16\); use precision"):
        refuse_no_bf16()


def test_bf16_error_names_the_variable_that_forbids_it(offer, monkeypatch):
    offer(f"{AVX512} avx512_bf16")
    monkeypatch.setenv(LEVEL_ASKED, "avx512")
    with pytest.raises(InputError, match=rf"AVX512-BF16 \({LEVEL_ASKED}=avx512 is set\); use precision fp32"):
        refuse_no_bf16()
