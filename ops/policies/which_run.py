"""Finds the run that a command names: a directory, an export, or the name of a run in runs/."""

from pathlib import Path

from dppo_redis.command_line.nearest import list_by_similarity
from dppo_redis.errors import ConfigurationError
from ops.fleet.run_directory import RUNS, runs_here


def find_run_directory(placed: Path | None, run: str | None) -> Path:
    """The directory that the user named: the path as typed, or runs/NAME if only that exists.

    Raises:
        ConfigurationError: the user named none, or two; the message lists the runs in runs/.
    """
    if placed is not None and run is not None:
        raise ConfigurationError(f"RUN_DIR ({placed}) and --run {run}: name one of them")
    if placed is None and run is None:
        raise ConfigurationError(f"name a run: its directory, or --run NAME{_here()}")
    named = placed if placed is not None else RUNS / str(run)
    return named if named.exists() else _by_name(named)


def find_run_directories(placed: tuple[Path, ...]) -> tuple[Path, ...]:
    """The directories that the user named. A word that is neither directory nor run name is kept as typed.

    Raises:
        ConfigurationError: the user named none.
    """
    if not placed:
        raise ConfigurationError(f"name at least one run: its directory, or its name{_here()}")
    return tuple(RUNS / path if not path.exists() and (RUNS / path).exists() else path for path in placed)


def _by_name(path: Path) -> Path:
    """`runs/NAME` for NAME.

    Raises:
        ConfigurationError: it does not exist; the message lists the runs in runs/.
    """
    if (RUNS / path).exists():
        return RUNS / path
    others = list_by_similarity(path.name, runs_here())
    raise ConfigurationError(
        f"{path} holds no run and no export{f'; {RUNS}/ has: {others}' if others else ''}"
    )


def _here() -> str:
    found = runs_here()
    return f"; {RUNS}/ has: {', '.join(found[:8])} (newest first)" if found else ""
