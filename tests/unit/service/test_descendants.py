"""The descendants of a process are found, ended and reaped, orphans included."""

import multiprocessing
import subprocess
import sys
from multiprocessing.connection import Connection

from dppo_redis.service.descendants import adopt_orphans, descendants, end_descendants
from dppo_redis.service.shutdown import is_alive

_SLEEPER = "import time; time.sleep(3600)"
_DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); {_SLEEPER}"


def _start_and_end_descendants(answers: Connection) -> None:
    """In a process of its own: start a sleeper, an orphan and one that is deaf; end them all."""
    adopt_orphans()
    sleeper = subprocess.Popen([sys.executable, "-c", _SLEEPER], start_new_session=True)
    orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {_SLEEPER!r}])"
    subprocess.run([sys.executable, "-c", orphan], check=True)
    deaf = subprocess.Popen([sys.executable, "-c", _DEAF], stdout=subprocess.PIPE)
    assert deaf.stdout is not None
    deaf.stdout.readline()
    before = descendants()
    end_descendants(0.0, 0.3)
    answers.send((before, sleeper.pid, deaf.pid, descendants()))


def test_all_descendants_are_found_and_ended() -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_start_and_end_descendants, args=(theirs,))
    process.start()
    assert ours.poll(60)
    before, sleeper, deaf, after = ours.recv()
    process.join()
    assert {sleeper, deaf} < before  # and the orphan, whose number it cannot know
    assert after == set()
    assert not any(is_alive(pid) for pid in (sleeper, deaf))
