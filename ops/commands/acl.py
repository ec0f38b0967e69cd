"""`dppo-redis acl`: makes one Redis user per role, and the credentials file of each role."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dppo_redis.errors import ConfigurationError, ExitStatus
from dppo_redis.service.arguments import parse_arguments
from dppo_redis.service.files import write_atomically
from dppo_redis.store.credentials import CREDENTIALS_VARIABLE, Role, read_credentials
from dppo_redis.store.keys import check_run_name
from ops.fleet.access_rules import acl_file

ACL_FILE = "users.acl"
ADMIN = "admin"
_PASSWORD_BYTES = 32


@dataclass(frozen=True)
class AclOptions:
    """Make Redis users: one per role with the rights it needs, and an admin. All other users are locked
    out."""

    directory: Path
    """Directory for users.acl and one file of credentials per role; existing credentials are kept"""
    run: str | None = None
    """Give rights to this run's keys only; default: to the keys of every run"""


def make_users(directory: Path, run: str | None) -> None:
    """Write users.acl (hashes only) and the credentials of each role, readable only by this user."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    prefix = f"dppo-{check_run_name(run)}" if run else "dppo"
    users = [(role, *_credentials(directory / role, f"{prefix}-{role}")) for role in Role]
    admin = _credentials(directory / ADMIN, f"{prefix}-{ADMIN}")
    write_atomically(directory / ACL_FILE, acl_file(users, admin, run).encode())


def _credentials(file: Path, name: str) -> tuple[str, str]:
    """Read user and password from a file; create the file if it is missing."""
    if not file.exists():
        file.touch(mode=0o600)
        file.write_text(f"{name}:{secrets.token_urlsafe(_PASSWORD_BYTES)}\n")
    return read_credentials(file)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point.

    Raises:
        ConfigurationError: the directory cannot be written.
    """
    options = parse_arguments(AclOptions, argv, "dppo-redis acl")
    directory = options.directory.resolve()
    try:
        make_users(directory, options.run)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write to {directory}: {error.strerror}: choose another --directory"
        ) from error
    print(f"server:    aclfile {directory / ACL_FILE}   (in its redis.conf; ACL LOAD after a change)")
    print(f"services:  {CREDENTIALS_VARIABLE}={directory}   (each service reads the file of its role)")
    print(f"elsewhere: copy only the file {Role.ACTOR} to a machine that runs actors")
    return ExitStatus.DONE
