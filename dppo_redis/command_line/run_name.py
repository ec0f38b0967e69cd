"""The name of a run, as commands take it that look at a run in Redis."""

from dppo_redis.errors import ConfigurationError


def one_run_name(placed: str | None, run: str | None) -> str | None:
    """A run's name, given as a word or behind --run; None without either.

    Raises:
        ConfigurationError: two names.
    """
    if placed is not None and run is not None and placed != run:
        raise ConfigurationError(f"RUN ({placed}) and --run {run}: name one of them")
    return placed if placed is not None else run
