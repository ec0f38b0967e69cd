"""Large publications are fetched once for all actors of a host; a file that is not right is never used."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dppo_redis.errors import StoppedError, WireError
from dppo_redis.protocol.weights import Weights
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.sharing import shared_weights
from dppo_redis.store.sharing.host_directory import HostDirectory, is_private, parents, take
from dppo_redis.store.sharing.shared_weights import SharedWeights
from dppo_redis.store.weight_store import WeightStore
from learner.leadership.leadership import Leadership
from tests.conftest import wait_until
from tests.integration.learner_side import lead, publish

RUN = "redis://somewhere run"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A private directory in which runs have theirs."""
    path = tmp_path / "dppo"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def leadership(client: Client, keys: RunKeys, stop: StopRequest) -> Leadership:
    """A learner that has published once."""
    return lead(client, keys, stop)


Reader = Callable[..., SharedWeights]


@pytest.fixture
def reader(client: Client, keys: RunKeys, stop: StopRequest, place: Path) -> Iterator[Reader]:
    """Makes readers, as many processes of this host would have one each."""
    made: list[SharedWeights] = []

    def make(least_bytes: int = 1, places: tuple[Path, ...] = (place,)) -> SharedWeights:
        made.append(
            SharedWeights(WeightStore(client, keys), RUN, stop, places=iter(places), least_bytes=least_bytes)
        )
        return made[-1]

    yield make
    for one in made:
        one.close()


def fetched(weights: SharedWeights) -> Weights:
    found = weights.fetch()
    assert found is not None
    return found


def blobs(place: Path) -> list[Path]:
    return [path for path in place.glob("*/*") if len(path.name) == 64]


def spoil_redis(client: Client, keys: RunKeys) -> None:
    """From now on a fetch from Redis fails."""
    client.hset(keys.weights, "blob", "spoiled")


@pytest.mark.usefixtures("leadership")
def test_a_second_reader_takes_the_file_that_the_first_one_left(
    client: Client, keys: RunKeys, reader: Reader
) -> None:
    first = fetched(reader())
    spoil_redis(client, keys)
    second = fetched(reader())
    assert first.id == second.id
    assert all(np.array_equal(array, second.arrays[name]) for name, array in first.arrays.items())
    with pytest.raises(WireError, match="does not match"):
        WeightStore(client, keys).fetch()


@pytest.mark.usefixtures("leadership")
@pytest.mark.parametrize("content", [b"", b"something else"])
def test_a_file_without_the_published_digest_is_not_used_and_is_replaced(
    client: Client, keys: RunKeys, reader: Reader, place: Path, content: bytes
) -> None:
    right = fetched(reader())
    (file,) = blobs(place)
    file.write_bytes(content)
    assert fetched(reader()).arrays.keys() == right.arrays.keys()
    spoil_redis(client, keys)
    assert fetched(reader()).id == right.id


def test_a_new_publication_replaces_the_file(leadership: Leadership, reader: Reader, place: Path) -> None:
    one, other = reader(), reader()
    fetched(one)
    old = blobs(place)
    publish(leadership, update=1)
    assert [fetched(weights).version for weights in (one, other)] == [2, 2]
    assert len(blobs(place)) == 1
    assert blobs(place) != old


def test_what_a_killed_process_did_not_finish_is_removed_with_the_next_file(
    leadership: Leadership, reader: Reader, place: Path
) -> None:
    weights = reader()
    fetched(weights)
    (directory,) = place.iterdir()
    (directory / "part-1").write_bytes(b"the first half")
    publish(leadership, update=1)
    fetched(weights)
    assert list(directory.glob("part-*")) == []


@pytest.mark.usefixtures("leadership")
def test_files_are_private_and_the_last_reader_removes_them(reader: Reader, place: Path) -> None:
    one, other = reader(), reader()
    fetched(one)
    fetched(other)
    (directory,) = place.iterdir()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    one.close()
    assert directory.exists()
    other.close()
    assert not directory.exists()


