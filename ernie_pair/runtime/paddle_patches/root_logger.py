"""Python's root logger, which Paddle takes for its own.

`paddle.distributed.utils.log_utils.get_logger` asks for the logger "root". In Paddle 3.3
`paddle.distributed.auto_parallel.random` does so at import, at the level INFO: the lines of all libraries,
and of the files of this package that run without a console, would be shown. Paddle 2.6.2 leaves the level.
"""

import logging

FORMAT_OF_PADDLE = "[%(asctime)-15s] [%(levelname)8s] "  # how that function's format begins


def quiet_root_logger() -> None:
    """Show warnings alone again, unless the root logger has a handler that is not Paddle's."""
    root = logging.getLogger()
    formats = [getattr(handler.formatter, "_fmt", None) or "" for handler in root.handlers]
    if root.level == logging.INFO and all(text.startswith(FORMAT_OF_PADDLE) for text in formats):
        root.setLevel(logging.WARNING)
