"""Print the visible GPUs in the form of --gpus: 0,1. For scripts.

python -m ernie_pair.runtime.gpu.visible
"""

import sys

from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import InputError
from ernie_pair.runtime.gpu.cards import count_cards, why_no_card
from ernie_pair.runtime.paddle_patches.launcher import visible_gpus


def main() -> None:
    """Print them. Raises InputError if there are none."""
    if not count_cards():
        raise InputError(f"{why_no_card()}, or set DEVICE=cpu")
    print(",".join(visible_gpus()))


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
