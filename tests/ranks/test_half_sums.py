"""In pair training, gradients of half-precision weights are summed over the processes in float32."""

from functools import partial

import paddle
import paddle.distributed as dist
import pytest
from launched import launch
from paddle import nn
from paddle.distributed.fleet.meta_parallel.sharding import group_sharded_stage2

from ernie_pair.runtime.paddle_patches.core_settings import replaced
from ernie_pair.runtime.paddle_patches.process_groups import reduce_in_float32
from ernie_pair.runtime.processes.world import launched_world
from ernie_pair.training.process_group import join_process_group

pytestmark = pytest.mark.ranks

# {type: the first number above 1, less 1}: the mean of the two lies between them
DIGIT = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


class Layer(nn.Layer):
    """A weight in half precision, and one in float32, as a norm's is."""

    def __init__(self, dtype):
        super().__init__()
        one = nn.initializer.Constant(1.0)
        self.narrow = self.create_parameter([3], dtype=dtype, default_initializer=one)
        self.wide = self.create_parameter([2], default_initializer=one)


def average(group, dtype):
    """Let data parallelism average gradients that are 1 on one rank and the next number on the other."""
    summed = []

    def noted(collective, tensor, *given, **named):
        summed.append(str(tensor.dtype))
        return collective(tensor, *given, **named)

    layer = Layer(dtype)
    assert group.share_gradients(layer, True) is layer
    (layer.narrow.astype("float32") * (1 + DIGIT[dtype] * group.rank) + layer.wide.sum()).sum().backward()
    with replaced(dist, "all_reduce", partial(noted, dist.all_reduce)):
        group.average_gradients(layer)
    gradients = layer.narrow.grad, layer.wide.grad
    dtypes = [str(gradient.dtype) for gradient in gradients]
    return {"summed": sorted(set(summed)), "dtypes": dtypes, "means": gradients[0].numpy().tolist()}


def reduce(group, dtype):
    """Let group sharding add up to 3 x 1 at the owner, rank 1, in the tensor in which its parts lie."""
    whole = paddle.full([4], 1.0 + group.rank, dtype)
    place = whole.data_ptr()
    with reduce_in_float32():
        group_sharded_stage2.dist.reduce(tensor=whole, dst=1)
    return {"sums": whole.astype("float32").numpy().tolist(), "in place": place == whole.data_ptr()}


def sum_in_both_ways():
    group = join_process_group(launched_world())
    return {dtype: {**average(group, dtype), **reduce(group, dtype)} for dtype in DIGIT}


@pytest.fixture(scope="module")
def sums(tmp_path_factory):
    return launch(tmp_path_factory.mktemp("sums"), sum_in_both_ways)


@pytest.mark.parametrize("dtype", DIGIT)
def test_data_parallelism_averages_in_float32(sums, dtype):
    for rank in sums:
        assert rank[dtype]["summed"] == ["paddle.float32"]
        assert rank[dtype]["dtypes"] == ["paddle.float32", "paddle.float32"]
        assert rank[dtype]["means"] == [1 + DIGIT[dtype] / 2] * 3  # not representable in half precision


@pytest.mark.parametrize("dtype", DIGIT)
def test_group_sharding_sums_in_place_on_the_owner_only(sums, dtype):
    first, owner = (rank[dtype] for rank in sums)
    assert owner["sums"] == [3.0] * 4 and owner["in place"]
    assert first["sums"] == [1.0] * 4
