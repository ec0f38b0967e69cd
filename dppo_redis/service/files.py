"""Files that are whole or absent: written aside, flushed, then renamed. Tables that a crash may have cut."""

import csv
import io
import os
from pathlib import Path


def write_aside(file: Path, content: bytes) -> None:
    """Replace `file`; after a crash the old or the new content is there in full.

    Raises:
        OSError: the disk refuses; the old content is untouched.
    """
    aside = aside_of(file)
    try:
        with aside.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(file)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def aside_of(file: Path) -> Path:
    """What `file` is called while it is written."""
    return file.with_name(f"{file.name}.writing")


def read_table(file: Path) -> list[dict[str, str]]:
    """The complete rows of a CSV file; what a crash or a full disk cut is left out. No file has none.

    Raises:
        OSError: it cannot be read.
    """
    if not file.exists():
        return []
    text = file.read_text(encoding="utf-8", errors="replace").replace("\0", "")
    rows = csv.DictReader(io.StringIO(text, newline=""))
    return [row for row in rows if None not in row and None not in row.values()]
