"""Objects that a user names as `module:Name`: wrappers and networks of their own."""

import importlib
import sys
from pathlib import Path
from typing import Any

from dppo_redis.errors import ConfigurationError


def find_modules_here() -> None:
    """Let modules of the working directory be imported; last in the path, to shadow nothing."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


def import_named(name: str, knob: str) -> Any:
    """The object that `module:Name` names.

    Raises:
        ConfigurationError: there is none; `knob` is the setting that named it.
    """
    module, _, attribute = name.partition(":")
    find_modules_here()
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # code of the user's: anything may come out of it
        missing = isinstance(error, ModuleNotFoundError)
        raise ConfigurationError(
            f"{knob}: {name!r} cannot be imported as module:Name: {type(error).__name__}: {first_line(error)}"
            f"{'; modules are found in the working directory and on PYTHONPATH' if missing else ''}"
        ) from error


def first_line(error: BaseException) -> str:
    """What an exception says, in one line."""
    return (str(error).strip().splitlines() or [""])[0]


def one_line(error: Exception) -> str:
    """All that an exception says, in one line."""
    return " ".join(str(error).split())
