"""Files that people write: marks and encodings of editors are read or refused by name."""

import codecs
from pathlib import Path

import pytest

from dppo_redis.artefacts.config_file import load_toml
from dppo_redis.errors import ConfigurationError
from dppo_redis.service.files import read_text

TOML = 'env_id = "CartPole-v1"\nseed = 7\n'


@pytest.mark.parametrize(
    "content",
    [
        TOML.encode(),
        codecs.BOM_UTF8 + TOML.encode(),
        TOML.replace("\n", "\r\n").encode(),
        codecs.BOM_UTF8 + TOML.replace("\n", "\r\n").encode() + b"  ",
    ],
    ids=["plain", "byte order mark", "CRLF", "all of it"],
)
def test_a_settings_file_of_any_editor_is_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mine.toml").write_bytes(content)
    config = load_toml(tmp_path / "mine.toml")
    assert (config.env_id, config.seed) == ("CartPole-v1", 7)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
def test_other_encodings_are_refused_by_name(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(TOML.encode(encoding))
    with pytest.raises(ConfigurationError, match=r"mine\.toml is UTF-16 or not text: save it as UTF-8"):
        load_toml(file)


def test_latin_text_is_refused_with_the_place(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes('run = "ü"'.encode("latin-1"))
    with pytest.raises(ConfigurationError, match=r"mine\.toml is not UTF-8 text: .* at byte 7$"):
        read_text(tmp_path / "mine.toml")
