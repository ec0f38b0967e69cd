"""Imports the environments, wrappers and networks that a user names as `module:Name`."""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from dppo_redis.errors import ConfigurationError
from dppo_redis.service.process_state import keeping_process_state

_OURS = ("dppo_redis", "learner", "ops", "workers")
_LONGEST_LINE = 500  # characters
_HOME = Path(__file__).resolve().parents[2]


def allow_local_imports() -> None:
    """Let modules of the working directory be imported. It is last in the path, so that it hides no other.

    Raises:
        ConfigurationError: a module there has the name of a package of ours.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    refuse_namesakes(Path(here))


def refuse_namesakes(directory: Path) -> None:
    """Refuse modules in `directory` that would be imported instead of ours, or ours instead of them.

    Raises:
        ConfigurationError: there is such a module; the message names the file and the package.
    """
    if directory.resolve() == _HOME or _holds_ours(directory):
        return
    for name in _OURS:
        for file in (
            directory / f"{name}.py",
            directory / name / "__init__.py",
            *(directory / name).glob("*.py"),
        ):
            if file.is_file():
                raise ConfigurationError(
                    f"{file} has the name of a package of this product, {name}: `import {name}` cannot mean "
                    "both, so rename yours"
                )


def _holds_ours(directory: Path) -> bool:
    """Whether a copy of this product lies in this directory."""
    return all((directory / name / "__init__.py").is_file() for name in _OURS)


def import_module_of(name: str) -> None:
    """Import the module of `module:Name`, if it has one.

    Raises:
        ModuleNotFoundError: there is no such module.
        ConfigurationError: it cannot be imported, or modules beside it have names of ours.
    """
    module, colon, _ = name.partition(":")
    if not colon:
        return
    allow_local_imports()
    _refuse_namesakes_beside(module)
    try:
        with keeping_process_state():
            importlib.import_module(module)
    except ModuleNotFoundError:
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise ConfigurationError(f"{type(error).__name__}: {first_line(error)}") from error


def _refuse_namesakes_beside(module: str) -> None:
    """Refuse modules beside the user's that have names of ours: its `import workers` would find ours."""
    try:
        found = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return
    if found is None or not found.origin or not Path(found.origin).is_file():
        return
    inside = Path(found.origin).parent
    refuse_namesakes(inside.parent if found.submodule_search_locations else inside)


def import_named(name: str, knob: str) -> Any:
    """The object that `module:Name` names.

    Raises:
        ConfigurationError: there is no such object; the message names the setting, `knob`.
    """
    module, _, attribute = name.partition(":")
    allow_local_imports()
    _refuse_namesakes_beside(module)
    try:
        with keeping_process_state():
            return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        missing = isinstance(error, ModuleNotFoundError)
        raise ConfigurationError(
            f"{knob}: {name!r} cannot be imported as module:Name: {type(error).__name__}: {first_line(error)}"
            f"{'; modules are found in the working directory and on PYTHONPATH' if missing else ''}"
        ) from error


def first_line(error: BaseException) -> str:
    """The first line of an exception's text, as a screen can show it. Its class may be the user's."""
    try:
        line = (str(error).strip().splitlines() or [""])[0]
    except Exception:  # noqa: BLE001 the user's code may raise anything
        return "it cannot say what"
    line = line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..."
    return line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def one_line(error: Exception) -> str:
    """The whole text of an exception, in one line."""
    return " ".join(str(error).split())
