"""PaddleNLP's models without the rest of PaddleNLP, whose `__init__` imports every part of it.

The parts that models do not need (datasets, scikit-learn, the trainer, Taskflow) take 3 s of a processor in
every process. In PaddleNLP 2.8.1 `paddlenlp.data` and `paddlenlp.transformers` import each other, and only
the order of that `__init__`, `data` first, works. `paddlenlp.trainer` works after that `__init__` alone.
"""

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, Optional

TRAINER = "paddlenlp.trainer"


class _WholeFirst(MetaPathFinder, Loader):
    """Find `paddlenlp.trainer` by importing all of PaddleNLP first, where its models were imported alone."""

    def find_spec(self, fullname: str, path=None, target=None) -> Optional[ModuleSpec]:
        if fullname != TRAINER or "__getattr__" not in vars(sys.modules["paddlenlp"]):
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

    Raises ImportError when PaddleNLP is not installed or not importable.
    """
    if "paddlenlp" not in sys.modules:
        _import_models_alone()
    return import_module("paddlenlp.transformers")


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
    paddle.disable_signal_handler()  # as PaddleNLP's __init__ does
    try:
        import_module("paddlenlp.data")
    except BaseException:
        del sys.modules["paddlenlp"]
        raise


transformers: Any = import_transformers()
