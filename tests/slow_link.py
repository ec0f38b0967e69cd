"""A slow link in front of a server, which passes bytes at a fixed rate, with TLS or without.

With `swallows` it takes everything at once and passes it on slowly, as a tunnel with large buffers does;
without it what does not fit stays with the sender's kernel.
"""

import queue
import socket
import threading
import time
from contextlib import suppress
from typing import Self

_PIECE = 8 * 1024
_SMALL_BUFFER = 16 * 1024
Target = str | tuple[str, int]  # a unix socket or a port


def _open(target: Target) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX if isinstance(target, str) else socket.AF_INET)
    sock.connect(target)
    return sock


class SlowLink:
    """Listens on a unix socket or a free port; `rate` in bytes/s of each connection towards the server."""

    def __init__(
        self, target: Target, rate: float, *, path: str | None = None, swallows: bool = False
    ) -> None:
        self.connections = 0
        self.passed = 0  # bytes towards the server
        self._target, self._rate, self._swallows = target, rate, swallows
        self._open: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_INET if path is None else socket.AF_UNIX)
        if not swallows:  # inherited by accepted connections
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
        self._listener.bind(("127.0.0.1", 0) if path is None else path)
        self._listener.listen()
        self.port = 0 if path is not None else int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in [self._listener, *self._open]:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                server = _open(self._target)
                self._open += [client, server]
                upwards = self._swallow_and_pass if self._swallows else self._pass
                threading.Thread(target=upwards, args=(client, server), daemon=True).start()
                threading.Thread(target=self._back, args=(server, client), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                self._slowly(piece, sink)
        self._end(source, sink)

    def _swallow_and_pass(self, source: socket.socket, sink: socket.socket) -> None:
        held: queue.Queue[bytes] = queue.Queue()

        def swallow() -> None:
            with suppress(OSError):
                while piece := source.recv(_PIECE):
                    held.put(piece)
            held.put(b"")

        threading.Thread(target=swallow, daemon=True).start()
        with suppress(OSError):
            while piece := held.get():
                self._slowly(piece, sink)
        self._end(source, sink)

    def _slowly(self, piece: bytes, sink: socket.socket) -> None:
        time.sleep(len(piece) / self._rate)
        sink.sendall(piece)
        self.passed += len(piece)

    def _back(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                if not self._swallows:
                    time.sleep(len(piece) / self._rate)
                sink.sendall(piece)
        self._end(source, sink)

    def _end(self, *sockets: socket.socket) -> None:
        for sock in sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
