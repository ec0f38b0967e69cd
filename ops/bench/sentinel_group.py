"""A primary, two replicas and three sentinels on loopback, to be hurt: by the benchmark and by tests.

The settings are those of ops/README.md. Everything lives below one directory and ends with `close`.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import redis

from dppo_redis.store.client import Client, connect

SERVICE = "dppo"
DOWN_AFTER_MS = 3000
_SERVERS, _SENTINELS = 3, 3
_SERVER = """\
port {port}
bind 127.0.0.1
dir {directory}
save ""
appendonly no
maxmemory-policy noeviction
repl-diskless-sync-delay 0
min-replicas-to-write 1
min-replicas-max-lag 10
"""
_SENTINEL = """\
port {port}
bind 127.0.0.1
dir {directory}
sentinel monitor {service} 127.0.0.1 {primary} 2
sentinel down-after-milliseconds {service} {down_after_ms}
sentinel failover-timeout {service} 10000
"""


@dataclass(frozen=True)
class Guard:
    """How the group is protected: lines of configuration, and URLs that get past them. Default: not."""

    server_lines: str = ""
    sentinel_lines: str = ""
    server_url: str = "redis://127.0.0.1:{port}"
    sentinel_url: str = "redis://127.0.0.1:{port}"


class SentinelGroup:
    """Six processes; the URL reaches whichever server leads."""

    def __init__(self, binary: str, guard: Guard | None = None) -> None:
        self._binary = binary
        self._guard = guard or Guard()
        self._directory = Path(tempfile.mkdtemp(prefix="dppo-sentinel-"))
        ports = _free_ports(_SERVERS + _SENTINELS)
        self.servers, self.sentinels = ports[:_SERVERS], ports[_SERVERS:]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._clients: dict[int, Client] = {}

    @property
    def hosts(self) -> str:
        """The sentinels, as a URL names them."""
        return ",".join(f"127.0.0.1:{port}" for port in self.sentinels)

    @property
    def url(self) -> str:
        return f"sentinel://{self.hosts}/{SERVICE}"

    def __enter__(self) -> Self:
        """Start it, and wait until it would survive a failure."""
        try:
            primary = self.servers[0]
            for port in self.servers:
                replica = "" if port == primary else f"replicaof 127.0.0.1 {primary}\n"
                self._write(port, _SERVER, replica + self._guard.server_lines)
                self.start(port)
            for port in self.sentinels:
                values = {"service": SERVICE, "primary": primary, "down_after_ms": DOWN_AFTER_MS}
                self._write(port, _SENTINEL, self._guard.sentinel_lines, **values)
                self.start(port, "--sentinel")
            self.wait_until_whole()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, port: int, template: str, more: str, **values: object) -> None:
        place = self._directory / str(port)
        place.mkdir()
        text = (template + more).format(port=port, directory=place, **values)
        (place / "server.conf").write_text(text, encoding="utf-8")

    def start(self, port: int, *arguments: str) -> None:
        """Start a server (again): it believes in the role that its file gives it."""
        configuration = str(self._directory / str(port) / "server.conf")
        with (self._directory / str(port) / "log").open("ab") as log:
            self._processes[port] = subprocess.Popen(
                [self._binary, configuration, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def client(self, port: int) -> Client:
        """A client of one process, whatever it is."""
        if port not in self._clients:
            is_sentinel = port in self.sentinels
            url = self._guard.sentinel_url if is_sentinel else self._guard.server_url
            self._clients[port] = connect(url.format(port=port), "bench")
        return self._clients[port]

    def primary(self) -> int:
        """Port of the server that the sentinels call the primary now."""
        for port in self.sentinels:
            try:
                address = cast(Any, self.client(port).sentinel_get_master_addr_by_name(SERVICE))
                return int(address[1])
            except redis.RedisError:
                continue
        raise TimeoutError("no sentinel answers")

    # What is done to it

    def kill(self, port: int) -> None:
        """Kill -9."""
        self._processes[port].kill()
        self._processes[port].wait()

    def freeze(self, port: int) -> None:
        os.kill(self._processes[port].pid, signal.SIGSTOP)

    def thaw(self, port: int) -> None:
        os.kill(self._processes[port].pid, signal.SIGCONT)

    def fail_over(self) -> None:
        """Ask a sentinel for it, as an operator does: again, while it has no news of a replica's link yet."""
        wait_for(self._has_agreed_to_fail_over, 30.0, "a sentinel has a replica to promote")

    def _has_agreed_to_fail_over(self) -> bool:
        try:
            cast(Any, self.client(self.sentinels[0])).execute_command("SENTINEL", "FAILOVER", SERVICE)
        except redis.ResponseError as error:
            if str(error).startswith("NOGOODSLAVE"):
                return False
            raise
        return True

    def wait_until_whole(self, deadline_s: float = 60.0) -> None:
        """Until every replica follows the primary and every sentinel knows of all the others."""
        wait_for(self._is_whole, deadline_s, "the group is whole")

    def _is_whole(self) -> bool:
        try:
            replicas = [self.client(port).info("replication") for port in self.servers]
            views = [cast(Any, self.client(port).sentinel_masters())[SERVICE] for port in self.sentinels]
        except (redis.RedisError, KeyError):
            return False
        roles = sorted((info["role"], info.get("master_link_status", "up")) for info in replicas)
        return roles == [("master", "up"), *[("slave", "up")] * (_SERVERS - 1)] and all(
            view["num-other-sentinels"] == _SENTINELS - 1
            and view["num-slaves"] == _SERVERS - 1
            and view["flags"] == "master"
            for view in views
        )

    def close(self) -> None:
        """End all processes, frozen ones too, and remove their files."""
        for client in self._clients.values():
            client.connection_pool.disconnect()
        for process in self._processes.values():
            process.kill()
            process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)


def wait_for(condition: Callable[[], bool], deadline_s: float, what: str) -> None:
    """Return once `condition` holds.

    Raises:
        TimeoutError: it does not hold after `deadline_s`.
    """
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {deadline_s:g} s in vain until {what}")
        time.sleep(0.05)


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
