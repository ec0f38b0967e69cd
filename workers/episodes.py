"""Whole episodes, played for their returns: one in each environment, so that short ones count no more
than long ones. The evaluator, the serial baseline and the commands play them here. No Redis.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dppo_redis.environments.make import Vectorization, make_vector
from dppo_redis.environments.numbering import CopyNumber
from dppo_redis.errors import ConfigurationError, EnvironmentBrokenError, StoppedError
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.policy.policy_state import PolicyState
from dppo_redis.protocol.reports import Evaluation
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.service.shutdown import StopRequest
from workers.envs import Environments
from workers.seeding import evaluation_seeds
from workers.watchdog import CallClock

LONGEST_EPISODE = 100_000  # steps; nobody would see the result of a longer one
_MOST_AT_ONCE = 64


def evaluate(
    policy: ActingPolicy,
    description: RunDescription,
    stop: StopRequest,
    sampling: np.random.Generator | None = None,
    seeds: Sequence[int] | None = None,
    calls: CallClock | None = None,
) -> Evaluation:
    """Play whole episodes, one per environment; greedy ones, unless `sampling` draws the actions.

    Without `seeds` [episodes] every version plays other episodes of the run's own.

    Raises:
        StoppedError: a stop was requested meanwhile.
        EnvironmentBrokenError: the environment raised, or an episode does not end.
    """
    join, weights = description.join, policy.weights
    if seeds is None:
        seeds = evaluation_seeds(join.seed, weights.version, join.evaluation_episodes)
    returns: list[float] = []
    lengths: list[int] = []
    for first in range(0, len(seeds), _MOST_AT_ONCE):
        some = list(seeds[first : first + _MOST_AT_ONCE])
        environments = _make_environments(description, some, calls or CallClock())
        try:
            played = _play_one_each(policy, environments, stop, sampling)
        finally:
            environments.close()
        returns += played[0].tolist()
        lengths += played[1].tolist()
    if not np.isfinite(returns).all():
        raise EnvironmentBrokenError("an episode's return is not a finite number")
    return Evaluation(
        version=weights.version,
        update=weights.update,
        trained_steps=weights.trained_steps,
        env_steps=weights.env_steps,
        return_mean=float(np.mean(returns)),
        return_std=float(np.std(returns)),
        length_mean=float(np.mean(lengths)),
        episodes=len(returns),
    )


def _make_environments(description: RunDescription, seeds: list[int], calls: CallClock) -> Environments:
    """In this process, whatever the actors do: its computing time is what is rationed."""
    spec, wanted = description.spec, description.join.vectorization
    vectorization: Vectorization = "sync" if wanted == "async" else wanted
    calls.start()  # building may hang, too
    try:
        vector = make_vector(
            spec.environment,
            len(seeds),
            vectorization,
            masked=spec.observation.masked,
            number=CopyNumber("evaluator"),
        )
    except ConfigurationError as error:  # it could be made when it was looked at: this may pass
        raise EnvironmentBrokenError(str(error)) from error
    finally:
        calls.stop()
    return Environments(vector, seeds, calls)


def _play_one_each(
    policy: ActingPolicy,
    environments: Environments,
    stop: StopRequest,
    sampling: np.random.Generator | None,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Returns [N] and lengths [N] of the first episode of each environment."""
    state = PolicyState(policy.spec, environments.reset())
    running = np.ones(environments.count, dtype=np.bool_)
    returns = np.zeros(environments.count)
    lengths = np.zeros(environments.count, dtype=np.int64)
    while running.any():
        if stop.requested:
            raise StoppedError("stopped during an evaluation")
        if lengths.max() >= LONGEST_EPISODE:
            raise EnvironmentBrokenError(
                f"an episode has not ended after {LONGEST_EPISODE:,} steps: an environment that may go on "
                "for ever needs a limit, for example --wrappers 'TimeLimit(max_episode_steps=1000)'"
            )
        actions = policy.actions(state.outputs(policy), sampling)
        step = environments.step(policy.action.to_environment(actions))
        state.observe(step.observations, step.begins)
        returns[running] += step.rewards[running]
        lengths[running] += 1
        running &= ~(step.terminated | step.truncated)
    return returns, lengths
