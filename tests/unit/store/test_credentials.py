"""Where a process finds its Redis URL, its user and its password."""

from pathlib import Path

import pytest

from dppo_redis.errors import ConfigurationError
from dppo_redis.store.address import read_address
from dppo_redis.store.credentials import (
    CREDENTIALS_VARIABLE,
    PASSWORD_FILE_VARIABLE,
    URL_FILE_VARIABLE,
    URL_VARIABLE,
    VARIABLES,
    Role,
    find_url,
    shown_credentials,
)

SECRET = "hunter2"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def password_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)
    monkeypatch.setenv(PASSWORD_FILE_VARIABLE, str(file))
    return file


class TestFindUrl:
    def test_the_flag_wins_over_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(URL_VARIABLE, "redis://elsewhere")
        assert find_url("redis://here") == "redis://here"
        assert find_url(None) == "redis://elsewhere"

    def test_without_any_the_variable_is_named(self) -> None:
        with pytest.raises(ConfigurationError, match=URL_VARIABLE):
            find_url(None)

    @pytest.mark.parametrize("url", ["here:6379", "http://here", "redis://here:port", "redis://[here"])
    def test_a_malformed_url_is_refused(self, url: str) -> None:
        with pytest.raises(ConfigurationError, match="bad Redis URL"):
            find_url(url)

    @pytest.mark.parametrize(
        "url",
        [
            f"redis://:{SECRET}/x@here:6379",
            f"redis://:{SECRET}#x@here:6379",
            f"redis://:{SECRET}?x@here:6379",
            f"redis://:{SECRET}[x@here:6379",
            f"redis://user:{SECRET}@here:port",
            f"http://user:{SECRET}@here",
        ],
        ids=["slash", "hash", "question mark", "bracket", "bad port", "bad scheme"],
    )
    def test_the_password_in_a_malformed_url_is_not_shown(self, url: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            find_url(url)
        assert SECRET not in str(caught.value)

    def test_an_option_that_no_connection_has_is_refused_at_once(self) -> None:
        with pytest.raises(ConfigurationError, match="colour"):
            find_url("redis://here?colour=blue")


class TestPasswordFile:
    @pytest.mark.usefixtures("password_file")
    @pytest.mark.parametrize(
        ("url", "expected"),
        [
            ("redis://here:6379/2", f"redis://:{SECRET}@here:6379/2"),
            ("rediss://actor@here", f"rediss://actor:{SECRET}@here"),
            ("redis://:old@here", f"redis://:{SECRET}@here"),
            ("unix:///run/redis.sock", f"unix:///run/redis.sock?password={SECRET}"),
            ("unix:///run/redis.sock?db=1", f"unix:///run/redis.sock?db=1&password={SECRET}"),
        ],
    )
    def test_its_content_becomes_the_password(self, url: str, expected: str) -> None:
        assert find_url(url) == expected

    @pytest.mark.usefixtures("password_file")
    def test_it_wins_over_the_password_of_a_unix_url_as_it_does_elsewhere(self) -> None:
        assert read_address(find_url("unix:///run/redis.sock?password=old")).options["password"] == SECRET

    @pytest.mark.parametrize("password", ["p/w#1@%&+?=:", "pass word", "ünïcode", "trailing space "])
    @pytest.mark.parametrize("url", ["redis://user@here:1", "unix:///run/redis.sock?username=user"])
    def test_a_password_of_any_characters_reaches_the_connection(
        self, password_file: Path, password: str, url: str
    ) -> None:
        password_file.write_text(password + "\n", encoding="utf-8")
        options = read_address(find_url(url)).options
        assert (options["username"], options["password"]) == ("user", password)

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o610])
    def test_a_file_that_others_may_read_is_refused_with_the_remedy(
        self, password_file: Path, mode: int
    ) -> None:
        password_file.chmod(mode)
        with pytest.raises(ConfigurationError, match=f"chmod 600 {password_file}"):
            find_url("redis://here")

    @pytest.mark.parametrize("mode", [0o600, 0o400])
    def test_a_file_of_its_owner_alone_is_read(self, password_file: Path, mode: int) -> None:
        password_file.chmod(mode)
        assert SECRET in find_url("redis://here")

    def test_a_missing_file_is_named(self, password_file: Path) -> None:
        password_file.unlink()
        with pytest.raises(ConfigurationError, match=str(password_file)):
            find_url("redis://here")

    def test_a_directory_in_its_place_is_named(self, password_file: Path) -> None:
        password_file.unlink()
        password_file.mkdir(mode=0o700)
        with pytest.raises(ConfigurationError, match=str(password_file)):
            find_url("redis://here")

    def test_a_file_that_is_no_text_is_named(self, password_file: Path) -> None:
        password_file.write_bytes(b"\xff\xfe\x00")
        with pytest.raises(ConfigurationError, match=str(password_file)):
            find_url("redis://here")


