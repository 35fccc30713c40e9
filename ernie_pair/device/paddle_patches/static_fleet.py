"""What static fleet does in ``minimize`` beside what its strategy says.

Names, as in Paddle 2.6.2, below `paddle.distributed.fleet.meta_optimizers`: `AMPOptimizer._init_wrapped_opt`,
which passes no type but float16 on; `common.CollectiveHelper._init_communicator`, which knows NCCL alone; of
the role maker `_worker_num`, of `paddle.static.amp`'s optimizer `_set_distributed`.
"""

from contextlib import contextmanager
from typing import Callable, Iterator

from paddle.distributed.fleet.meta_optimizers import AMPOptimizer, common

from ernie_pair.device.paddle_patches.replaced import replaced


@contextmanager
def amp_by(decorate: Callable) -> Iterator[None]:
    """In this context fleet's AMP is ``decorate(optimizer)``, which returns what `paddle.static.amp` does."""

    def init_wrapped_opt(self) -> None:
        if self.wrapped_opt is None:
            self.wrapped_opt = decorate(self.inner_opt)
            self.wrapped_opt._set_distributed(self.role_maker._worker_num() > 1)

    with replaced(AMPOptimizer, "_init_wrapped_opt", init_wrapped_opt):
        yield


@contextmanager
def without_nccl() -> Iterator[None]:
    """In this context fleet exchanges no ids of NCCL: the processes know each other already, by gloo."""
    with replaced(common.CollectiveHelper, "_init_communicator", lambda *args, **settings: None):
        yield
