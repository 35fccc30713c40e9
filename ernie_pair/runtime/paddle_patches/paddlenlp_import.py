"""PaddleNLP's models without the rest of PaddleNLP, and what models draw when they are built.

The parts that models do not need (datasets, scikit-learn, the trainer, Taskflow) take 3 s of a processor in
every process, and the families of models that are not asked for another half: a package here imports a part
when it is asked for, and whole for a name that it does not know. In PaddleNLP 2.8.1 `paddlenlp.data` and
`paddlenlp.transformers` import each other, and whole only in the order of that `__init__`, `data` first;
`paddlenlp.trainer` works after that `__init__` alone.

A run's weights follow from its seed alone, in both graphs. Both draw in the order in which layers create
parameters; PaddleNLP draws the weights of its models a second time in the dynamic graph (`init_weights`),
nn.Embedding clears its padding row there, and Paddle cuts a TruncatedNormal at -2 and 2 instead of at two
standard deviations.
"""

import re
import signal
import sys
import threading
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, Callable, Dict, Iterator, Optional

import numpy as np
import paddle
from paddle.nn.initializer import Constant, Normal, TruncatedNormal, Uniform
from paddle.nn.initializer.xavier import XavierInitializer

from ernie_pair.core.errors import InputError
from ernie_pair.core.installation import install_command, missing_of_training, raise_interrupt, training_extra
from ernie_pair.core.user_home import home_given

# Of `paddlenlp.transformers`: where the classes are that all models are made of, and the parts of a family.
BASES = {
    "PretrainedModel": "model_utils", "register_base_model": "model_utils",
    "PretrainedConfig": "configuration_utils", "PretrainedTokenizer": "tokenizer_utils",
    "BasicTokenizer": "bert.tokenizer", "WordpieceTokenizer": "bert.tokenizer",
}  # fmt: skip
FAMILIES = "albert bert distilbert electra ernie ernie_gram megatronbert nezha ppminilm roberta roformer skep"
FOLDERS = {folder.replace("_", ""): folder for folder in FAMILIES.split()}
BESIDE_THEM = (
    "activations aistudio_utils attention_utils conversion_utils model_outputs tokenizer_utils_base utils"
)
KNOWN_PARTS = {  # of the packages that are imported alone: what the models need of them
    "paddlenlp": "data datasets generation layers quantization transformers utils".split(),
    "paddlenlp.transformers": [*FOLDERS.values(), *BASES.values(), *BESIDE_THEM.split()],
}
PARTS = {"Config": "configuration", "Tokenizer": "tokenizer"}


class _WholeFirst(MetaPathFinder, Loader):
    """Find other parts of PaddleNLP by importing all of it first, where its models were imported alone."""

    def find_spec(self, fullname: str, path=None, target=None) -> Optional[ModuleSpec]:
        parent, _, part = fullname.rpartition(".")
        is_known = part in KNOWN_PARTS.get(parent, (part,))
        if is_known or "__getattr__" not in vars(sys.modules[parent]):
            return None
        hasattr(sys.modules[parent], "__all__")  # imports everything
        if fullname not in sys.modules:
            return None
        self._module = sys.modules[fullname]
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
        raise_interrupt(error)
        if isinstance(error, ModuleNotFoundError) and missing_of_training(error):
            raise
        cause, command = " ".join(str(error).split()), install_command(training_extra())
        raise InputError(f"PaddleNLP cannot be imported: {cause}; {command}") from error


def _import_models_alone() -> None:
    import paddle

    package = _import_lazily("paddlenlp", lambda name: None)
    vars(package).update(__version__=version("paddlenlp"))
    sys.meta_path.insert(0, _WholeFirst())
    handler = signal.getsignal(signal.SIGTERM)
    paddle.disable_signal_handler()  # as PaddleNLP's __init__ does; it takes Python's handler of SIGTERM away
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
    try:
        with home_given():  # it makes the folders of its downloads there
            _import_lazily("paddlenlp.data", lambda name: None)
            _import_lazily("paddlenlp.transformers", _part_of_transformers)
            import_module("paddlenlp.transformers.model_utils")
    except BaseException:
        for name in ("paddlenlp", "paddlenlp.data", "paddlenlp.transformers"):
            sys.modules.pop(name, None)
        raise


