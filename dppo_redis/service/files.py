"""Atomic writes: a temporary file is flushed, then renamed. Also tables that a crash may have cut."""

import codecs
import csv
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from dppo_redis.errors import ConfigurationError

_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # UTF-32 begins likewise, or holds zeros
_BLOCK_BYTES = 64 * 2**10
_UNABLE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def flush_file(stream: BinaryIO) -> OSError | None:
    """Flush written data to the disk; returns the file system's error if it cannot.

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


def write_atomically(file: Path, content: bytes) -> None:
    """Replace `file`; after a crash the old or the new content is there in full.

    Raises:
        OSError: the disk refuses; the old content is untouched.
    """
    temporary = temporary_path(file)
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            flush_file(stream)
        temporary.replace(file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def temporary_path(file: Path) -> Path:
    """What `file` is called while it is written."""
    return file.with_name(f"{file.name}.writing")


def read_text(file: Path) -> str:
    """The text of a file that a person wrote, in any editor; line ends are `\\n`.

    Raises:
        ConfigurationError: it is no UTF-8.
        OSError: it cannot be read.
    """
    content = file.read_bytes()
    if content.startswith(_UTF_16) or b"\0" in content:
        raise ConfigurationError(f"{file} is UTF-16 or not text: save it as UTF-8")
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
    header, *rows = [*read_rows(file)] or [[]]
    return [dict(zip(header, row, strict=True)) for row in rows]


def read_rows(file: Path, size: int | None = None) -> Iterator[list[str]]:
    """The names of the columns and then each complete row, one at a time: a table may be large.

    Of a table's first `size` bytes, if that is given. A row is one line: one that a crash cut inside quotes
    takes no other with it.

    Raises:
        OSError: it cannot be read.
    """
    header = None
    for line in read_lines(file, size):
        values = split_row(line)
        header = header or values
        if values and len(values) == len(header):
            yield values


def read_lines(file: Path, size: int | None = None) -> Iterator[str]:
    """The lines of a file, or of its first `size` bytes; no file has none.

    Raises:
        OSError: it cannot be read.
    """
    if not file.exists():
        return
    read = 0
    with file.open("rb") as stream:
        for line in stream:
            read += len(line)
            if size is not None and read > size:
                return
            yield line.decode("utf-8", "replace")


def split_row(line: str) -> list[str]:
    """The values of a line of a CSV file; none where it is no row."""
    try:
        return next(csv.reader((line.replace("\0", ""),), strict=True), [])
    except csv.Error:
        return []


def whole_lines_backwards(file: Path) -> Iterator[tuple[int, str]]:
    """Each line that has an end, the last one first, and the place in the file after that end.

    Raises:
        OSError: it cannot be read.
    """
    with file.open("rb") as stream:
        begin, held = stream.seek(0, os.SEEK_END), b""  # of `held`, which was read and not yielded
        while begin > 0:
            size = min(begin, _BLOCK_BYTES)
            begin = stream.seek(begin - size)
            held = stream.read(size) + held
            first, *lines = held.split(b"\n")
            if not lines:
                continue
            end = begin + len(held) - len(lines.pop())
            for line in reversed(lines):
                yield end, line.decode("utf-8", "replace")
                end -= len(line) + 1
            if begin == 0:
                yield end, first.decode("utf-8", "replace")
            held = first + b"\n"
