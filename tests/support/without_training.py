"""The beginning of a program that runs where the libraries of training are not installed."""

# As where only [predict] is installed: none of the libraries of training can be found.
WITHOUT_TRAINING = """
import importlib.util, sys
from ernie_pair.core.installation import OF_TRAINING

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {*OF_TRAINING, "paddle2onnx", "pandas", "ray", "torch"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.__main__ import COMMANDS, LAUNCH, _run
"""
