"""A Redis that requires a password: the ways to pass it, and that it stays secret."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dppo_redis.errors import ExitStatus
from tests.e2e.support import SLOW, Command, Run, Server, assert_nothing_left, tree

PASSWORD = "s3cret p@ss/w%rd"
_QUOTED = "s3cret%20p%40ss%2Fw%25rd"
_BUDGET = ("--actors", "1", "--json")


@dataclass(frozen=True)
class Guarded:
    """A server with a password."""

    server: Server
    port_url: str  # without the password

    def run(self, name: str) -> Run:
        return self.server.run(name)

    def url(self, password: str = _QUOTED) -> str:
        return self.port_url.replace("//", f"//:{password}@")


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with Server() as server:
        yield Guarded(server, server.start().protect(PASSWORD))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("guarded")
    file = place.parent / "password.txt"  # outside of the directory that is searched for the password
    file.write_text(PASSWORD + "\n")
    file.chmod(0o600)
    return place


@pytest.fixture(scope="module")
def password_file(place: Path) -> dict[str, str]:
    return {"DPPO_REDIS_PASSWORD_FILE": str(place.parent / "password.txt")}


@pytest.fixture(scope="module")
def on_the_command_line(guarded: Guarded, place: Path) -> Iterator[Command]:
    with Command("train", *SLOW, *_BUDGET, "--run", "plain", "--redis", guarded.url(), cwd=place) as command:
        yield command


@pytest.fixture(scope="module")
def in_a_file(guarded: Guarded, place: Path, password_file: dict[str, str]) -> Iterator[Command]:
    environment = {"DPPO_REDIS_URL": guarded.server.url, **password_file}
    with Command("train", *SLOW, *_BUDGET, "--run", "filed", cwd=place, environment=environment) as command:
        yield command


@pytest.fixture(autouse=True)
def _both_at_once(on_the_command_line: Command, in_a_file: Command) -> None:
    """The second fleet starts while the first does."""


def _assert_secret(command: Command, place: Path) -> None:
    for secret in (PASSWORD, _QUOTED):
        assert secret not in command.out + command.err
        assert [words for words in command.services() if secret in " ".join(words)] == []
        assert [name for name, content in tree(place).items() if secret.encode() in content] == []


def test_a_password_on_the_command_line_is_accepted_with_a_warning_and_stays_secret(
    on_the_command_line: Command, guarded: Guarded, place: Path
) -> None:
    guarded.run("plain").reaches(3, deadline_s=45)
    on_the_command_line.wait_for_output("DPPO_REDIS_URL_FILE or DPPO_REDIS_PASSWORD_FILE")
    assert on_the_command_line.how_to_join() == (guarded.port_url, "plain")
    _assert_secret(on_the_command_line, place)
    assert on_the_command_line.stop() == ExitStatus.TERMINATED
    _assert_secret(on_the_command_line, place)
    assert_nothing_left(on_the_command_line)


def test_a_password_in_a_file_is_found_by_every_process(
    in_a_file: Command, guarded: Guarded, place: Path
) -> None:
    guarded.run("filed").reaches(3, deadline_s=45)
    assert "password on the command line" not in in_a_file.err
    assert in_a_file.stop() == ExitStatus.TERMINATED
    _assert_secret(in_a_file, place)
    assert_nothing_left(in_a_file)


def test_a_password_in_the_environments_url_is_found(
    on_the_command_line: Command, guarded: Guarded, place: Path
) -> None:
    guarded.run("plain").reaches(1, deadline_s=45)
    assert on_the_command_line is not None
    environment = {"DPPO_REDIS_URL": guarded.url()}
    with Command("status", "--run", "plain", "--json", cwd=place, environment=environment) as status:
        assert status.wait(15) == ExitStatus.DONE
        assert status.err == ""
        assert status.summary()["run"] == "plain"


def test_a_password_file_that_others_may_read_is_refused(
    guarded: Guarded, place: Path, tmp_path: Path
) -> None:
    file = tmp_path / "open.txt"
    file.write_text(PASSWORD)
    file.chmod(0o644)
    environment = {"DPPO_REDIS_URL": guarded.port_url, "DPPO_REDIS_PASSWORD_FILE": str(file)}
    with Command("status", cwd=place, environment=environment) as status:
        assert status.wait(15) == ExitStatus.CONFIGURATION
        assert status.error_lines == [f"dppo-redis: {file} is readable by others: chmod 600 {file}"]


@pytest.mark.parametrize("command_line", ["train CartPole-v1 --run wrong", "actor --run wrong", "status"])
def test_a_wrong_password_ends_a_command_with_78_within_ten_seconds(
    guarded: Guarded, place: Path, command_line: str
) -> None:
    environment = {"DPPO_REDIS_URL": guarded.url("guessed")}
    with Command(*command_line.split(), cwd=place, environment=environment) as command:
        assert command.wait(10) == ExitStatus.CONFIGURATION
        assert len(command.error_lines) == 1
        assert "password" in command.error_lines[0]
        assert "guessed" not in command.out + command.err
        assert_nothing_left(command)
    assert not (place / "runs" / "wrong").exists()


def test_a_missing_password_is_not_reported_as_an_outage(guarded: Guarded, place: Path) -> None:
    with Command("actor", "--run", "wrong", "--redis", guarded.port_url, cwd=place) as actor:
        assert actor.wait(10) == ExitStatus.CONFIGURATION
        assert "Redis refuses" in actor.error_lines[-1]
