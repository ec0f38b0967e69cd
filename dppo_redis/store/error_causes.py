"""Counts errors that recur, and reports them with a probable cause and a remedy.

Services retry transient errors for ever. An error that recurs for ten seconds may need a human, so the log
names its likely cause. The table is pure; nothing is sent here.
"""

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from dppo_redis.service.logs import RateLimit

_log = logging.getLogger("dppo")
_REPORTED_AFTER_S = 10.0
_NUMBERS = re.compile(r"\d+")
_FETCHING = re.compile("fetch|weights|read rollouts|read the", re.IGNORECASE)


@dataclass(frozen=True)
class Cause:
    """The probable cause of an error that recurs, and its remedy."""

    cause: str
    remedy: str


_HANGS_UP = "closed by server|reset by peer|Broken pipe|Error 104|Error 32"
_CAUSES: tuple[tuple[str, Cause], ...] = (
    (
        "speaks TLS",
        Cause("the URL says redis://, the port is one for TLS", "use rediss:// (or the server's other port)"),
    ),
    (
        "Error 2 connecting|No such file",
        Cause(
            "the server's socket file is missing: the server does not run, or a cleaner removed the file",
            "start the server again; keep its socket out of directories that are cleaned, as /tmp is",
        ),
    ),
    (
        "Error 13 connecting|Permission denied",
        Cause(
            "the server's socket belongs to another user",
            "run as that user, or let the server open it (unixsocketperm 770 and a common group)",
        ),
    ),
    (
        "max number of clients",
        Cause(
            "every client slot of the server is taken (maxclients)",
            "raise maxclients (and its limit of open files), or end other clients: CLIENT LIST names them",
        ),
    ),
    ("refused", Cause("nothing listens at this address", "start the server, or correct host and port")),
    (
        "Name or service|Temporary failure in name|getaddrinfo|nodename|Error -[235]",
        Cause("the host's name cannot be resolved", "correct the host in the URL, or the name service"),
    ),
    (
        "No route|unreachable|Error 113|Error 101",
        Cause("the host cannot be reached", "check the network, firewalls and the host itself"),
    ),
    (
        "Timeout connecting|timed out",
        Cause("no server answers at this address", "check the host, and the firewalls on the way"),
    ),
    (
        "Timeout (reading|writing)",
        Cause(
            "the server, or the network on the way to it, does not respond",
            "check its load (SLOWLOG, CPU); for a slow link raise ?socket_timeout=SECONDS in the URL",
        ),
    ),
    (
        "OOM|maxmemory",
        Cause("the server's memory is full", "raise maxmemory, or remove other data from the server"),
    ),
    (
        "MISCONF",
        Cause(
            "the server cannot save its data and takes no writes",
            "free its disk, or set stop-writes-on-bgsave-error no",
        ),
    ),
    ("[Ll]oading", Cause("the server loads its data", "wait; INFO persistence says how long")),
    (
        "does not lead|READONLY|read only|NOREPLICAS|MASTERDOWN|know no primary",
        Cause(
            "no server leads: this one is a replica, or was cut off from its replicas",
            "check replication and sentinels; name the primary, or use sentinel://",
        ),
    ),
    ("BUSY", Cause("a running script blocks the server", "SCRIPT KILL, or FUNCTION KILL")),
    (
        "WRONGTYPE|damaged",
        Cause("another program overwrote a key of the run", "a running learner repairs it; start one"),
    ),
    (
        "SSL|TLS",
        Cause("the TLS connection fails", "check the server's log, the certificates and the URL"),
    ),
)
_LIMITED = Cause(
    "the server closes the connection when a large value is fetched: its client-output-buffer-limit is "
    "smaller than the value",
    "CONFIG SET client-output-buffer-limit 'normal 0 0 0' (the default)",
)
_CUT_OFF = Cause(
    "the server, or a proxy on the way, closes the connection: limits (maxclients, timeout, "
    "client-output-buffer-limit), or a port of another protocol",
    "check the server's log",
)


def explain(purpose: str, error: str) -> Cause | None:
    """The probable cause of an error that recurs while a process tries to `purpose`; None if unknown."""
    for pattern, cause in _CAUSES:
        if re.search(pattern, error):
            return cause
    if re.search(_HANGS_UP, error):
        return _LIMITED if _FETCHING.search(purpose) else _CUT_OFF
    return None


def described(purpose: str, error: str) -> str:
    """The text of an error, with its cause and remedy if they are known."""
    found = explain(purpose, error)
    return error if found is None else f"{error.rstrip('.')}. Probably {found.cause}. Remedy: {found.remedy}"


class Recurrence:
    """Counts how often one error recurred, and since when. One thread owns it."""

    def __init__(self, report: Callable[[str], None] = lambda _text: None) -> None:
        """Count errors; `report` is called with a text for a status when one has recurred for ten seconds."""
        self.report = report
        self.text = ""  # the last text for a status; empty once the error is over
        self._kind: tuple[str, str] | None = None
        self._since = 0.0
        self._count = 0
        self._rate_limit = RateLimit()

    def count_error(self, purpose: str, error: Exception) -> str:
        """Count an error of an attempt to `purpose`; returns the text for the log."""
        now, kind = time.monotonic(), (purpose, _NUMBERS.sub("", str(error)))
        if kind != self._kind:
            self._kind, self._since, self._count = kind, now, 0
        self._count += 1
        lasts_s = now - self._since
        if lasts_s < _REPORTED_AFTER_S:
            return f"waiting to {purpose}: {error}"
        self.text = (
            f"waiting to {purpose} for {lasts_s:.0f} s, {self._count} times the same: "
            f"{described(purpose, str(error))}"
        )
        self.report(self.text)
        return self.text

    def log(self, purpose: str, error: Exception) -> None:
        """Count an error, and log it at most once per interval of the rate limit."""
        line = self.count_error(purpose, error)
        if self._rate_limit.due():
            _log.warning("%s", line)

    def over(self) -> None:
        """Note that the attempt succeeded."""
        if self._kind is not None:
            self._kind, self.text = None, ""
