"""A user's function that the configuration names as `package.module:function`."""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from convoy.config.errors import ConfigError


def import_function(key: str, name: str) -> Callable[..., Any]:
    """The function of this name. key: of the configuration, which errors name. Raises ConfigError if there is none, and
    whatever its module raises when it is imported."""
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(f"{key} = {name}: no module named {error.name} on the Python path") from None
    function: Any = getattr(module, function_name, None)
    if not callable(function):
        raise ConfigError(f"{key} = {name}: no function {function_name} in {module.__file__}")
    found: Callable[..., Any] = function
    return found


def check_arguments(
    key: str, name: str, function: Callable[..., Any], args: Mapping[str, Any], before: Sequence[Any] = ()
) -> None:
    """Raise ConfigError if the function does not take these keyword arguments.

    key: of `args` in the configuration. name: of the function there. before: arguments by position.
    """
    try:
        inspect.signature(function).bind(*before, **args)
    except TypeError as error:
        raise ConfigError(f"{key} = {args}: {name} does not take them: {error}") from None
