"""Refuses environments that only the caller's process can build. Each process of a run builds its own."""

import functools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from dppo_redis.errors import ConfigurationError

_MAIN = "__main__"


def check_environment(env: object) -> None:
    """Refuse a value that is not an environment's id.

    Raises:
        ConfigurationError: a class, a function or an instance; the message names it and the remedy.
    """
    if env is None or isinstance(env, str):
        return
    kind = "a class" if isinstance(env, type) else "a function" if callable(env) else "an object"
    builder = env if isinstance(env, type) or callable(env) else type(getattr(env, "unwrapped", env))
    name, module = _name_and_module(builder)
    if name == "<lambda>":
        name = "the environment's class"
    env_id = _id_of(env, f"{module}:{name}")
    if env_id is None or module == _MAIN:
        advice = _advise_module(name, "my_module" if module == _MAIN else module, env_id or "MyEnv-v0")
    else:
        advice = f'Pass "{env_id if module.startswith("gymnasium.") else f"{module}:{env_id}"}"'
    raise ConfigurationError(
        f"env: pass an environment's id ({name} is {kind}), because each process of the run builds its own "
        f"environments. {advice}"
    )


def _id_of(env: object, module_and_name: str) -> str | None:
    """The id under which this process has registered an environment or its builder."""
    env_id = getattr(getattr(env, "spec", None) or env, "id", None)
    if isinstance(env_id, str):
        return env_id
    gymnasium = sys.modules.get("gymnasium")
    known = gymnasium.registry.items() if gymnasium is not None else ()
    found = [name for name, spec in known if spec.entry_point in (env, module_and_name)]
    return found[-1] if found else None  # the newest version


def check_names(settings: Mapping[str, Any]) -> None:
    """Refuse classes and functions in a configuration that only the caller's `__main__` can import.

    Raises:
        ConfigurationError: the message names the setting and the remedy.
    """
    env_id = settings.get("env_id")
    if isinstance(env_id, str):
        _check_registration(env_id)
    for setting, value in _imported_settings(settings):
        if isinstance(value, str) and value.partition(":")[0] == _MAIN:
            raise ConfigurationError(
                f"{setting}: {value!r} is defined in this notebook or script, which the processes of the run "
                f"cannot import: put it into a module file, for example my_module.py, and pass "
                f'"my_module:{value.partition(":")[2]}"'
            )
        if value is not None and not isinstance(value, str):
            shown = getattr(value, "__qualname__", type(value).__name__)
            shown = (
                shown if "<" not in shown else "MyWrapper"
            )  # a lambda, or a class defined inside a function
            raise ConfigurationError(
                f'{setting}: pass its name as text, "my_module:{shown}": the processes of the run import it '
                f"by its name (got {value!r})"
            )


def _imported_settings(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(setting, value) for all settings whose value is imported by its name."""
    network, evaluation = settings.get("network"), settings.get("evaluation")
    for setting, wrappers in (
        ("wrappers", settings.get("wrappers")),
        ("evaluation.wrappers", evaluation.get("wrappers") if isinstance(evaluation, Mapping) else None),
    ):
        if isinstance(wrappers, list | tuple):
            yield from ((setting, wrapper) for wrapper in wrappers)
    if isinstance(network, Mapping):
        yield "network.custom", network.get("custom")


def _check_registration(env_id: str) -> None:
    """Refuse an id that code in `__main__` has registered, or that names `__main__` as its module."""
    module, colon, rest = env_id.rpartition(":")
    entry_point = _entry_point(rest)
    name, home = _name_and_module(entry_point) if entry_point is not None else (rest, "")
    if (colon and module == _MAIN) or (not colon and home == _MAIN):
        raise ConfigurationError(
            f"environment {env_id!r} is defined in this notebook or script, which the processes of the run "
            f"cannot import. {_advise_module(name, 'my_module', rest)}"
        )


def _entry_point(env_id: str) -> Any:
    """The entry point that this process has registered for an environment id; None without one."""
    gymnasium = sys.modules.get("gymnasium")  # without the import nothing is registered
    if gymnasium is None:
        return None
    registry = gymnasium.registry
    known = sorted(name for name in registry if name == env_id or name.startswith(f"{env_id}-v"))
    return registry[known[-1]].entry_point if known else None


def _name_and_module(entry_point: Any) -> tuple[str, str]:
    """Name and module of an entry point."""
    if isinstance(entry_point, str):
        module, _, name = entry_point.partition(":")
        return name, module
    while isinstance(entry_point, functools.partial):
        entry_point = entry_point.func
    owner = entry_point if hasattr(entry_point, "__qualname__") else type(entry_point)
    return owner.__qualname__, owner.__module__


def _advise_module(name: str, module: str, env_id: str) -> str:
    file = f"{module.replace('.', '/')}.py"
    return (
        f"Put {name} into a module file, {file}, with gymnasium.register(id={env_id!r}, ...) below it, "
        f'and pass "{module}:{env_id}"'
    )
