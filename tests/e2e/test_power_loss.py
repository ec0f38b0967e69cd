"""The server's machine loses power during training, so that the end of its log is lost."""

from pathlib import Path

from ops.fleet.broker import find_server
from tests.conftest import RedisServer, opened
from tests.e2e.support import SLOW, Command, Run, assert_books_balance


def test_training_continues_with_higher_versions_and_the_books_balance(tmp_path: Path) -> None:
    server = RedisServer(find_server(), profile="durable")
    arguments = ("train", *SLOW, "--run", "log", "--redis", server.url, "--json")
    try:
        server.start()
        with opened(server.url) as client, Command(*arguments, cwd=tmp_path) as train:
            run = Run(client, "log")
            run.reaches(5, deadline_s=45)
            (log,) = (server.directory / "appendonlydir").glob("*.incr.aof")
            flushed = log.stat().st_size
            run.goes_on()
            version = run.weights("version")
            server.kill()
            with log.open("r+b") as file:
                file.truncate(flushed + 5)  # in the middle of a command
            server.start()
            run.reaches(run.weights("update") + 3)
            assert run.weights("version") > version
            train.stop()
            ledger = train.summary()["ledger"]
    finally:
        server.close()
    assert_books_balance(ledger)
