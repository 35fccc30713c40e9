"""What the GPU of a run can compute in half precision."""

from data_tools.base.errors import InputError

# The first compute capability whose units compute in the type.
LEAST_CAPABILITY = {"float16": 7, "bfloat16": 8}


def refuse_old_gpu(dtype: str, flag: str, cure: str) -> None:
    """Raise InputError for a GPU too old for ``dtype``: Paddle would warn and compute in float32.

    The GPU is Paddle's current one. ``flag``: what asks for the type; ``cure``: what to do without it.
    """
    import paddle

    least, (found, minor) = LEAST_CAPABILITY[dtype], paddle.device.cuda.get_device_capability()
    if found < least:
        raise InputError(
            f"{flag} needs a GPU of compute capability {least}.0, this one has {found}.{minor}; {cure}"
        )
