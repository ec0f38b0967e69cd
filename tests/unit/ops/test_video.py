"""Videos: refusals and the timing of gifs."""

from pathlib import Path

import numpy as np
import pytest
from imageio import v3

from dppo_redis.errors import ConfigurationError
from ops.policies import video
from ops.policies.video import Video


def test_a_missing_package_is_named_by_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(video.FORMATS, ".gif", ("no_such_package",))
    with pytest.raises(ConfigurationError, match=r"extra `video`\): pip install 'imageio\[ffmpeg\]'"):
        Video(tmp_path / "film.gif", 30)


def test_pictures_of_another_form_are_refused_by_their_form(tmp_path: Path) -> None:
    film = Video(tmp_path / "film.gif", 30)
    film.add(np.zeros((8, 8, 3), np.uint8))
    for picture in (np.zeros((8, 8), np.uint8), np.zeros((8, 8, 3), np.float32), None):
        with pytest.raises(ConfigurationError, match="not bytes"):
            film.add(picture)
    film.close()
    assert film.frames == 1


@pytest.mark.parametrize("fps", [20, 30, 40, 50, 60, 125, 1000])
def test_a_gif_has_the_duration_of_its_episode(tmp_path: Path, fps: int) -> None:
    """Its delays are at least 20 ms, because players change shorter ones."""
    rng = np.random.default_rng(0)
    film = Video(tmp_path / "film.gif", fps)
    for _ in range(fps):
        film.add(rng.integers(0, 255, (8, 8, 3), np.uint8))
    film.close()
    delay = v3.immeta(tmp_path / "film.gif")["duration"]
    assert delay >= 20
    assert len(v3.imread(tmp_path / "film.gif")) == film.frames
    assert film.frames * delay == pytest.approx(1000, rel=0.13)
    assert film.fps == 1000 / delay
    assert film.fps >= 20
