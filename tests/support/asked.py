"""What `evaluate` and `predict` answer on a CPU: without intervals, and without the columns of the input."""

import json
from pathlib import Path
from typing import Any, Dict, List, Tuple

from ernie_pair.evaluation.evaluate_pair import evaluate_pair
from ernie_pair.evaluation.predict_pair import predict_pair
from ernie_pair.pairs.config.ask_config import EvaluateConfig, PredictConfig


def evaluated(model, pairs, output="", **flags) -> Dict[str, Any]:
    """Evaluate ``model`` on the file ``pairs``; return what was measured, as JSON holds it."""
    flags = {"bootstrap": 0, "device": "cpu", **flags}
    found = evaluate_pair(EvaluateConfig(str(model), str(pairs), str(output), **flags))
    return json.loads(json.dumps(found))


def predicted(model, pairs, output, **flags) -> Dict[str, Tuple[str, ...]]:
    flags = {"device": "cpu", "columns": "answers", **flags}
    predict_pair(PredictConfig(str(model), str(pairs), str(output), **flags))
    return table_of(Path(output))


def table_of(path: Path) -> Dict[str, Tuple[str, ...]]:
    header, *rows = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines())
    return dict(zip(header, zip(*rows)))


def json_lines_in(path: Path) -> List[Any]:
    return list(map(json.loads, path.read_text(encoding="utf-8").splitlines()))
