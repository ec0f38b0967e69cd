"""Real fleets under attack, one short one for each part that can fail; `make chaos` runs for long.

Whatever is done to them: they go on training, and the checker finds no broken promise.
"""

import random
from collections.abc import Iterator

import pytest

from tests.chaos import faults
from tests.chaos.__main__ import ACTORS, CARTPOLE
from tests.chaos.faults import FAULTS, Fault
from tests.chaos.fleet import Fleet
from tests.chaos.injector import Injector, to_markdown
from tests.e2e.support import SLOW

SLOW_ACTORS = 2
ENDLESS = ("--total-steps", str(10**9))

PROCESSES = (
    faults.kill_an_actor,
    faults.kill_the_learner,
    faults.stop_an_actor,
    faults.take_over_from_a_stopped_learner,
    faults.fill_the_disk,
)
SERVER = (
    faults.kill_the_server,
    faults.fill_the_servers_memory,
    faults.flush_everything,
    faults.delete_a_key,
    faults.overwrite_a_key,
    faults.damage_the_weights,
    faults.delete_the_stream,
    faults.trim_the_stream,
    faults.destroy_the_group,
)
NETWORK_AND_ENTRIES = (
    faults.reset_connections,
    faults.delay_everything,
    faults.open_a_hole,
    faults.lose_a_push_reply,
    faults.lose_a_settle_reply,
    faults.lose_a_publish_reply,
    faults.lose_a_read_reply,
    faults.push_poison,
    faults.push_duplicates,
    faults.push_what_is_too_old,
    faults.set_the_servers_clock_back,
)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """Two actors whose environments take their time, so that the attack needs little computing."""
    with Fleet((*SLOW, *ENDLESS), SLOW_ACTORS) as fleet:
        yield fleet


def possible(kinds: tuple[Fault, ...], fleet: Fleet) -> list[Fault]:
    """Without root there is no small disk to fill."""
    return [fault for fault in kinds if fleet.disk_is_small or fault is not faults.fill_the_disk]


@pytest.mark.parametrize(
    ("kinds", "seed"),
    [
        (PROCESSES, 1),
        pytest.param(SERVER, 2, marks=pytest.mark.slow),
        pytest.param(NETWORK_AND_ENTRIES, 3, marks=pytest.mark.slow),
    ],
    ids=["processes", "server", "network and entries"],
)
def test_a_fleet_survives_and_every_promise_holds(fleet: Fleet, kinds: tuple[Fault, ...], seed: int) -> None:
    kinds = tuple(possible(kinds, fleet))
    report = Injector(fleet, random.Random(seed), kinds).run(seconds=0)
    assert report.faults == len(kinds), to_markdown(report)
    assert report.broken == [], to_markdown(report)


def test_every_fault_of_this_package_is_part_of_the_long_attack() -> None:
    own = [value for value in vars(faults).values() if getattr(value, "__module__", "") == faults.__name__]
    assert {fault for fault in own if not fault.__name__.startswith("_")} == set(FAULTS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_cartpole_survives_every_fault(seed: int) -> None:
    with Fleet(CARTPOLE, ACTORS) as fleet:
        kinds = possible(FAULTS, fleet)
        report = Injector(fleet, random.Random(seed), kinds).run(seconds=0)
    assert report.broken == [], to_markdown(report)
