"""A service as it is started for real, with a model that takes its time.

python slow_service.py '{"seconds": 0.1, "limits": {"connections.HEAD_SECONDS": 1}}' --port 0 ...
"""

import json
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy as np

from ernie_pair.core.cli.cli import run_command
from ernie_pair.inference.exported_model import ExportedModel
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.inference.scores import Prediction
from ernie_pair.service import serve as serving

ASKED = json.loads(sys.argv[1])


class Model:
    """Takes ``seconds`` for a call; the label tells how long the first text is."""

    backend, precision = "none", "fp32"
    exported = ExportedModel(Path("none"), ("odd", "even"), 128, 1.0, {})
    threshold, symmetric, num_classes, match = None, "none", 2, 1
    describe_decision = PairPredictor.describe_decision

    @classmethod
    def of(cls, config):
        return cls()

    def decide_by(self, threshold, symmetric):
        pass

    def describe(self):
        return self.backend

    def predict(self, pairs):
        time.sleep(ASKED["seconds"])
        classes = np.array([1 - len(a) % 2 for a, _ in pairs])
        labels = [self.exported.labels[number] for number in classes]
        shares = np.full((len(pairs), 2), 0.5)
        return Prediction(classes, labels, shares, shares[:, 1])


if __name__ == "__main__":
    for name, value in ASKED.get("limits", {}).items():
        module, constant = name.split(".")
        setattr(import_module(f"ernie_pair.service.{module}"), constant, value)
    serving.PairPredictor = Model
    run_command(serving.serve, serving.ServeConfig, ["--model_path", "none", "--port", "0", *sys.argv[2:]])
