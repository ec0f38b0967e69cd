"""The run's name in commands that read a run from Redis."""

from dppo_redis.errors import ConfigurationError


def one_run_name(name: str | None, run: str | None) -> str | None:
    """The run's name from the positional argument or from --run; None without both.

    Raises:
        ConfigurationError: the two names differ.
    """
    if name is not None and run is not None and name != run:
        raise ConfigurationError(f"RUN ({name}) and --run {run}: name one of them")
    return name if name is not None else run
