"""Give a published encoder a new head of two classes, so that two libraries start from one classifier.

python scripts/add_head.py --peer_python peer/bin/python --model_path minilm --output_dir start
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from other_libraries.client import Peer

from ernie_pair.core.cli.cli import run_command
from ernie_pair.core.cli.options import Options, model_option, option


@dataclass(frozen=True)
class AddHeadConfig(Options):
    """Save a published encoder as a classifier of transformers, with a new head; done once, that is all."""

    EXAMPLE = "--peer_python peer/bin/python --model_path minilm --output_dir start"

    peer_python: str = option(help="a Python that has torch and transformers")
    model_path: str = model_option(help="a folder of transformers or sentence-transformers", reads="PATH")
    output_dir: str = model_option(help="the folder to make", writes="FOLDER")
    seed: int = option(1234, help="seed of the head", at_least=0)


def add_head(config: AddHeadConfig) -> None:
    """Write the folder, unless it exists. Raises LibraryError with what the library says."""
    folder = Path(config.output_dir)
    if folder.is_dir():
        return
    draft = folder.with_name(f"{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    with Peer(Path(config.peer_python)) as peer:
        peer.ask("add_head", folder=config.model_path, to=draft, seed=config.seed)
    draft.rename(folder)


if __name__ == "__main__":
    run_command(add_head, AddHeadConfig)
