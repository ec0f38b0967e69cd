"""`dppo-redis quarantine`: lists the broken rollouts that the learner refused, with reason and first
bytes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.table import Table
from rich.text import Text

from dppo_redis.command_line.run_name import one_run_name
from dppo_redis.errors import ConfigurationError, ExitStatus
from dppo_redis.service.arguments import parse_arguments
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import INTERACTIVE_PATIENCE_S, RetryLoop, connect
from dppo_redis.store.credentials import Role, find_url
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.quarantine import Quarantined, clear_quarantine, read_quarantine
from dppo_redis.store.run_store import RunStore, missing_run, only_run
from ops.screens.tables import make_console

_BYTES_LISTED = 16
_BYTES_PER_LINE = 16


@dataclass(frozen=True)
class QuarantineOptions:
    """List the broken rollouts that a run's learner refused. About 1000 of them are kept, the newest."""

    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = None
    """Name of the run; default: the only run on the server"""
    run: str | None = None
    """Name of the run, the same as RUN"""
    redis: str | None = None
    """Redis URL; default: the environment variable DPPO_REDIS_URL"""
    show: str | None = None
    """Show the entry with this id in full; the list shows the ids"""
    clear: bool = False
    """Remove all entries from the quarantine"""
    json: bool = False
    """Print the result as one JSON object"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point.

    Raises:
        ConfigurationError: the run or entry does not exist, or two options exclude each other.
    """
    options = parse_arguments(QuarantineOptions, argv, "dppo-redis quarantine")
    if options.clear and options.show is not None:
        raise ConfigurationError("--show and --clear exclude each other: pass one of them")
    client = connect(find_url(options.redis, Role.OPERATOR), "dppo-quarantine")
    retry = RetryLoop(StopRequest(), deadline_s=INTERACTIVE_PATIENCE_S)
    run = one_run_name(options.name, options.run) or retry.call("list the runs", lambda: only_run(client))
    keys = RunKeys(run)
    if not retry.call("look for the run", RunStore(client, keys).exists):
        raise retry.call("list the runs", lambda: missing_run(client, run))
    if options.clear:
        removed = retry.call("clear the quarantine", lambda: clear_quarantine(client, keys))
        print(json.dumps({"run": run, "cleared": removed}) if options.json else f"{removed} removed")
        return ExitStatus.DONE
    entries = retry.call("read the quarantine", lambda: read_quarantine(client, keys))
    if options.show is not None:
        entries = [entry for entry in entries if options.show in (entry.id, entry.entry)]
        if not entries:
            raise ConfigurationError(
                f"run {run} has no entry {options.show} in quarantine: leave out --show to list the entries"
            )
    if options.json:
        print(json.dumps({"run": run, "entries": [as_json(entry) for entry in entries]}))
    elif options.show is not None:
        _show(entries[0])
    else:
        make_console().print(_entry_table(run, entries))
    return ExitStatus.DONE


def as_json(entry: Quarantined) -> dict[str, Any]:
    """The entry as JSON values; the first bytes of the payload in hexadecimal."""
    return {
        "id": entry.id,
        "entry": entry.entry,
        "reason": entry.reason,
        "detail": _printable(entry.detail.encode()),
        "head": {name: _printable(value) for name, value in entry.fields.items()},
        "payload_hex": entry.payload.hex(),
    }


def _printable(value: bytes) -> str:
    """Text that is safe to print on a terminal, from any bytes."""
    return "".join(
        c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in value.decode(errors="replace")
    )


def _entry_table(run: str, entries: Sequence[Quarantined]) -> Table | str:
    if not entries:
        return f"{run}: the quarantine is empty"
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for column in ("id", "reason", "actor", "seq", "detail", "begins with"):
        table.add_column(column, no_wrap=column == "id")
    for entry in entries:
        plain, begins = as_json(entry), entry.payload[:_BYTES_LISTED].hex(" ")
        actor, seq = (plain["head"].get(name, "-") for name in ("actor", "seq"))
        row = (entry.id, entry.reason, actor, seq, plain["detail"], begins)
        table.add_row(*(Text(cell[:120]) for cell in row))
    return table


def _show(entry: Quarantined) -> None:
    print(f"id      {entry.id}\nentry   {entry.entry}\nreason  {entry.reason}")
    print(f"detail  {_printable(entry.detail.encode())}")
    for name, value in entry.fields.items():
        print(f"  {_printable(name.encode())}: {_printable(value)}")
    print(f"payload, its first {len(entry.payload)} bytes:")
    for start in range(0, len(entry.payload), _BYTES_PER_LINE):
        line = entry.payload[start : start + _BYTES_PER_LINE]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        print(f"  {start:04x}  {line.hex(' '):<{3 * _BYTES_PER_LINE}} {text}")
