"""A model for the service that nobody trained."""

import threading
from pathlib import Path

import numpy as np

from ernie_pair.inference.exported_model import ExportedModel
from ernie_pair.inference.predictor import Prediction


class Model:
    """Says how long both texts are together; ``gate`` holds it up, ``calls`` are what it was asked."""

    backend, precision = "onnx", "fp32"
    exported = ExportedModel(Path("none"), ("odd", "even"), 128, 1.5, {})
    threshold, symmetric = 0.25, "average"

    def __init__(self):
        self.calls, self.threads, self.gate = [], set(), threading.Event()
        self.gate.set()

    def predict(self, pairs):
        self.calls.append(len(pairs))
        self.threads.add(threading.current_thread().name)
        assert self.gate.wait(10)
        if any("bad" in a for a, _ in pairs):
            raise RuntimeError("out of luck")
        lengths = np.array([len(a) + len(b) for a, b in pairs])
        classes = 1 - lengths % 2
        shares = np.stack([lengths / 100, 1 - lengths / 100], axis=1).astype(np.float32)
        return Prediction(classes, [self.exported.labels[number] for number in classes], shares)
