"""PaddleNLP's models without the rest of PaddleNLP, whose `__init__` imports every part of it.

What this package takes of PaddleNLP 2.8.1, under both Paddles: the encoders, their configurations and
tokenizers (`paddlenlp.transformers`: models/networks, models/source, pretrain/graph/model, the start weights
of initializers beside this file), the files of pretrained models (`paddlenlp.utils.download`: models/source),
and its named data sets (`paddlenlp.datasets`: pair/data/pair_source). Nothing else imports it.

The parts that models do not need (datasets, scikit-learn, the trainer, Taskflow) take 3 s of a processor in
every process. In PaddleNLP 2.8.1 `paddlenlp.data` and `paddlenlp.transformers` import each other, and only
the order of that `__init__`, `data` first, works. `paddlenlp.trainer` works after that `__init__` alone.
"""

import signal
import sys
import threading
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, Optional

from data_tools.files.errors import InputError
from data_tools.files.installation import install_command, missing_of_training, training_extra


class _WholeFirst(MetaPathFinder, Loader):
    """Find `paddlenlp.trainer` by importing all of PaddleNLP first, where its models were imported alone."""

    def find_spec(self, fullname: str, path=None, target=None) -> Optional[ModuleSpec]:
        if fullname != "paddlenlp.trainer" or "__getattr__" not in vars(sys.modules["paddlenlp"]):
            return None
        self._module = sys.modules["paddlenlp"].trainer  # asking for it imports everything
        self._spec = self._module.__spec__
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def import_transformers() -> ModuleType:
    """Import `paddlenlp.transformers`; whoever then asks `paddlenlp` for more gets all of it.

    Raises ModuleNotFoundError when it, or another library of training, is not installed; InputError when the
    versions of what it imports break it.
    """
    try:
        if "paddlenlp" not in sys.modules:
            _import_models_alone()
        return import_module("paddlenlp.transformers")
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and missing_of_training(error):
            raise
        cause, command = " ".join(str(error).split()), install_command(training_extra())
        raise InputError(f"PaddleNLP cannot be imported: {cause}; {command}") from error


def _import_models_alone() -> None:
    import paddle

    spec = find_spec("paddlenlp")
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError("No module named 'paddlenlp'", name="paddlenlp")
    package, loader = module_from_spec(spec), spec.loader

    def import_all(name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        del vars(package)["__getattr__"]
        loader.exec_module(package)
        return getattr(package, name)

    vars(package).update(__version__=version("paddlenlp"), __getattr__=import_all)
    sys.modules["paddlenlp"] = package
    sys.meta_path.insert(0, _WholeFirst())
    handler = signal.getsignal(signal.SIGTERM)
    paddle.disable_signal_handler()  # as PaddleNLP's __init__ does; it takes Python's handler of SIGTERM away
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
    try:
        import_module("paddlenlp.data")
    except BaseException:
        del sys.modules["paddlenlp"]
        raise


transformers: Any = import_transformers()
