"""A run's configuration as a TOML file: read with one line for each mistake, and written as it was used."""

import tomllib
from pathlib import Path

from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.settings import with_our_names
from dppo_redis.service.files import read_text


def load_toml(file: Path) -> RunConfig:
    """Read a run's configuration from a TOML file.

    Raises:
        ConfigurationError: the file is unreadable or no TOML, or has an unknown key or a bad value.
    """
    return load_with_notes(file)[0]


def load_with_notes(file: Path) -> tuple[RunConfig, list[str]]:
    """Read a configuration, and a note for each name of another library in it that has a name of ours.

    Raises:
        ConfigurationError: as `load_toml` does.
    """
    try:
        values = tomllib.loads(read_text(file))
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{file} is not valid TOML: {error}") from error
    try:
        ours, notes = with_our_names(RunConfig, values)
        return RunConfig.model_validate(ours), [f"{file}: {note}" for note in notes]
    except ConfigurationError as error:
        raise ConfigurationError(f"{file}: {error}") from error


def to_toml(config: RunConfig) -> dict[str, object]:
    """All settings as TOML values, without those that are None, because TOML has no null."""
    values: dict[str, object] = config.model_dump(exclude_none=True)
    sections = {
        name: {knob: _toml(x) for knob, x in section.items()}
        for name, section in values.items()
        if isinstance(section, dict)
    }
    return {**{name: _toml(x) for name, x in values.items() if name not in sections}, **sections}


def _toml(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
