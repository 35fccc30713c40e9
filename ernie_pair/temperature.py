"""The temperature of a trained model, which makes its probabilities mean what they say.

It divides the logits before the softmax: no class and no ranking changes, only how sure the
model is. It is kept in calibration.json of the model's folder:

    {"temperature": 1.37, "fitted_on": "dev.tsv", "rows": 8802}
"""

import json
import math
from pathlib import Path

from data_tools.errors import InputError
from data_tools.publish import published

CALIBRATION = "calibration.json"


def read_temperature(folder: Path) -> float:
    """The temperature of a trained model, 1.0 where none was saved. Raises InputError when it is damaged."""
    path = folder / CALIBRATION
    if not path.exists():
        return 1.0
    try:
        value = json.loads(path.read_text(encoding="utf-8"))["temperature"]
        if isinstance(value, bool) or not (math.isfinite(value) and value > 0):
            raise ValueError(value)
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{path}: no temperature above 0 in it; remove it, or fit it again with --save_temperature true"
        ) from None
    return float(value)


def write_temperature(folder: Path, temperature: float, fitted_on: str, rows: int) -> None:
    """Raises OSError, leaving what was there before."""
    content = {"temperature": temperature, "fitted_on": fitted_on, "rows": rows}
    with published(folder / CALIBRATION) as (draft,):
        draft.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
