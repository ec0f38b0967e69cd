"""The lines that name missing actors for the operator."""

from dppo_redis.protocol.reports import ActorReport
from learner.leadership.missing_actors import REMEMBERED_S, STARTING_S, MissingActors


def reports(**by_slot: str) -> dict[int, ActorReport]:
    """The reports of actors: `_0="a"` is the actor of slot 0 on host a."""
    return {int(slot[1:]): ActorReport(host=host) for slot, host in by_slot.items()}


def test_a_host_that_is_cut_off_is_named_with_its_actors_and_when_it_was_seen() -> None:
    missing = MissingActors(planned_actors=5, began=0.0)
    missing.record(reports(_0="a", _1="a", _2="a", _3="b", _4="b"), (), now=10.0)
    assert missing.lines(10.0, {}) == ()
    missing.record(reports(_0="a", _1="a", _2="a"), {3, 4}, now=20.0)
    missing.record(reports(_0="a", _1="a", _2="a"), (), now=50.0)
    assert missing.lines(50.0, {}) == ("3 of 5 planned actors, host b (actors 3, 4) last seen 40 s ago",)


def test_one_actor_of_a_living_host_is_named_with_its_last_reason() -> None:
    missing = MissingActors(planned_actors=2, began=0.0)
    dying = ActorReport(host="a", last_error="step raised ValueError: licence")
    missing.record({0: ActorReport(host="a"), 1: dying}, (), now=1.0)
    missing.record({0: ActorReport(host="a")}, (), now=2.0)
    assert missing.lines(2.0, {}) == (), "it may be restarting"
    assert missing.lines(9.0, {}) == (
        "1 of 2 planned actors, actor 1 on host a last seen 8 s ago: step raised ValueError: licence",
    )


def test_an_outside_actor_is_missing_for_ten_minutes_after_it_vanished_not_after_it_deregistered() -> None:
    missing = MissingActors(planned_actors=1, began=0.0)
    all_actors = reports(_0="a", _1000="b", _1001="c")
    missing.record(all_actors, (), now=0.0)
    living = reports(_0="a")
    missing.record(living, {1001}, now=1.0)
    assert missing.lines(30.0, {}) == ("host c (actor 1001) last seen 30 s ago",)
    missing.record(living, (), now=REMEMBERED_S + 1)
    assert missing.lines(REMEMBERED_S + 1, {}) == ()


def test_a_planned_actor_that_never_came_is_missed_after_a_while() -> None:
    missing = MissingActors(planned_actors=3, began=0.0)
    missing.record(reports(_0="a"), (), now=1.0)
    assert missing.lines(STARTING_S, {}) == ()
    assert missing.lines(STARTING_S + 1, {"1": 7}) == (
        "1 of 3 planned actors, actors 1, 2 not seen yet, started 7 times",
    )


def test_an_actor_that_dies_again_and_again_is_a_line_while_it_lives() -> None:
    missing = MissingActors(planned_actors=1, began=0.0)
    missing.record({0: ActorReport(host="a", deaths=1, last_death="SIGSEGV")}, (), now=1.0)
    assert missing.lines(1.0, {}) == ()
    missing.record({0: ActorReport(host="a", deaths=4, last_death="SIGSEGV")}, (), now=2.0)
    assert missing.lines(2.0, {}) == ("actor 0 has died 4 times: SIGSEGV",)


def test_many_lines_are_cut_short() -> None:
    missing = MissingActors(planned_actors=1, began=0.0)
    missing.record(reports(_0="a") | {1000 + n: ActorReport(host=f"h{n}") for n in range(20)}, (), now=0.0)
    missing.record(reports(_0="a"), set(range(1000, 1020)), now=1.0)
    lines = missing.lines(10.0, {})
    assert (len(lines), lines[-1]) == (7, "and 14 more lines like these")
