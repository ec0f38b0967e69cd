"""Actors of one side with the learner of the other, through one Redis, in lock-step.

The results are bit-equal to those of a fleet of one side.
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.photographs.comparing import TIMED, UNREPEATABLE, differences
from tests.photographs.configurations import CASES
from tests.photographs.lock_step import last_checkpoint, photograph
from tests.photographs.server import Server
from tests.photographs.sides import Side, Sides, at_once

_CASES = tuple(case for case in CASES if case.name in ("cartpole", "normalised"))


def _mixed(learner: Side, actors: Side, config: Path, name: str) -> Path:
    """Start the services of a run one by one, and wait for their end."""
    directory = learner.place / name
    directory.mkdir()
    shutil.copy(config, directory / "config.toml")
    with Server(learner.place) as server, ExitStack() as stack:
        where = ("--run", name, "--redis", server.url)
        trainer = stack.enter_context(learner.start(*where, "--run-dir", str(directory), program="learner"))
        samplers = [
            stack.enter_context(actors.start(*where, "--slot", str(slot), program="workers"))
            for slot in (0, 1)
        ]
        for service in (trainer, *samplers):  # the learner ends the run, and that ends the actors
            service.wait()
    return directory


def photographs(sides: Sides) -> Iterator[tuple[str, list[str]]]:
    """Both combinations, for a plain policy and for a policy with normalisers."""
    old, new = sides.both()
    for case in _CASES:
        pure = old.place / f"{case.name}-fleet-of-2"
        if not pure.exists():
            yield from photograph(sides, case, "fleet of 2")
        name = f"mixed-{case.name}"
        config = pure / "config.toml"
        ended = at_once(
            {
                "old actors, new learner": partial(_mixed, new, old, config, name),
                "new actors, old learner": partial(_mixed, old, new, config, name),
            }
        )
        for which, directory in ended.items():
            found = differences(last_checkpoint(pure), last_checkpoint(directory), TIMED | UNREPEATABLE)
            yield f"{case.name}, {which}", found
