"""Errors that come back in the same way: their causes, and when they are told."""

import pytest

from dppo_redis.store.error_causes import Recurrence, described, explain

HANGS_UP = "Connection closed by server."

KNOWN = [
    ("ping", "127.0.0.1:6380 speaks TLS: use rediss://", "rediss://"),
    ("ping", "Error 2 connecting to /tmp/dppo-x/redis.sock. No such file or directory.", "cleaned"),
    ("ping", "Error 13 connecting to /tmp/r.sock. Permission denied.", "another user"),
    ("ping", "max number of clients reached", "maxclients"),
    ("ping", "Error 111 connecting to here:6379. Connection refused.", "nothing listens"),
    ("ping", "Error -2 connecting to there:6379. Name or service not known.", "name"),
    ("ping", "Error 113 connecting to 10.0.0.1:6379. No route to host.", "cannot be reached"),
    ("ping", "Timeout connecting to server", "firewalls"),
    ("push a rollout", "Timeout reading from socket", "socket_timeout"),
    ("push a rollout", "OOM command not allowed when used memory > 'maxmemory'.", "memory is full"),
    ("publish weights", "MISCONF Redis is configured to save RDB snapshots", "cannot save"),
    ("look", "Redis is loading the dataset in memory", "loads"),
    ("look", "this server does not lead now: READONLY", "no server leads"),
    ("look", "the sentinels know no primary of 'mymaster' now", "no server leads"),
    ("look", "BUSY Redis is busy running a script.", "script"),
    ("fetch weights", HANGS_UP, "client-output-buffer-limit"),
    ("read rollouts", "Error while reading from socket : (104, 'Connection reset by peer')", "normal 0 0 0"),
    ("push a rollout", HANGS_UP, "server's log"),
]


@pytest.mark.parametrize(("what", "error", "hint"), KNOWN)
def test_an_error_has_a_cause_and_a_remedy(what: str, error: str, hint: str) -> None:
    found = explain(what, error)
    assert found is not None
    assert hint in f"{found.cause} {found.remedy}"
    assert found.cause in described(what, error)
    assert found.remedy in described(what, error)


def test_an_unknown_error_is_reported_unchanged() -> None:
    assert explain("look", "something new") is None
    assert described("look", "something new") == "something new"


class TestRecurrence:
    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        now = [100.0]
        monkeypatch.setattr("dppo_redis.store.error_causes.time.monotonic", lambda: now[0])
        return now

    def test_after_ten_seconds_the_same_error_gets_cause_remedy_and_count(self, clock: list[float]) -> None:
        told: list[str] = []
        recurrence = Recurrence(told.append)
        for second in range(11):
            clock[0] = 100.0 + second
            line = recurrence.count_error(
                "look", RuntimeError(f"Error {100 + second % 2}: max number of clients reached")
            )
            assert (second < 10) == (told == [])
        assert "waiting to look for 10 s, 11 times the same" in line
        assert "maxclients" in line
        assert told == [line] == [recurrence.text]

    def test_another_error_starts_a_new_count(self, clock: list[float]) -> None:
        recurrence = Recurrence()
        recurrence.count_error("look", RuntimeError("one"))
        clock[0] += 9
        recurrence.count_error("look", RuntimeError("another"))
        clock[0] += 9
        recurrence.count_error("look", RuntimeError("another"))
        assert recurrence.text == ""

    def test_an_error_that_is_over_is_no_longer_reported(self, clock: list[float]) -> None:
        recurrence = Recurrence()
        recurrence.count_error("look", RuntimeError("one"))
        clock[0] += 11
        recurrence.count_error("look", RuntimeError("one"))
        assert recurrence.text != ""
        recurrence.over()
        assert recurrence.text == ""
