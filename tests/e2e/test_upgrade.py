"""Two releases with different wire schemas on one run: the learner is upgraded first, then its actors."""

from pathlib import Path

from dppo_redis.errors import ExitStatus
from dppo_redis.protocol.spec import WIRE_SCHEMA
from tests.conftest import wait_until
from tests.e2e.support import Command, Server
from tests.e2e.test_by_hand import NAME, place, server
from tests.e2e.test_by_hand import _actor as old_actor
from tests.e2e.test_by_hand import _learner as old_learner

__all__ = ["place", "server"]  # fixtures
NEW = ("-m", "tests.e2e.other_release")


def _new(module: str, server: Server, place: Path, *flags: str) -> Command:
    return Command(module, "--run", NAME, "--redis", server.url, *flags, program=NEW, cwd=place)


def _ends_naming_both_schemas(service: Command, run: int, release: int) -> None:
    assert service.wait(20) == ExitStatus.CONFIGURATION
    assert f"the run uses wire schema {run}, this release speaks {release}" in service.error_lines[-1]


# Known failure KF-WIRE-06.
def test_a_run_continues_when_its_learner_is_upgraded_before_its_actors(server: Server, place: Path) -> None:
    server.start()
    run = server.run(NAME)
    with old_actor(server, place) as actor:
        with old_learner(server, place) as learner:
            run.reaches(3)
            with _new("workers", server, place) as early:  # an actor before its learner
                _ends_naming_both_schemas(early, run=WIRE_SCHEMA, release=WIRE_SCHEMA + 1)
            update = run.weights("update")
            assert learner.stop() == ExitStatus.DONE
        with _new("learner", server, place, "--run-dir", "run") as learner:
            _ends_naming_both_schemas(actor, run=WIRE_SCHEMA + 1, release=WIRE_SCHEMA)
            assert run.weights("update") >= update
            learner.wait_for_output("resuming at update")
            with old_actor(server, place) as late, _new("workers", server, place):
                _ends_naming_both_schemas(late, run=WIRE_SCHEMA + 1, release=WIRE_SCHEMA)
                run.goes_on()
            wait_until(lambda: run.status("imbalance") == 0, 5, "the books balance")
    refused = {name for name in run.hash(run.keys.ledger) if name.startswith("refused:")}
    assert refused <= {"refused:schema", "refused:lost_lineage"}
