"""Writes frames to a video file: mp4 (H.264) or gif. Only this module uses imageio (extra `video`)."""

import importlib.util
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np

from dppo_redis.errors import ConfigurationError
from dppo_redis.spaces.observations import Array

FORMATS = {".mp4": ("imageio", "imageio_ffmpeg"), ".gif": ("imageio",)}
_GIF_TICK_MS = 10  # delays in a gif are multiples of this
_GIF_SHORTEST_MS = 20  # players replace shorter delays by 100 ms
_EVEN = 2  # H.264 needs even widths and heights; imageio's default scales to multiples of 16


class Video:
    """A video file to which frames are added one at a time. The file is complete after `close`.

    A gif contains every k-th picture if its shortest delay is too long for all of them.

    Raises:
        ConfigurationError: another kind of file, a missing package, or a directory that cannot be written.
    """

    def __init__(self, file: Path, fps: float) -> None:
        check_video(file)
        from imageio import v2

        arguments: dict[str, Any] = {"fps": fps, "macro_block_size": _EVEN}
        self.fps = fps  # of the frames that are kept
        self._every = 1
        if file.suffix == ".gif":
            self._every, delay_ms = _gif_timing(fps)
            self.fps = 1000.0 / delay_ms
            arguments = {"duration": delay_ms, "loop": 0}
        try:
            self._writer = v2.get_writer(file, **arguments)
        except OSError as error:
            raise _unwritable(file, error) from error
        self._file = file
        self._added = 0
        self.frames = 0

    def add(self, frame: Any) -> None:
        """Append a picture [H, W, 3] of bytes.

        Raises:
            ConfigurationError: the picture has another form, or the file cannot be written.
        """
        picture = _check_frame(frame)
        self._added += 1
        if (self._added - 1) % self._every:
            return
        try:
            self._writer.append_data(picture)
        except OSError as error:
            raise _unwritable(self._file, error) from error
        self.frames += 1

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()


def _gif_timing(fps: float) -> tuple[int, int]:
    """Which k-th pictures a gif contains, and the delay after each in milliseconds.

    k is the smallest for which the delay is long enough and changes by at most 12 % when it is rounded to the
    ticks of a gif. Pillow, which writes gifs for imageio, would truncate each delay to whole ticks.
    """
    for every in itertools.count(math.ceil(_GIF_SHORTEST_MS * fps / 1000)):
        wanted_ms = 1000 * every / fps
        delay_ms = _GIF_TICK_MS * round(wanted_ms / _GIF_TICK_MS)
        if math.isclose(delay_ms, wanted_ms, rel_tol=0.12):  # allows 30 ms instead of 33
            return every, delay_ms
    raise AssertionError("from 50 ms on every delay is near enough")


def check_video(file: Path) -> None:
    """Refuse a file name that cannot become a video.

    Raises:
        ConfigurationError: names the reason.
    """
    packages = FORMATS.get(file.suffix)
    if packages is None:
        raise ConfigurationError(f"--video {file}: the name must end in {' or '.join(FORMATS)}")
    if any(importlib.util.find_spec(name) is None for name in packages):
        raise ConfigurationError(
            "--video needs a missing package (extra `video`): pip install 'imageio[ffmpeg]'"
        )
    if not file.absolute().parent.is_dir():
        raise ConfigurationError(f"--video {file}: the directory {file.absolute().parent} does not exist")


def _check_frame(frame: Any) -> Array:
    picture = np.asarray(frame)
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[-1] != 3:
        raise ConfigurationError(
            f"--video: the environment renders {picture.dtype} {picture.shape}, not bytes (height, width, 3)"
        )
    return picture


def _unwritable(file: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"--video {file} cannot be written: {error.strerror or error}")
