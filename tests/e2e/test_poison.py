"""An entry that really kills learner processes, between good ones."""

import signal
from functools import partial
from pathlib import Path

import numpy as np

from dppo_redis.protocol.spec import RunDescription
from dppo_redis.protocol.wire import checksum, encode_rollout
from tests.conftest import wait_until
from tests.e2e.dying_learner import DEADLY_REWARD
from tests.e2e.support import Command, Run, Server
from tests.e2e.test_by_hand import NAME, place, server
from tests.factories import make_header, make_rollout

__all__ = ["place", "server"]  # fixtures
DYING_LEARNER = ("-m", "tests.e2e.dying_learner")


def _learner(server: Server, place: Path) -> Command:
    arguments = ["--run", NAME, "--run-dir", "run", "--redis", server.url]
    return Command(*arguments, program=DYING_LEARNER, cwd=place)


def _push(run: Run, boot: str, seq: int, *, deadly: bool = False) -> None:
    """Half a batch, sampled with the first weights of the first learner."""
    spec = RunDescription.from_text(run.client.get(run.keys.spec)).spec
    rewards = np.full((spec.rollout_steps, 2), DEADLY_REWARD if deadly else 1.0, np.float32)
    payload = encode_rollout(make_rollout(spec, rewards=rewards))
    epoch = run.weights("epoch")
    header = make_header(spec, boot=boot, seq=seq, epoch=epoch, version=1, update=0, steps=16)
    fields = {**vars(header), "crc": checksum(payload), "payload": payload}
    run.client.xadd(run.keys.rollouts, fields)


def _leads(run: Run, after: int) -> bool:
    return run.weights("epoch") > after


def _settled(run: Run, outcome: str) -> int:
    return int(run.client.hget(run.keys.ledger, outcome) or 0)


# Known failure KF-RED-13.
def test_an_entry_that_kills_the_learner_three_times_is_quarantined_and_others_are_trained_on(
    server: Server, place: Path
) -> None:
    server.start()
    run = server.run(NAME)
    good, bad, epoch = "a" * 16, "b" * 16, 0
    for death in range(1, 4):
        with _learner(server, place) as learner:
            wait_until(partial(_leads, run, epoch), 30, f"learner {death} leads")
            epoch = run.weights("epoch")
            if death == 1:
                _push(run, good, 1)
                _push(run, bad, 1, deadly=True)
                _push(run, bad, 2)
                _push(run, good, 2)
                _push(run, good, 3)
            assert learner.wait(20) == -signal.SIGKILL
        run.client.delete(run.keys.lease)  # as if it had expired
    with _learner(server, place):
        wait_until(lambda: _settled(run, "refused:poison") == 1, 30, "the deadly one is refused")
        wait_until(lambda: _settled(run, "trained") == 4, 10, "the good ones are trained")
    assert run.hash(run.keys.ledger) == {
        "trained": "4", "steps:trained": "64", "refused": "1", "refused:poison": "1",
    }  # fmt: skip
    entry = run.client.xrange(run.keys.quarantine)[0][1]
    assert entry["reason"] == "poison"
    assert (entry["field:boot"], entry["field:seq"]) == (bad, "1")
    assert run.client.xlen(run.keys.rollouts) == 0