@pytest.mark.usefixtures("leadership")
def test_small_publications_touch_no_file(reader: Reader, place: Path) -> None:
    assert fetched(reader(least_bytes=2**20)).version == 1
    assert list(place.iterdir()) == []


@pytest.mark.usefixtures("leadership")
def test_without_a_usable_directory_each_reader_fetches_for_itself(reader: Reader, tmp_path: Path) -> None:
    is_file = tmp_path / "file"
    is_file.touch()
    assert fetched(reader(places=())).version == 1
    assert fetched(reader(places=(is_file,))).version == 1


HOLD = """
import sys
from pathlib import Path
from dppo_redis.store.sharing.host_directory import HostDirectory, take
directory = HostDirectory.join(Path(sys.argv[1]), sys.argv[2])
assert take(directory.open_lock("fetching"))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def fetching(place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that is a member and fetches."""
    command = [sys.executable, "-c", HOLD, str(place), RUN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


def in_thread(weights: SharedWeights) -> tuple[threading.Thread, list[Weights | StoppedError]]:
    found: list[Weights | StoppedError] = []

    def fetch() -> None:
        try:
            found.append(fetched(weights))
        except StoppedError as error:
            found.append(error)

    thread = threading.Thread(target=fetch)
    thread.start()
    return thread, found


def waits(place: Path) -> bool:
    """Whether this process has the lock's file open, for which it waits."""
    (directory,) = place.iterdir()
    opened = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
    return str(directory / "fetching") in opened


@pytest.mark.usefixtures("leadership")
def test_a_reader_that_waits_goes_on_when_the_fetching_process_is_killed(
    reader: Reader, place: Path, fetching: subprocess.Popen[bytes]
) -> None:
    thread, found = in_thread(reader())
    wait_until(lambda: waits(place), 5, "the reader waits")
    assert found == []
    fetching.send_signal(signal.SIGKILL)
    thread.join(10)
    assert [weights.version for weights in found if isinstance(weights, Weights)] == [1]
    assert len(blobs(place)) == 1


@pytest.mark.usefixtures("leadership")
def test_a_reader_does_not_wait_for_ever_for_a_frozen_process(
    reader: Reader,
    place: Path,
    fetching: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetching.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(shared_weights, "_LEAST_PATIENCE_S", 0.05)
    assert fetched(reader()).version == 1
    assert blobs(place) == []


@pytest.mark.usefixtures("leadership", "fetching")
def test_a_stop_ends_the_wait(reader: Reader, place: Path, stop: StopRequest) -> None:
    thread, found = in_thread(reader())
    wait_until(lambda: waits(place), 5, "the reader waits")
    stop.request()
    thread.join(10)
    assert [type(one) for one in found] == [StoppedError]


class TestDirectory:
    def test_one_without_living_members_is_removed_by_the_next_run(
        self, place: Path, fetching: subprocess.Popen[bytes]
    ) -> None:
        (left,) = place.iterdir()
        HostDirectory.join(place, "other").leave()
        assert left.exists()
        fetching.send_signal(signal.SIGKILL)
        fetching.wait()
        HostDirectory.join(place, "other").leave()
        assert not left.exists()

    def test_one_of_a_process_that_died_before_it_was_a_member_is_removed(self, place: Path) -> None:
        left = place / ("0" * 32)
        left.mkdir(mode=0o700)
        HostDirectory.join(place, "other").leave()
        assert not left.exists()

    def test_a_lock_has_one_holder_until_it_is_closed(self, place: Path) -> None:
        directory = HostDirectory.join(place, RUN)
        one, other = directory.open_lock("fetching"), directory.open_lock("fetching")
        assert (take(one), take(other)) == (True, False)
        os.close(one)
        assert take(other)
        os.close(other)
        directory.leave()

    def test_places_that_others_can_enter_are_left_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        mine = tmp_path / f"dppo-{os.geteuid()}"
        mine.mkdir(mode=0o755)
        assert mine not in list(parents())
        mine.chmod(0o700)
        assert mine in list(parents())
        mine.rmdir()
        mine.symlink_to("/")
        assert mine not in list(parents())
        assert not is_private(mine)
