"""Finds the Redis URL and password of a process: in the flag, the environment or a file.

Secrets come from the environment or from files of mode 0600. If DPPO_REDIS_CREDENTIALS names a directory,
each process takes user and password from the file of its own role in it.
"""

import logging
import os
import shlex
import stat
from enum import StrEnum
from pathlib import Path

from dppo_redis.errors import ConfigurationError
from dppo_redis.service.files import read_text
from dppo_redis.store.address import has_password, read_address, with_credentials

URL_VARIABLE = "DPPO_REDIS_URL"
URL_FILE_VARIABLE = "DPPO_REDIS_URL_FILE"
PASSWORD_FILE_VARIABLE = "DPPO_REDIS_PASSWORD_FILE"
CREDENTIALS_VARIABLE = "DPPO_REDIS_CREDENTIALS"
VARIABLES = (URL_VARIABLE, URL_FILE_VARIABLE, PASSWORD_FILE_VARIABLE, CREDENTIALS_VARIABLE)
_log = logging.getLogger("dppo")


class Role(StrEnum):
    """The role of a process; each role may have its own Redis user."""

    ACTOR = "actor"
    LEARNER = "learner"
    EVALUATOR = "evaluator"
    MONITOR = "monitor"
    OPERATOR = "operator"


def is_url_given(flag: str | None) -> bool:
    """Whether the flag or the environment names a Redis server."""
    return bool(flag or os.environ.get(URL_VARIABLE) or os.environ.get(URL_FILE_VARIABLE))


def find_url(flag: str | None, role: Role = Role.OPERATOR) -> str:
    """The Redis URL of a process, user and password included.

    Raises:
        ConfigurationError: no URL is given, it is malformed, or a file with a secret is missing or
            readable by others.
    """
    return as_role(base_url(flag), role)


def base_url(flag: str | None) -> str:
    """The URL from the flag, else from the environment, else from the file that the environment names.

    Raises:
        ConfigurationError: no URL is given, it is malformed, or its file cannot be read.
    """
    url = (flag or os.environ.get(URL_VARIABLE) or _url_in_file() or "").strip()
    if not url:
        raise ConfigurationError(
            "no Redis given: pass --redis URL (`dppo-redis train` prints the URL of its run), "
            f"or set {URL_VARIABLE} or {URL_FILE_VARIABLE}"
        )
    read_address(url)
    if flag and has_password(flag):
        _log.warning(
            "a password on the command line is visible to every user of this machine: "
            "set %s, %s or %s instead",
            URL_VARIABLE,
            URL_FILE_VARIABLE,
            PASSWORD_FILE_VARIABLE,
        )
    return url


def _url_in_file() -> str | None:
    file = os.environ.get(URL_FILE_VARIABLE)
    return _read_secret(Path(file), "URL") if file else None


def as_role(url: str, role: Role) -> str:
    """The URL with the user and password of `role`, from the credentials directory or password file.

    Raises:
        ConfigurationError: a file of credentials cannot be read.
    """
    directory, file = os.environ.get(CREDENTIALS_VARIABLE), os.environ.get(PASSWORD_FILE_VARIABLE)
    if directory:
        return with_credentials(url, *read_credentials(Path(directory) / role))
    return with_credentials(url, None, _read_secret(Path(file), "password")) if file else url


def read_credentials(file: Path) -> tuple[str, str]:
    """(user, password) in a file that holds USER:PASSWORD.

    Raises:
        ConfigurationError: the file is missing, readable by others, or has another form.
    """
    user, colon, password = _read_secret(file, "credentials").partition(":")
    if not colon:
        raise ConfigurationError(f"{file} does not hold USER:PASSWORD")
    return user, password


def _read_secret(file: Path, what: str) -> str:
    try:
        if file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigurationError(f"{file} is readable by others: chmod 600 {file}")
        text = read_text(file).rstrip("\n")
    except OSError as error:
        raise ConfigurationError(f"cannot read the {what} file {file}: {error.strerror}") from error
    if what == "URL":
        text = text.strip()
    if mistake := _mistake_in(text):
        raise ConfigurationError(f"the {what} file {file} {mistake}")
    if text != text.strip():
        _log.warning("the %s file %s begins or ends with a blank: it is part of the password", what, file)
    return text


def _mistake_in(secret: str) -> str:
    """The mistake in a secret that an editor or a shell may have damaged; empty if there is none."""
    if not secret:
        return "is empty"
    return "has more than one line" if "\n" in secret or "\r" in secret else ""


def shown_credentials(url: str) -> tuple[str, str]:
    """The words before a command line that a message shows for `url`: (for our commands, for redis-cli).

    They name the place of the secrets, not the secrets.
    """
    for variable in (CREDENTIALS_VARIABLE, PASSWORD_FILE_VARIABLE):
        if place := os.environ.get(variable):
            return f"{variable}={shlex.quote(place)} ", "REDISCLI_AUTH=... "
    if has_password(url):
        return f"{PASSWORD_FILE_VARIABLE}=FILE ", "REDISCLI_AUTH=... "
    return "", ""
