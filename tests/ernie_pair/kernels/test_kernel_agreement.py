"""All processes of a run use the same path and level, or fail together; none hangs."""

import numpy as np
import pytest
from fake_ranks import on_ranks

from data_tools.files.errors import InputError
from ernie_pair.kernels.choice import KernelChoice, KernelFlags, agree_on_path, choose_plain

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


def test_differing_choices_fail_if_fused_kernels_are_required():
    found = agree([HIGH, LOW], FUSED)
    assert all(isinstance(one, InputError) for one in found)
    assert found[0].message.startswith("--kernels fused: another process of this run cannot use")


def test_float32_allows_mixed_levels_from_avx512_up():
    """These levels differ only in their bfloat16 products."""
    choices = [KernelChoice("fused", level) for level in ("amx_bf16", "avx512", "avx512_bf16")]
    assert agree(choices) == choices


def test_mixed_bf16_levels_fail_with_a_suggested_fix():
    found = agree([KernelChoice("fused", level, "bf16") for level in ("amx_bf16", "avx512_bf16")])
    cure = "multiply in different ways; set ERNIE_PAIR_KERNELS_LEVEL=avx512_bf16 in the environment of every"
    assert all(cure in one.message for one in found)


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
