"""Applies the wrappers that the configuration names."""

import ast
import warnings
from typing import Any

import gymnasium

from dppo_redis.environments.failures import is_final
from dppo_redis.environments.normalisers import refuse_normalisers
from dppo_redis.errors import ConfigurationError, EnvironmentBrokenError
from dppo_redis.service.plugins import first_line, import_named


def wrap(env: gymnasium.Env[Any, Any], text: str) -> gymnasium.Env[Any, Any]:
    """Apply one wrapper: `Name`, `Name(key=value)` of gymnasium.wrappers, or `module:Name(...)`.

    Raises:
        ConfigurationError: the wrapper is unknown, refuses its arguments, or returns no environment.
        EnvironmentBrokenError: the user's own wrapper raised; a new attempt may succeed.
    """
    name, arguments = _parse_wrapper(text)
    wrapper = import_named(name if ":" in name else f"gymnasium.wrappers:{name}", "wrappers")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wrapped = wrapper(env, **arguments)
        if not isinstance(wrapped, gymnasium.Env):
            raise TypeError(f"it returned a {type(wrapped).__name__}, not an environment")
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        final = ":" not in name or isinstance(error, TypeError) or is_final(error)
        raise (ConfigurationError if final else EnvironmentBrokenError)(
            f"wrappers: {text} cannot be applied: {type(error).__name__}: {first_line(error)}"
        ) from error
    refuse_normalisers(wrapped, f"wrappers: {text}")
    return wrapped


def _parse_wrapper(text: str) -> tuple[str, dict[str, Any]]:
    name, bracket, _ = text.partition("(")
    if not bracket:
        return text.strip(), {}
    try:
        call = ast.parse(f"f({text.removeprefix(name + '(')}", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("one call is expected")
        _refuse_code(text, call)
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError("arguments are given by name")
        return name.strip(), {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise ConfigurationError(
            f"wrappers: {text!r} is not Name(key=value, ...) with plain values: {first_line(error)}"
        ) from error


def _refuse_code(text: str, call: ast.Call) -> None:
    """Refuse a lambda or the name of a function: they are code, and a configuration holds plain values.

    Raises:
        ConfigurationError: an argument is code; the message names it and says what to do.
    """
    for value in (*call.args, *(keyword.value for keyword in call.keywords)):
        if any(isinstance(part, ast.Lambda | ast.Name | ast.Attribute) for part in ast.walk(value)):
            raise ConfigurationError(
                f"wrappers: {text!r}: {ast.unparse(value)!r} is code, and a setting holds plain values: "
                "write a wrapper class with it in a module of your own, and name it as module:Class"
            )
