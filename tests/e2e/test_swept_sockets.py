"""A run continues although a cleaner of temporary directories removes its sockets."""

import shutil
import signal
from pathlib import Path
from typing import Any

import redis

from dppo_redis.errors import ExitStatus
from tests.conftest import wait_until
from tests.e2e.support import SLOW, Command, Run, assert_nothing_left


def _client(url: str) -> Any:
    return redis.Redis.from_url(url, decode_responses=True, encoding_errors="replace", protocol=2)


def _answers(client: Any) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


def test_removed_sockets_are_restored(tmp_path: Path) -> None:
    with Command("train", *SLOW, "--max-staleness", "1000", "--json", cwd=tmp_path) as train:
        url, name = train.how_to_join()
        socket = Path(url.removeprefix("unix://"))
        run = Run(_client(url), name)
        run.reaches(3)
        socket.unlink()
        wait_until(socket.exists, 20, "the embedded server has its socket again")
        wait_until(lambda: _answers(run.client), 10, "it answers")
        run.goes_on(40)
        assert "was removed: restarting the embedded server" in train.err
        shutil.rmtree(socket.parent)
        wait_until(socket.exists, 60, "all is put back")
        wait_until(lambda: _answers(run.client), 10, "it answers")
        run.goes_on(60)
        train.send(signal.SIGTERM)
        assert train.wait(30) == ExitStatus.TERMINATED
        # The second time the learner restarts, from a checkpoint a moment earlier.
        assert train.summary()["updates"] > 3
        assert_nothing_left(train, 5)
