"""Sharding flags; multi-process tests are in ranks/."""

import pytest
from tiny_pair_job import tiny_config, tiny_job, write_files

from ernie_pair.core.errors import InputError

STAGE2 = {"sharding": "stage2", "device": "gpu"}
HALF = {"use_amp": True, "amp_level": "O2", "amp_dtype": "float16"}


@pytest.mark.parametrize("flags, message", [
    ({"sharding": "stage2", "device": "cpu"}, "^sharding stage2 needs GPUs: .* NCCL alone; use sharding"),
    ({**STAGE2, "fgm_epsilon": 0.5}, "^fgm_epsilon needs the embedding's gradient on every process"),
    ({**STAGE2, **HALF, "gradient_accumulation_steps": 2},
     "would accumulate several micro-batches' gradients"),
])  # fmt: skip
def test_flags_unfit_for_sharding_give_a_one_line_error(tmp_path, flags, message):
    with pytest.raises(InputError, match=message) as caught:
        tiny_config(tmp_path, **flags)
    assert len(str(caught.value).splitlines()) == 1


def test_sharding_needs_more_than_one_process(tmp_path):
    with pytest.raises(
        InputError, match="^sharding stage2 splits the state over several processes, and this"
    ):
        tiny_job(write_files(tmp_path), **STAGE2)


def test_compatible_sharding_flags_are_accepted(tmp_path):
    config = tiny_config(tmp_path, **STAGE2, **HALF, grad_clip=1.0, rdrop_alpha=1.0)
    assert config.pairs_per_step(4) == 64
