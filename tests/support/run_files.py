"""What a run leaves in its folder, as tests compare it."""

import json
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from ernie_pair.checkpoint.checkpoint_folder import MANIFEST
from ernie_pair.core.files.atomic_files import CONFIG_YAML
from ernie_pair.core.files.atomic_folder import MADE
from ernie_pair.training.run_log import MEASURED


def events(folder, split: Optional[str] = None, timing: bool = False) -> List[dict]:
    """The lines of metrics.jsonl, of ``split`` if one is named, without what the clock decides."""
    lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    loaded = [event for event in map(json.loads, lines) if split in (None, event.get("split"))]
    return [{k: v for k, v in event.items() if timing or k not in MEASURED} for event in loaded]


def files_of(folder: Path, without: Sequence[str] = (MANIFEST,)) -> Dict[str, bytes]:
    """The files of a folder but ``without``, who made it and by which flags; a manifest names a moment."""
    left_out = (MADE, CONFIG_YAML, *without)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in left_out}
