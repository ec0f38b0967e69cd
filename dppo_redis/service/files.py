"""Files that are whole or absent: written aside, flushed, then renamed. Tables that a crash may have cut."""

import codecs
import csv
import errno
import io
import os
from pathlib import Path
from typing import BinaryIO

from dppo_redis.errors import ConfigurationError

_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # UTF-32 begins likewise, or holds zeros
_UNABLE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def flush_file(stream: BinaryIO) -> OSError | None:
    """Have what was written reach the disk; what the file system says where it cannot do that.

    Raises:
        OSError: the disk refuses.
    """
    stream.flush()
    try:
        os.fsync(stream.fileno())
    except OSError as error:
        if error.errno not in _UNABLE:
            raise
        return error
    return None


def flush_directory(directory: Path) -> OSError | None:
    """Have the names in a directory reach the disk; why that cannot be done, as on network file systems."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        return error
    return None


def write_aside(file: Path, content: bytes) -> None:
    """Replace `file`; after a crash the old or the new content is there in full.

    Raises:
        OSError: the disk refuses; the old content is untouched.
    """
    aside = aside_of(file)
    try:
        with aside.open("wb") as stream:
            stream.write(content)
            flush_file(stream)
        aside.replace(file)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def aside_of(file: Path) -> Path:
    """What `file` is called while it is written."""
    return file.with_name(f"{file.name}.writing")


def read_text(file: Path) -> str:
    """The text of a file that a person wrote, in whatever editor; line ends are `\\n`.

    Raises:
        ConfigurationError: it is no UTF-8.
        OSError: it cannot be read.
    """
    content = file.read_bytes()
    if content.startswith(_UTF_16) or b"\0" in content:
        raise ConfigurationError(f"{file} is UTF-16 or no text at all: save it as UTF-8")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    return text.replace("\r\n", "\n")


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
