"""Nine actors join a run that planned one: the fleet that comes decides how it samples."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import tomli_w

from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.run_status import read_status
from learner.__main__ import _serve
from tests.conftest import RedisServer, wait_until
from tests.factories import make_config
from tests.integration.actor_side import running_actor
from tests.integration.learner.test_learner import ENDLESS, description_of
from tests.integration.learner_side import in_background
from workers.build import build_collector

ACTORS = 9
CONFIG = make_config(
    env_id="tests.envs:Slow-v0",
    env_kwargs={"ms": 5, "length": 20},
    total_steps=ENDLESS,
    actors=1,
    envs_per_actor=1,
    vectorization="sync",
    network={"hidden": [8]},
    ppo={"batch_steps": 126, "minibatch_size": 63, "update_epochs": 1},
)


def test_nine_actors_in_a_run_planned_for_one_deliver_almost_nothing_too_old(
    private_server: RedisServer, private_client: Client, keys: RunKeys, tmp_path: Path
) -> None:
    """One planned rollout has 126 steps of 5 ms. Judged once all are there: 150 rollouts, and at most 5 %."""
    description = description_of(CONFIG)
    (tmp_path / "config.toml").write_text(
        tomli_w.dumps(CONFIG.model_dump(exclude_none=True, mode="json")), encoding="utf-8"
    )
    argv = ["--run", keys.run, "--run-dir", str(tmp_path), "--redis", private_server.url]
    stop = StopRequest()

    def settled() -> tuple[int, int]:
        ledger = read_status(private_client, keys).ledger_summary
        return ledger.trained, ledger.stale

    with in_background(lambda: _serve(argv, stop), stop), ExitStack() as actors:
        for slot in range(ACTORS):
            build = partial(build_collector, description, None, slot)
            actors.enter_context(running_actor(private_server.url, keys, build, description, slot))
        wait_until(
            lambda: read_status(private_client, keys).keeper.rollout_steps == 126 // ACTORS, 30, "they count"
        )
        wait_until(lambda: sum(settled()) > 0, 30, "the first rollouts are settled")
        before = settled()
        wait_until(lambda: sum(settled()) - sum(before) >= 150, 60, "150 rollouts are settled")
        after = settled()
        status = read_status(private_client, keys)
    stale, trained = after[1] - before[1], after[0] - before[0]
    assert stale <= 0.05 * (stale + trained), (before, after)
    assert status.learner.staleness_recent is not None
    assert status.learner.staleness_recent < 2.0
    assert status.ledger_summary.refused == 0
    assert {actor.rollout_steps for actor in status.actors.values()} == {126 // ACTORS}