def test_a_line_that_is_shown_names_the_password_file(password_file: Path) -> None:
    ours, for_redis_cli = shown_credentials("redis://here")
    assert (ours, for_redis_cli) == (f"{PASSWORD_FILE_VARIABLE}={password_file} ", "REDISCLI_AUTH=... ")


class TestUrlFile:
    def test_its_content_is_the_url(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = private(tmp_path / "url", f"redis://:{SECRET}@here\n")
        monkeypatch.setenv(URL_FILE_VARIABLE, str(file))
        assert find_url(None) == f"redis://:{SECRET}@here"
        assert find_url("redis://there") == "redis://there"

    def test_a_secret_file_that_others_may_read_is_refused_without_quoting_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = private(tmp_path / "url", f"redis://:{SECRET}@here\n")
        file.chmod(0o644)
        monkeypatch.setenv(URL_FILE_VARIABLE, str(file))
        with pytest.raises(ConfigurationError, match="chmod 600") as caught:
            find_url(None)
        assert SECRET not in str(caught.value)


def private(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o600)
    return file


class TestRoles:
    @pytest.fixture(autouse=True)
    def directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        for role in (Role.ACTOR, Role.LEARNER):
            private(tmp_path / role, f"dppo-{role}:{SECRET}-{role}:x\n")
        monkeypatch.setenv(CREDENTIALS_VARIABLE, str(tmp_path))
        return tmp_path

    @pytest.mark.parametrize("role", [Role.ACTOR, Role.LEARNER])
    def test_each_role_takes_its_own_user_and_password(self, role: Role) -> None:
        options = read_address(find_url("redis://old:gone@here", role)).options
        assert (options["username"], options["password"]) == (f"dppo-{role}", f"{SECRET}-{role}:x")

    def test_a_role_without_a_file_is_named(self, directory: Path) -> None:
        with pytest.raises(ConfigurationError, match=str(directory / "evaluator")):
            find_url("redis://here", Role.EVALUATOR)

    def test_a_file_without_a_user_is_refused_without_quoting_it(self, directory: Path) -> None:
        private(directory / "evaluator", SECRET)
        with pytest.raises(ConfigurationError, match="USER:PASSWORD") as caught:
            find_url("redis://here", Role.EVALUATOR)
        assert SECRET not in str(caught.value)

    def test_the_instructions_for_another_actor_name_the_credentials_directory_without_secrets(
        self, directory: Path
    ) -> None:
        assert shown_credentials("redis://here") == (
            f"{CREDENTIALS_VARIABLE}={directory} ",
            "REDISCLI_AUTH=... ",
        )


class TestWhatEditorsAndShellsAdd:
    @pytest.mark.parametrize("content", [f"\ufeff{SECRET}\n", f"{SECRET}\r\n", f"\ufeff{SECRET}\r\n\r\n"])
    def test_a_mark_and_line_ends_are_not_part_of_a_password(self, password_file: Path, content: str) -> None:
        password_file.write_bytes(content.encode())
        assert read_address(find_url("redis://here")) == read_address(f"redis://:{SECRET}@here")

    @pytest.mark.parametrize(
        ("content", "mistake"),
        [
            (f"{SECRET}\r\nsecond\r\n", "more than one line"),
            ("\n", "is empty"),
            ("", "is empty"),
        ],
    )
    def test_a_damaged_secret_is_refused_without_quoting_it(
        self, password_file: Path, content: str, mistake: str
    ) -> None:
        password_file.write_bytes(content.encode())
        with pytest.raises(ConfigurationError, match=mistake) as caught:
            find_url("redis://here")
        assert SECRET not in str(caught.value)
        assert str(password_file) in str(caught.value)

    @pytest.mark.parametrize("password", [f"{SECRET} ", f"\t{SECRET}"])
    def test_a_blank_at_an_end_is_part_of_a_password_and_named(
        self, password_file: Path, password: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        password_file.write_text(f"{password}\n")
        assert read_address(find_url("redis://here")).options["password"] == password
        assert f"the password file {password_file} begins or ends with a blank" in caplog.text
        assert SECRET not in caplog.text

    def test_a_password_in_utf_16_is_refused_by_name(self, password_file: Path) -> None:
        password_file.write_bytes(SECRET.encode("utf-16"))
        with pytest.raises(ConfigurationError, match="UTF-16"):
            find_url("redis://here")

    @pytest.mark.parametrize(
        "content", ["\ufeffredis://here\r\n", "redis://here \n", " redis://here", "redis://here\n\n"]
    )
    def test_the_url_in_a_file_is_what_is_left_without_blanks(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
    ) -> None:
        file = tmp_path / "url"
        file.write_bytes(content.encode())
        file.chmod(0o600)
        monkeypatch.setenv(URL_FILE_VARIABLE, str(file))
        assert find_url(None) == "redis://here"

    def test_blanks_around_the_url_in_the_environment_are_left_out(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(URL_VARIABLE, "redis://here\r\n")
        assert find_url(None) == "redis://here"
