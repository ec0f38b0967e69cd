"""A Redis connection whose timeout limits the time without progress, not the time that a message takes.

A large rollout on a slow link takes minutes to send. Most of that time its bytes wait in buffers. The kernel
says how many bytes its buffer holds; tunnels and proxies do not. Therefore the limit for a reply grows with
the bytes that were sent, at the rate that the connection assumes for the link. A timeout divides this rate by
four. A reply to a large message sets it to half of the measured rate, at most 256 KiB/s.
"""

import fcntl
import ssl
import struct
import termios
import time
from collections.abc import Iterable
from typing import Any, cast

import redis
from redis.connection import AbstractConnection

_TLS_RECORD = 16 * 2**10  # bytes; openssl sends a whole record or nothing
_MOST_PIECES = 256  # of one system call; Linux takes 1024
_LARGE = 64 * 2**10  # bytes; smaller messages say nothing about a link
_USUAL_RATE = 256 * 2**10  # bytes/s; a new connection assumes that its link is this fast
_LOWEST_RATE = 4 * 2**10
_RATE_DIVISOR = 4  # the rate is divided by this if a reply did not come in time


def unsent_bytes(sock: Any) -> int:
    """Bytes that the kernel holds and the other side has not received; 0 if the kernel does not say."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))[0])
    except OSError:
        return 0


def _without(pieces: list[memoryview], sent: int) -> list[memoryview]:
    """What is left of the pieces after the first `sent` bytes."""
    for index, piece in enumerate(pieces):
        if sent < len(piece):
            return [piece[sent:], *pieces[index + 1 :]]
        sent -= len(piece)
    return []


class SteadyConnection(AbstractConnection):
    """Gives up once nothing has moved for `socket_timeout` seconds."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._rate = _USUAL_RATE
        self._unsent = 0  # bytes, at the last check
        self._unanswered = 0  # bytes sent since the last reply
        self._began = 0.0  # when the first of them was sent; monotonic
        self._moved = 0.0  # when progress was last seen; monotonic

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Send the whole command, bytes or a list of them; there is no limit in time while bytes leave."""
        super().send_packed_command([], check_health)  # type: ignore[no-untyped-call] # connects first
        self._moved = time.monotonic()
        if not self._unanswered:
            self._began = self._moved
        pieces = [command] if isinstance(command, str | bytes) else command
        try:
            self._send(piece.encode() if isinstance(piece, str) else piece for piece in pieces)
        except TimeoutError:
            self._lower_rate()
            raise redis.TimeoutError("Timeout writing to socket") from None
        except OSError as error:
            self.disconnect()
            raise redis.ConnectionError(f"Error while writing to socket: {error}.") from error

    def _send(self, pieces: Iterable[bytes]) -> None:
        """Send the pieces without joining them: none is copied, except by TLS and the kernel."""
        left, sock = [memoryview(piece) for piece in pieces if piece], cast(Any, self._sock)
        is_tls = isinstance(sock, ssl.SSLSocket)
        while left:
            try:
                sent = sock.send(left[0][:_TLS_RECORD]) if is_tls else sock.sendmsg(left[:_MOST_PIECES])
            except TimeoutError:
                if not self._may_wait_longer():
                    raise
                continue
            self._unanswered += sent
            left = _without(left, sent)
            if left:
                self._moved, self._unsent = time.monotonic(), unsent_bytes(sock)
            else:
                self._unsent += sent  # at most: if fewer are left at the next check, some have moved

    def read_response(self, *args: Any, disconnect_on_error: bool = True, **options: Any) -> Any:
        """A reply; waits while bytes move in either direction."""
        while True:
            try:
                answer = super().read_response(*args, disconnect_on_error=False, **options)
            except redis.TimeoutError:
                if "timeout" not in options and self._may_wait_longer():
                    continue
                self._lower_rate()
                raise
            except redis.ResponseError:
                self._was_answered()
                raise
            except BaseException:
                if disconnect_on_error:
                    self.disconnect()
                raise
            self._was_answered()
            return answer

    def disconnect(self, *args: Any, **options: Any) -> None:
        """Close the socket."""
        self._unanswered = self._unsent = 0
        super().disconnect(*args, **options)  # type: ignore[no-untyped-call]

    def _may_wait_longer(self) -> bool:
        """Whether, after a timeout, bytes have left since, or may still be in a proxy."""
        if self._sock is None or self._unanswered < _LARGE:
            return False
        now, before = time.monotonic(), self._unsent
        self._unsent = unsent_bytes(self._sock)
        if self._unsent < before:
            self._moved = now
        return now - self._moved < (self.socket_timeout or 0.0) + self._unanswered / self._rate

    def _was_answered(self) -> None:
        if self._unanswered >= _LARGE:
            measured = self._unanswered / max(1e-3, time.monotonic() - self._began)
            self._rate = round(min(_USUAL_RATE, max(_LOWEST_RATE, measured / 2)))
        self._unanswered = self._unsent = 0

    def _lower_rate(self) -> None:
        if self._unanswered >= _LARGE:
            self._rate = max(_LOWEST_RATE, self._rate // _RATE_DIVISOR)
        self.disconnect()
