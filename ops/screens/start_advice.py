"""Gives advice at a run's start about settings that have unexpected effects. Pure."""

from collections.abc import Iterator

from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.pacing import Derived

_SHORT_ROLLOUT = 16  # steps; in shorter ones the advantages are mostly the critic's own estimates
_GOOD_ROLLOUT = 64
_USUAL_STALENESS = RunConfig().max_staleness


def start_advice(config: RunConfig, derived: Derived, *, serial: bool) -> Iterator[str]:
    """One line for each setting with an unexpected effect, with a better value."""
    if config.lock_step and config.max_staleness not in (0, _USUAL_STALENESS):
        limit = config.max_staleness
        yield f"--lock-step: all data has staleness 0, so --max-staleness {limit} has no effect"
    rows, minibatch = derived.samples_per_update, config.ppo.minibatch_size
    if minibatch > rows:
        yield f"--ppo.minibatch-size {minibatch}: an update has {rows} rows, so a pass is one gradient step"
    if derived.rollout_steps < _SHORT_ROLLOUT and config.rollout_steps is None:
        yield _short_rollouts(config, derived, 1 if serial and not config.lock_step else config.actors)
    if config.network.memory != "none" and not config.ppo.normalise_returns:
        yield "policy and value networks share layers: --ppo.normalise-returns learns better"


def _short_rollouts(config: RunConfig, derived: Derived, actors: int) -> str:
    environments, batch = actors * config.envs_per_actor, config.ppo.batch_steps
    steps = f"{derived.rollout_steps} step{'' if derived.rollout_steps == 1 else 's'}"
    fewer = batch // (actors * _GOOD_ROLLOUT)
    instead = f", or --envs-per-actor {fewer}" if 0 < fewer < config.envs_per_actor else ""
    return (
        f"rollouts have only {steps}, as {environments} environments share a batch of {batch}: "
        f"set --ppo.batch-steps {environments * _GOOD_ROLLOUT}{instead}"
    )
