"""Finds the run that the user names: by a directory, an export, or the name of a run in runs/."""

from pathlib import Path

from dppo_redis.command_line.nearest import list_by_similarity
from dppo_redis.errors import ConfigurationError
from ops.fleet.run_directory import RUNS, run_in, runs_here


def find_run_directory(path: Path | None, run: str | None) -> Path:
    """The directory that the user named: the path as typed, or runs/NAME if only that exists.

    Raises:
        ConfigurationError: the user named none, or two; the message lists the runs in runs/.
    """
    if path is not None and run is not None:
        raise ConfigurationError(f"RUN_DIR ({path}) and --run {run}: name one of them")
    if path is None and run is None:
        raise ConfigurationError(f"name a run: its directory, or --run NAME{_runs_suffix()}")
    named = path if path is not None else RUNS / str(run)
    return named if named.exists() else _by_name(named)


def find_run_directories(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """The directories that the user named. A word that is neither a directory nor a run's name stays as
    typed.

    Raises:
        ConfigurationError: the user named none.
    """
    if not paths:
        raise ConfigurationError(f"name at least one run: its directory, or its name{_runs_suffix()}")
    return tuple(RUNS / path if not path.exists() and (RUNS / path).exists() else path for path in paths)


def _by_name(path: Path) -> Path:
    """`runs/NAME` for NAME.

    Raises:
        ConfigurationError: it does not exist; the message lists the runs in runs/.
    """
    if (RUNS / path).exists():
        return RUNS / path
    raise not_a_run(path)


def not_a_run(path: Path) -> ConfigurationError:
    """The error for a path without a run or export. Its message lists the runs in runs/."""
    owner = next(
        (parent for parent in path.parents[:2] if path.exists() and run_in(parent) is not None), None
    )
    if owner is not None:
        option = f", and this file with --checkpoint {path}" if path.is_file() else ""
        return ConfigurationError(f"{path} is a part of a run: pass the run's directory, {owner}{option}")
    others = list_by_similarity(path.name, runs_here())
    return ConfigurationError(
        f"{path} holds no run and no export{f'; {RUNS}/ has: {others}' if others else ''}"
    )


def _runs_suffix() -> str:
    names = runs_here()
    return f"; {RUNS}/ has: {', '.join(names[:8])} (newest first)" if names else ""
