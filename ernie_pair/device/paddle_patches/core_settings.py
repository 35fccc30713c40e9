"""What Paddle's compiled core is made for, and the threads that it takes.

Names, as in Paddle 2.6.2: `paddle.base.core`, its `set_num_threads`, `ProcessGroupGloo`, `ProcessGroupNCCL`.
Upstream offers the number of threads to its predictors alone (`set_cpu_math_library_num_threads`).
"""


def set_math_threads(count: int) -> None:
    """Let the math of this process take ``count`` threads."""
    import paddle

    paddle.base.core.set_num_threads(count)


def has_process_group(backend: str) -> bool:
    """Return whether this Paddle was built with ``backend``, Gloo or NCCL."""
    import paddle

    return hasattr(paddle.base.core, f"ProcessGroup{backend}")
