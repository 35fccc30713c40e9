"""A command as a function of Python: its configuration or its options by name, values instead of lines."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields
from functools import wraps
from inspect import Parameter, Signature, cleandoc, signature
from typing import Any, Callable, Optional, TypeVar

from ernie_pair.core.cli.flag_words import suggest_flags
from ernie_pair.core.cli.options import Options, hints_of
from ernie_pair.core.cli.standard_streams import with_models
from ernie_pair.core.errors import InputError, MachineError, Stopped, describe_os_error
from ernie_pair.core.installation import missing_of_training
from ernie_pair.core.progress import called_from_python
from ernie_pair.core.user_home import home_given

NOWHERE = os.devnull  # in place of an output that is not to be written
DOCS = """\
{}

``config``: {}, whose help explains the options; or give these by name. Prints nothing unless
verbose=True. Raises an ErniePairError for whatever the user can fix."""
Value = TypeVar("Value")
Function = TypeVar("Function", bound=Callable[..., Any])
# Returns the class of the configuration that options by name are for, and may fill in some of them.
Choose = Callable[[dict[str, Any]], type[Options]]


def takes_options(
    *classes: type[Options], choose: Optional[Choose] = None, returned: str = ""
) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Let a function of a configuration take its options by name as well, and show nothing.

    ``classes``: of the configurations that it takes; without ``choose`` options by name are for the first.
    ``returned``: the option that names the output; it may be left out, and is NOWHERE then, for the function
    returns what would be written. With ``verbose=True`` it shows what the command shows. What a user can fix
    is raised as an ErniePairError; a signal that ends the command early as what Python raises for it.
    """

    def chosen(given: dict[str, Any]) -> type[Options]:
        one = choose(given) if choose else classes[0]
        if returned and one.__dataclass_fields__[returned].metadata["unless"] not in given:
            given.setdefault(returned, NOWHERE)
        return one

    def decorate(function: Callable[..., Value]) -> Callable[..., Value]:
        own = list(signature(function).parameters.values())[1:]  # arguments that are no options

        @wraps(function)
        def call(config: Optional[Options] = None, /, *more: Any, verbose: bool = False, **given: Any):
            named = {item.name: given.pop(item.name) for item in own if item.name in given}
            if verbose and config is None and any("verbose" in one.__dataclass_fields__ for one in classes):
                given["verbose"] = True  # a command that is short unless it is asked
            with called_from_python(verbose), _errors_of_the_package():
                found = _configuration(function.__name__, classes, chosen, config, given)
                with home_given():
                    return function(with_models(found), *more, **named)

        call.__doc__ = DOCS.format(cleandoc(function.__doc__ or ""), _names_of(classes))
        shown = _signature_of(classes, own, signature(function), returned)
        call.__signature__ = shown  # type: ignore[attr-defined]  # which inspect looks for
        return call

    return decorate


def _names_of(classes: tuple[type[Options], ...]) -> str:
    return " or ".join(one.__name__ for one in classes)


def _configuration(
    name: str,
    classes: tuple[type[Options], ...],
    choose: Choose,
    config: Optional[Options],
    given: dict[str, Any],
) -> Options:
    """Return the configuration of a call. Raises InputError."""
    if config is not None:
        taken = f"{name} takes a configuration, {_names_of(classes)},"
        if not isinstance(config, classes):
            raise InputError(f"{taken} not {config!r:.60}; give that, or options by name")
        if given:
            raise InputError(f"{taken} or options by name, not both; put {next(iter(given))} into the first")
        return config
    _check_names(name, given, {item.name for one in classes for item in fields(one)})
    chosen = choose(given)
    idle = sorted(set(given) - {item.name for item in fields(chosen)})
    if idle:
        raise InputError(
            f"{name}: {idle[0]} is not an option of {chosen.__name__}, which this is; leave it out"
        )
    return chosen(**given)


def _check_names(function: str, given: dict[str, Any], known: Collection[str]) -> None:
    """Raise InputError for an option that a function does not have, with the one that is meant."""
    unknown = [option for option in given if option not in known]
    if unknown:
        hint = suggest_flags(unknown, known).replace("--help lists the flags", f"help({function}) lists them")
        raise InputError(f"{function} has no option {unknown[0]}; {hint}")


def checks_names(function: Function) -> Function:
    """Let a function, or the __init__ of a class, refuse a name that it does not have with the near one."""
    known = [item.name for item in signature(function).parameters.values()]
    name = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        _check_names(name, named, known)
        return function(*given, **named)

    return call  # type: ignore[return-value]  # of the same arguments


@contextmanager
def _errors_of_the_package() -> Iterator[None]:
    """Return a context that raises for callers in Python what `exit_code_of` tells on the command line."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = missing_of_training(error)
        if missing is None:
            raise
        raise missing from None
    except OSError as error:
        raise MachineError(describe_os_error(error)) from error
    except Stopped as stop:
        if stop.exit_code == 130:
            raise KeyboardInterrupt(str(stop)) from None
        raise SystemExit(stop.exit_code) from None


def _signature_of(
    classes: tuple[type[Options], ...], own: list[Parameter], written: Signature, returned: str
) -> Signature:
    """Return the signature with every option by name."""
    kind = Parameter.KEYWORD_ONLY
    options: dict[str, Parameter] = {}
    for one in classes:
        for item in fields(one):
            usual = NOWHERE if item.name == returned else item.default
            default = Parameter.empty if usual is MISSING else usual
            hint = hints_of(one)[item.name]
            options.setdefault(item.name, Parameter(item.name, kind, default=default, annotation=hint))
    config = Parameter("config", Parameter.POSITIONAL_ONLY, default=None)
    verbose = Parameter("verbose", kind, default=False, annotation=bool)
    before = [item for item in own if item.kind is not kind]
    after = [item for item in own if item.kind is kind]
    options.pop("verbose", None)
    return written.replace(parameters=[config, *before, *after, verbose, *options.values()])
