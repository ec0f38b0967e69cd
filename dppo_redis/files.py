"""Files that are whole or absent: written aside, flushed, then renamed."""

import os
from pathlib import Path


def write_aside(file: Path, content: bytes) -> None:
    """Replace `file`; after a crash the old or the new content is there in full.

    Raises:
        OSError: the disk refuses; the old content is untouched.
    """
    aside = file.with_name(f"{file.name}.writing")
    try:
        with aside.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(file)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
