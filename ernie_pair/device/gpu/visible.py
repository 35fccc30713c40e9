"""Print the visible GPUs in the form of --gpus: 0,1. For scripts.

python -m ernie_pair.device.gpu.visible
"""

import sys

from data_tools.base.cli import exit_code_of
from data_tools.base.errors import InputError
from ernie_pair.device.gpu.cards import count_cards, why_no_card
from ernie_pair.device.paddle_patches.launcher import visible_gpus


def main() -> None:
    """Print them, and exit with 2 if there are none."""
    sys.exit(exit_code_of(_print_visible))


def _print_visible() -> None:
    if not count_cards():
        raise InputError(f"{why_no_card()}, or set DEVICE=cpu")
    print(",".join(visible_gpus()))


if __name__ == "__main__":
    main()
