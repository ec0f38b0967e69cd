"""Finds the reason for a service's end in the service's log."""

import re
from pathlib import Path

_TAIL_BYTES = 16_384
_LOG_HEAD = re.compile(
    r"^\S+ \S+ \S+ [A-Z]+ "
)  # date, time, service and level: the start of a line that our logging wrote
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.+)$')


def reason_in_log(log: Path) -> str:
    """The last line of a service's log. After a crash of native code: the crash, and the line of Python that
    ran."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = stream.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    lines = [line for line in lines if line.strip()]
    dumps = [n for n, line in enumerate(lines) if line.startswith(("Fatal Python error: ", "Timeout ("))]
    ours = [n for n, line in enumerate(lines) if _LOG_HEAD.match(line)]
    if not dumps or (ours and ours[-1] > dumps[-1]):
        return _LOG_HEAD.sub("", lines[-1]).strip() if lines else ""
    dump = lines[dumps[-1] :]
    if dump[0].startswith("Timeout ("):
        return "a native call let no other thread run for too long"
    current = next((n for n, line in enumerate(dump) if line.startswith("Current thread")), 0)
    frame = next(filter(None, map(_FRAME.match, dump[current:])), None)
    where = f", in {frame[3]} ({frame[1]}, line {frame[2]})" if frame else ""
    return dump[0].removeprefix("Fatal Python error: ") + where