def _import_lazily(name: str, part_with: Callable[[str], Optional[str]]) -> ModuleType:
    """Import the package ``name`` without its `__init__`, which runs when it is asked for what is not there.

    ``part_with(name)``: the module that has a name of the package, which is imported instead; None: the rest.
    """
    spec = find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)
    package, loader = module_from_spec(spec), spec.loader

    def find(asked: str):
        if asked.startswith("__") and asked != "__all__":  # which `import *` asks for
            raise AttributeError(asked)
        part = part_with(asked)
        if part is not None and hasattr(import_module(part), asked):
            vars(package)[asked] = getattr(import_module(part), asked)
        else:
            if name == "paddlenlp.transformers":
                import_module("paddlenlp.data").Pad  # noqa: B018 whole, and first
            if vars(package).pop("__getattr__", None):
                try:
                    loader.exec_module(package)
                except BaseException:
                    vars(package)["__getattr__"] = find
                    raise
        if asked not in vars(package):
            raise AttributeError(f"module '{name}' has no attribute '{asked}'")
        return vars(package)[asked]

    vars(package)["__getattr__"] = find
    sys.modules[name] = package
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, package)
    return package


def _part_of_transformers(name: str) -> Optional[str]:
    """Return the module of a class of models, of a family's folder: ErnieGramModel is in ernie_gram."""
    if name in BASES:
        return f"paddlenlp.transformers.{BASES[name]}"
    match = re.fullmatch("(.+?)(PretrainedModel|Model|For[A-Z].*|Config|Tokenizer)", name)
    folder = FOLDERS.get(match[1].lower()) if match else None
    return f"paddlenlp.transformers.{folder}.{PARTS.get(match[2], 'modeling')}" if match and folder else None


transformers: Any = import_transformers()


CUT = 2.0  # standard deviations
# What the layers of PaddleNLP's models draw with.
RANDOM = (Normal, TruncatedNormal, Uniform, XavierInitializer)


@contextmanager
def skipped_init() -> Iterator[None]:
    """Leave at zero what models that are built inside would draw: their weights are read from a file.

    To draw them takes longer than to read them. `init_weights` of PaddleNLP's models draws by paddle.normal,
    and runs: it sets the epsilon of norms.
    """
    forwards, normal, zero = [kind.forward for kind in RANDOM], paddle.normal, Constant(0.0)
    for kind in RANDOM:
        kind.forward = lambda self, parameter, block=None: zero(parameter, block)
    paddle.normal = paddle.tensor.normal = lambda mean=0.0, std=1.0, shape=None: paddle.zeros(shape)
    try:
        yield
    finally:
        for kind, forward in zip(RANDOM, forwards):
            kind.forward = forward
        paddle.normal = paddle.tensor.normal = normal


@contextmanager
def static_init() -> Iterator[Dict[str, np.ndarray]]:
    """Draw the parameters of models that are built inside as a static program would.

    Yields {name of a parameter: what a TruncatedNormal drew for it}; others hold what they drew.
    """
    drawn: Dict[str, np.ndarray] = {}
    forward, init_weights = TruncatedNormal.forward, transformers.PretrainedModel.init_weights

    def draw(self, parameter, block=None):
        if hasattr(self, "_a"):
            self._a, self._b = (self._mean + sign * CUT * self._std_dev for sign in (-1, 1))
        result = forward(self, parameter, block)
        drawn[parameter.name] = parameter.numpy()
        return result

    TruncatedNormal.forward = draw
    transformers.PretrainedModel.init_weights = lambda self: None
    try:
        yield drawn
    finally:
        TruncatedNormal.forward = forward
        transformers.PretrainedModel.init_weights = init_weights
