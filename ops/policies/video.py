"""Writes frames to a video file: mp4 (H.264) or gif. The only user of imageio, from the extra `video`."""

import importlib.util
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np

from dppo_redis.errors import ConfigurationError
from dppo_redis.spaces.observations import Array

FORMATS = {".mp4": ("imageio", "imageio_ffmpeg"), ".gif": ("imageio",)}
_GIF_TICK_MS = 10  # delays in a gif are multiples of it
_GIF_SHORTEST_MS = 20  # players show shorter delays, above all 0, as 100 ms
_EVEN = 2  # H.264 wants even widths and heights; imageio's own default would scale to multiples of 16


class Video:
    """A video file that grows by one frame at a time, and is whole once closed.

    A gif takes every k-th picture where it cannot show all of them in time.

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
        self._given = 0
        self.frames = 0

    def add(self, frame: Any) -> None:
        """Append a picture [H, W, 3] of bytes.

        Raises:
            ConfigurationError: it is something else, or the disk refuses it.
        """
        picture = _check_frame(frame)
        self._given += 1
        if (self._given - 1) % self._every:
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
    """The k for which a gif shows every k-th picture, and the delay after each in milliseconds.

    The smallest k whose delay is long enough and, rounded to the ticks of a gif, within an eighth.
    No library does it: Pillow, which writes gifs for imageio, cuts each delay down to whole ticks.
    """
    for every in itertools.count(math.ceil(_GIF_SHORTEST_MS * fps / 1000)):
        wanted_ms = 1000 * every / fps
        delay_ms = _GIF_TICK_MS * round(wanted_ms / _GIF_TICK_MS)
        if math.isclose(delay_ms, wanted_ms, rel_tol=0.12):  # 30 ms for 33 among them
            return every, delay_ms
    raise AssertionError("from 50 ms on every delay is near enough")


def check_video(file: Path) -> None:
    """Refuse a file name that cannot become a video.

    Raises:
        ConfigurationError: names the reason.
    """
    needed = FORMATS.get(file.suffix)
    if needed is None:
        raise ConfigurationError(f"--video {file}: its name has to end in {' or '.join(FORMATS)}")
    if any(importlib.util.find_spec(name) is None for name in needed):
        raise ConfigurationError(
            "--video needs a package that is missing, the extra `video`: pip install 'imageio[ffmpeg]'"
        )
    if not file.absolute().parent.is_dir():
        raise ConfigurationError(f"--video {file}: there is no directory {file.absolute().parent}")


def _check_frame(frame: Any) -> Array:
    picture = np.asarray(frame)
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[-1] != 3:
        raise ConfigurationError(
            f"--video: the environment renders {picture.dtype} {picture.shape}, not bytes (height, width, 3)"
        )
    return picture


def _unwritable(file: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"--video {file} cannot be written: {error.strerror or error}")
