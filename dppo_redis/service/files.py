"""Writes files atomically (a temporary file is flushed, then renamed) and reads tables that a crash cut."""

import codecs
import csv
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from dppo_redis.errors import ConfigurationError

_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # UTF-32 begins with the same bytes, or holds zeros
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
    """Flush the names in a directory to the disk; returns the error if a network file system cannot."""
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
    """Replace `file`; after a crash it holds the whole old or the whole new content.

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
    """The name that `file` has while it is written."""
    return file.with_name(f"{file.name}.writing")


def read_text(file: Path) -> str:
    """The text of a file that a person wrote with any editor; line ends become `\\n`.

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
    """The complete rows of a CSV file, without a row that a crash or a full disk cut; [] without a file.

    Raises:
        OSError: it cannot be read.
    """
    header, *rows = [*read_rows(file)] or [[]]
    return [dict(zip(header, row, strict=True)) for row in rows]


def read_rows(file: Path, size: int | None = None) -> Iterator[list[str]]:
    """Yield the names of the columns, then each complete row. A table may be large.

    If `size` is given, only the first `size` bytes are read. A row is one line: a row that a crash cut inside
    quotes does not swallow the rows after it.

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
    """The lines of a file, or of its first `size` bytes; none if there is no file.

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
    """The values of a line of a CSV file; an empty list if the line is no row."""
    try:
        return next(csv.reader((line.replace("\0", ""),), strict=True), [])
    except csv.Error:
        return []


def whole_lines_backwards(file: Path) -> Iterator[tuple[int, str]]:
    """Each complete line, the last one first, with the offset in the file after its end.

    Raises:
        OSError: it cannot be read.
    """
    with file.open("rb") as stream:
        # `held` was read and not yielded; `begin` is its offset in the file.
        begin, held = stream.seek(0, os.SEEK_END), b""
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
