"""Tell a config.yaml of this package from one of the user's: only the former may be replaced or extended."""

from pathlib import Path
from typing import Any, Dict, Optional

import yaml

from data_tools.base.regular_file import ABOUT, MOST_CONFIG_BYTES, read_regular
from data_tools.files.results import MAKER


def read_own_config(path: Path) -> Optional[Dict[str, Any]]:
    """Return the content of a config.yaml of this package; None for any other file."""
    try:
        content = yaml.safe_load(read_regular(path, MOST_CONFIG_BYTES, follow=False))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None
    about = content.get(ABOUT) if isinstance(content, dict) else None
    return content if isinstance(about, dict) and about.get("made_by") == MAKER else None
