"""The Lua scripts that run inside Redis, each one atomically; only this module reads their files."""

from importlib.resources import files


def source(name: str) -> str:
    """The text of a script."""
    return (files(__name__) / f"{name}.lua").read_text(encoding="utf-8")
