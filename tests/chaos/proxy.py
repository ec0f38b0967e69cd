"""A TCP proxy in front of a server, for bad networks: delay, narrow bandwidth, a hole, resets, lost replies.

It runs in a thread of its own. A connection's role is in the name that it gives itself at the server
(`dppo-actor-RUN`), so that a fault can concern the actors alone.
"""

import asyncio
import re
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

_CHUNK = 64 * 1024
_POLL_S = 0.02
_NAME = re.compile(rb"dppo-([a-z]+)-")
T = TypeVar("T")


@dataclass(frozen=True)
class Weather:
    """The faults of the network for the connections of a role; by default there are none."""

    role: str = ""  # actor, learner, keeper, evaluator, train; empty: all
    delay_s: float = 0.0  # of every piece of a message, in each direction
    bytes_per_s: float = 0.0  # of each connection, in each direction; 0: no limit
    hole: bool = False  # connections stay open, nothing passes; afterwards what was held does


@dataclass(eq=False)
class _Link:
    """One connection through the proxy."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    role: str = ""
    losing: bool = False  # the next reply is swallowed, and the connection reset
    seen: bytes = field(default=b"", repr=False)

    def notice(self, sent: bytes) -> None:
        """Find the role in the first bytes that the client sends."""
        if not self.role and len(self.seen) < 4096:
            self.seen += sent[:4096]
            found = _NAME.search(self.seen)
            self.role = found[1].decode() if found else ""

    def is_of(self, role: str) -> bool:
        return role in ("", self.role)

    def reset(self) -> None:
        for writer in (self.client, self.server):
            reset(writer)


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST, whatever is still unsent."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0 and sock.family == socket.AF_INET:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class Proxy:
    """Passes bytes between a TCP port of this machine and a server's unix socket."""

    def __init__(self, server_socket: str) -> None:
        self._server_socket = server_socket
        self._loop = asyncio.new_event_loop()
        self._links: set[_Link] = set()
        self._weather = Weather()
        self._losses: list[tuple[str, bytes]] = []  # (role, marker) of requests whose reply will be lost
        self.replies_lost = 0
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._listener = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = int(self._listener.sockets[0].getsockname()[1])
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def set_weather(self, weather: Weather) -> None:
        """Set the faults from now on, for open connections too."""
        self._weather = weather

    def reset(self, role: str = "") -> int:
        """Reset every connection of a role; returns how many there were."""
        return self._call(lambda: self._reset(role))

    def _reset(self, role: str) -> int:
        links = [link for link in self._links if link.is_of(role)]
        for link in links:
            link.reset()
        return len(links)

    def lose_reply(self, role: str, marker: bytes) -> None:
        """Let the next request that holds `marker` reach the server; its reply never comes back."""
        self._call(lambda: self._losses.append((role, marker)))

    def close(self) -> None:
        """End every connection and the thread."""
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        self._listener.close()
        self._weather = Weather()
        self._reset("")
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _call(self, action: Callable[[], T]) -> T:
        done: Future[T] = Future()
        self._loop.call_soon_threadsafe(lambda: done.set_result(action()))
        return done.result(10)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, server = await asyncio.open_unix_connection(self._server_socket)
        except OSError:  # the server is down: what a client sees is a refused connection
            reset(writer)
            return
        link = _Link(writer, server)
        self._links.add(link)
        try:
            up = asyncio.create_task(self._pass_on(link, reader, server, upwards=True))
            down = asyncio.create_task(self._pass_on(link, answers, writer, upwards=False))
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            if not up.done():
                up.cancel()
            else:  # the client has gone: what it sent has been delivered, nobody waits for an answer
                down.cancel()
        except asyncio.CancelledError:  # the proxy closes; asyncio would report it as an error
            pass
        finally:
            link.reset()
            self._links.discard(link)

    async def _pass_on(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, upwards: bool
    ) -> None:
        """Move bytes in one direction until either side closes."""
        try:
            while piece := await reader.read(_CHUNK):
                if upwards:
                    link.notice(piece)
                    self._begin_loss(link, piece)
                await self._travel(link, len(piece))
                if not upwards and link.losing:
                    self.replies_lost += 1
                    return
                writer.write(piece)
                await writer.drain()
            if upwards:
                await asyncio.sleep(_POLL_S)  # the server reads before the connection is reset
        except (ConnectionError, asyncio.IncompleteReadError):
            return

    def _begin_loss(self, link: _Link, piece: bytes) -> None:
        for loss in self._losses:
            role, marker = loss
            if link.is_of(role) and marker in piece:
                link.losing = True
                self._losses.remove(loss)
                return

    async def _travel(self, link: _Link, size: int) -> None:
        """Wait for the delay and the bandwidth that the weather sets."""
        while self._weather.hole and link.is_of(self._weather.role):
            await asyncio.sleep(_POLL_S)
        weather = self._weather
        if not link.is_of(weather.role):
            return
        seconds = weather.delay_s + (size / weather.bytes_per_s if weather.bytes_per_s else 0.0)
        if seconds:
            await asyncio.sleep(seconds)
