"""Sharding flags, and the flat tensor of an offloaded state; multi-process tests are in ranks/."""

import numpy as np
import pytest
from tiny_pair_job import tiny_config, tiny_job, write_files

from data_tools.files.errors import InputError
from ernie_pair.train.data_parallel import cut_flat, lay_flat, places_of

STAGE2 = {"sharding": "stage2", "device": "gpu"}
HALF = {"use_amp": True, "amp_level": "O2", "amp_dtype": "float16"}


def test_parameters_are_laid_out_flat_with_their_padding():
    shapes = {"a": (2, 3), "b": (4,), "c": ()}
    places = places_of(shapes, [2, 0, 7])
    assert [place.start for place in places.values()] == [0, 8, 12]
    arrays = {name: np.random.default_rng(0).normal(size=shape) for name, shape in shapes.items()}
    arrays = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
    flat = lay_flat(arrays, places, 20)
    assert flat.dtype == np.float32 and flat.shape == (20,)
    assert (flat[[6, 7, *range(13, 20)]] == 0).all() and flat[12] == arrays["c"]
    for name, array in cut_flat(flat, places).items():
        assert np.array_equal(array, arrays[name])


@pytest.mark.parametrize("flags, message", [
    ({"sharding": "stage2", "device": "cpu"}, "^sharding stage2 needs GPUs: .* NCCL alone; use sharding"),
    ({**STAGE2, "fgm_epsilon": 0.5}, "^fgm_epsilon needs the embedding's gradient on every process"),
    ({"sharding_offload": True}, "^sharding_offload=True needs sharding stage2; add it"),
    ({**STAGE2, "sharding_offload": True}, "sharding_offload=True keeps .*; add use_amp=True amp_lev"),
    ({**STAGE2, **HALF, "sharding_offload": True, "layer_decay": 0.9}, "layer_decay=0.9 asks for several"),
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
    config = tiny_config(tmp_path, **STAGE2, **HALF, sharding_offload=True, grad_clip=1.0, rdrop_alpha=1.0)
    assert config.sharding_offload and config.pairs_per_step(4) == 64
