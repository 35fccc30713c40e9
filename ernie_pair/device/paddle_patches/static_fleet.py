"""What static fleet does in ``minimize`` beyond its strategy.

Names, as in Paddle 2.6.2, below `paddle.distributed.fleet.meta_optimizers`: `AMPOptimizer._init_wrapped_opt`,
which passes no type but float16 on, and informs the optimizer of several processes (`_set_distributed`), for
which it then adds a check of infinities per gradient; `common.CollectiveHelper._init_communicator`, which
supports only NCCL. Of `paddle.static.amp.decorator`: `update_role_var_grad`, which moves the mark of what is
all-reduced from a float32 gradient to the half one that it is cast from; the optimizer's method
`_append_cast_to_master_grad_op`, which casts gradients after they have been summed. The mark is the attribute
`op_role_var` of an op, a list of parameter, gradient, parameter, gradient.
"""

from contextlib import contextmanager
from typing import Callable, Iterator, List, Tuple

import paddle
from paddle.distributed.fleet.meta_optimizers import AMPOptimizer, common
from paddle.static.amp import decorator

from ernie_pair.device.paddle_patches.replaced import replaced
from ernie_pair.device.paddle_patches.static_programs import insert_op

MARK = "op_role_var"
HALVES = (paddle.float16, paddle.bfloat16)
Pairs = List[Tuple]  # (parameter, gradient)


@contextmanager
def amp_by(decorate: Callable) -> Iterator[None]:
    """Replace fleet's AMP in this context by ``decorate(optimizer)``, with the same kind of result."""

    def init_wrapped_opt(self) -> None:
        if self.wrapped_opt is None:
            # Without knowing of several processes, it checks all gradients for infinities at once.
            self.wrapped_opt = decorate(self.inner_opt)

    with replaced(AMPOptimizer, "_init_wrapped_opt", init_wrapped_opt):
        yield


@contextmanager
def without_nccl() -> Iterator[None]:
    """Have fleet exchange no ids of NCCL in this context: the processes are already connected by gloo."""
    with replaced(common.CollectiveHelper, "_init_communicator", lambda *args, **settings: None):
        yield


@contextmanager
def sums_in_float32() -> Iterator[None]:
    """Have fleet's AMP mark float32 gradients to be summed in this context: half ones are cast beforehand.

    Each is cast where it is computed, so that its sum can begin while the backward pass continues.
    """
    optimizer = decorator.OptimizerWithMixedPrecision
    unmoved = replaced(decorator, "update_role_var_grad", lambda program, pairs: None)
    with unmoved, replaced(optimizer, "_append_cast_to_master_grad_op", _widened):
        yield


def _widened(self, pairs: Pairs) -> Pairs:
    block = self._train_program.global_block()
    return [(p, _cast(block, p, g) if g.dtype in HALVES else g) for p, g in pairs]


def _cast(block, parameter, gradient):
    """Cast ``gradient`` right after its last op, which passes the mark on; returns the float32 one."""
    index = max(i for i, op in enumerate(block.ops) if gradient.name in op.output_arg_names)
    made_by = block.ops[index]
    role = made_by.attr("op_role")
    _take_mark(made_by, parameter, gradient)
    wide = block.create_var(name=f"{gradient.name}.float32", dtype=paddle.float32, shape=gradient.shape)
    cast = insert_op(
        block,
        index + 1,
        type="cast",
        inputs={"X": [gradient]},
        outputs={"Out": [wide]},
        attrs={"in_dtype": gradient.dtype, "out_dtype": wide.dtype, "op_role": role},
    )
    cast._set_attr(MARK, [parameter.name, wide.name])
    wide.op = cast
    return wide


def _take_mark(op, parameter, gradient) -> None:
    names = list(op.attr(MARK))
    marked = list(zip(names[::2], names[1::2]))
    marked.remove((parameter.name, gradient.name))
    if marked:
        op._set_attr(MARK, [name for pair in marked for name in pair])
    else:
        op._remove_attr(MARK)
