"""The temperature of a trained model, which makes its probabilities mean what they say.

It divides the logits before the softmax: no class and no ranking changes, only how sure the
model is. It is kept in calibration.json of the model's folder:

    {"temperature": 1.37, "fitted_on": "dev.tsv", "rows": 8802}
"""

import json
from pathlib import Path

from data_tools.errors import InputError
from data_tools.json_file import is_number, read_json_object
from data_tools.publish import published

CALIBRATION = "calibration.json"
CURE = "remove it, or fit it again with --save_temperature true"


def read_temperature(folder: Path) -> float:
    """The temperature of a trained model, 1.0 where none was saved. Raises InputError when it is damaged."""
    path = folder / CALIBRATION
    if not path.exists():
        return 1.0
    value = read_json_object(path, CURE).get("temperature")
    if not (is_number(value, 0) and value > 0):
        raise InputError(f"{path}: no temperature above 0 in it; {CURE}")
    return float(value)


def write_temperature(folder: Path, temperature: float, fitted_on: str, rows: int) -> None:
    """Raises OSError, leaving what was there before."""
    content = {"temperature": temperature, "fitted_on": fitted_on, "rows": rows}
    with published(folder / CALIBRATION) as (draft,):
        draft.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
