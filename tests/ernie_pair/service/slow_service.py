"""A service as it is started for real, with a model that takes its time.

python slow_service.py '{"seconds": 0.1, "limits": {"connections.HEAD_SECONDS": 1}}' --port 0 ...
"""

import json
import os
import signal
import sys
import time
from importlib import import_module

import fake_predictor

from ernie_pair.core.cli.cli import run_command
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.service import serve as serving

ASKED = json.loads(sys.argv[1])


class Model(fake_predictor.Model):
    """Takes ``seconds`` for a call; the label tells how long the first text is."""

    describe_decision = PairPredictor.describe_decision

    @classmethod
    def of(cls, config):
        if ASKED.pop("hang_up", False):  # while the models are opened
            os.kill(os.getpid(), signal.SIGHUP)
        return cls()

    def decide_by(self, threshold, symmetric):
        pass

    def describe(self):
        return self.backend

    def predict(self, pairs):
        time.sleep(ASKED["seconds"])
        return super().predict([(a, "") for a, _ in pairs])


if __name__ == "__main__":
    for name, value in ASKED.get("limits", {}).items():
        module, constant = name.split(".")
        setattr(import_module(f"ernie_pair.service.{module}"), constant, value)
    serving.PairPredictor = Model
    run_command(serving.serve, serving.ServeConfig, ["--model_path", "none", "--port", "0", *sys.argv[2:]])
