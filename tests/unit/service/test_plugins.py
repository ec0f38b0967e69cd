"""Modules of the user's that have the name of a package of ours are refused before anything is imported."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dppo_redis.errors import ConfigurationError
from dppo_redis.service.plugins import allow_local_imports, first_line, import_module_of, import_named


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


@pytest.mark.parametrize(
    "file", ["workers.py", "learner.py", "ops.py", "dppo_redis.py", "workers/__init__.py", "ops/mine.py"]
)
@pytest.mark.parametrize("name", ["mine:Mine-v0", "workers:Mine-v0"])
def test_a_module_with_the_name_of_a_package_of_ours_is_refused_by_name(
    here: Path, file: str, name: str
) -> None:
    (here / "mine.py").write_text("raise RuntimeError('imported')\n")
    (here / file).parent.mkdir(exist_ok=True)
    (here / file).write_text("")
    with pytest.raises(ConfigurationError) as caught:
        import_module_of(name)
    assert str(here / file) in str(caught.value)
    assert f"`import {Path(file).parts[0].removesuffix('.py')}`" in str(caught.value)


def test_a_namesake_beside_the_importing_module_is_refused(here: Path) -> None:
    elsewhere = here / "elsewhere"
    (elsewhere / "mine").mkdir(parents=True)
    (elsewhere / "mine" / "__init__.py").write_text("import workers\n")
    (elsewhere / "workers.py").write_text("")
    sys.path.append(str(elsewhere))
    for call in (
        lambda: import_module_of("mine:Mine-v0"),
        lambda: import_named("mine:Net", "network.custom"),
    ):
        with pytest.raises(ConfigurationError, match="workers"):
            call()


@pytest.mark.parametrize("beside", ["ops/notes.txt", "workers.txt", "mine/workers.py"])
def test_modules_that_cannot_hide_ours_are_allowed(here: Path, beside: str) -> None:
    (here / "fine.py").write_text("")
    (here / beside).parent.mkdir(exist_ok=True)
    (here / beside).write_text("")
    import_module_of("fine:Mine-v0")


def test_an_id_without_a_module_imports_nothing(here: Path) -> None:
    (here / "workers.py").write_text("")
    import_module_of("CartPole-v1")


def test_a_copy_of_this_product_is_no_clash(here: Path) -> None:
    for name in ("dppo_redis", "learner", "ops", "workers"):
        (here / name).mkdir()
        (here / name / "__init__.py").write_text("")
    allow_local_imports()


class _SpeechlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("  the port\nis taken"), "the port"),
        (ValueError("\x1b[31mred\a"), r"\x1b[31mred\x07"),
        (ValueError("x" * 100_000), "x" * 500 + "..."),
        (ValueError("Größe"), "Größe"),
        (ValueError(), ""),
        (_SpeechlessError(), "it cannot say what"),
    ],
)
def test_the_text_of_any_error_becomes_one_short_printable_line(error: Exception, line: str) -> None:
    assert first_line(error) == line
