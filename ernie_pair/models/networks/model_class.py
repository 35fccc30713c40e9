"""A user's own classifier: a subclass of PairClassifier, named package.module:Class.

    class WithMargin(PairClassifier):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.extra = nn.Linear(self.num_classes, self.num_classes)

        def forward(self, input_ids, token_type_ids):
            logits_BC = super(WithMargin, self).forward(input_ids, token_type_ids)  # export knows no super()
            return self.extra(logits_BC)

It is trained and loaded like any other, with --model_class package.module:WithMargin, and takes the
arguments of PairClassifier. Its own parameters are trained with the head, except those for which `is_unused`
returns True. A class that reads hidden states of other tokens than the first, for example in a hook, sets
`reads_first_token` to False. Its folder says `"model_class": "package.module:WithMargin"` in config.json.
This alone never runs any code: a folder may come from anywhere, and importing a module runs it. The class is
imported only if the user, by the flag or the argument, names the same class as the folder.
"""

from typing import Type, TypeVar

from data_tools.files.errors import InputError
from data_tools.options.options import import_named
from ernie_pair.models.config_json import CONFIG
from ernie_pair.models.source import ModelSource

FLAG = "--model_class"
Base = TypeVar("Base")


def load_model_class(name: str, base: Type[Base]) -> Type[Base]:
    """Return the class that ``name`` names, a subclass of ``base``; '' is ``base``. Raises InputError."""
    if not name:
        return base
    found = import_named(name, FLAG, "class")
    if not (isinstance(found, type) and issubclass(found, base)):
        raise InputError(f"{FLAG} {name} is not a subclass of {base.__name__}; derive it from that")
    path_of_class(found, base)  # refused here, rather than when the model is written
    return found


def trusted_class(source: ModelSource, name: str, base: Type[Base], is_trained: bool) -> Type[Base]:
    """Return the class that makes the model of ``source``: the one that ``name`` names, imported by that.

    A folder that names none may be the start of any class, but ``is_trained`` it is a model of none. Raises
    InputError if ``name`` and the folder disagree; then nothing has been imported for the folder's sake.
    """
    told = source.spec.model_class
    if told and not name:
        raise InputError(
            f"{source.name}/{CONFIG} names the class {told}: code of somebody, which loading it would run; "
            f"pass {FLAG} {told} if you trust it"
        )
    if is_trained and name and not told:
        raise InputError(f"{source.name} is a model without a class of its own; leave {FLAG} {name} out")
    found = load_model_class(name, base)
    if told and told not in (name, path_of_class(found, base)):
        raise InputError(f"{source.name}/{CONFIG} names the class {told}, and {FLAG} {name}; pass {told}")
    return found


def path_of_class(model_class: type, base: type) -> str:
    """Return package.module:Class of a subclass, '' of ``base`` itself.

    Raises InputError for a class inside a function or another class, where nobody finds it again.
    """
    if model_class is base:
        return ""
    if "." in model_class.__qualname__:
        raise InputError(
            f"the class {model_class.__qualname__} cannot be found again by its name; define it at the top "
            "of a module"
        )
    return f"{model_class.__module__}:{model_class.__qualname__}"
