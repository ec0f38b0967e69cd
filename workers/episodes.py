"""Plays whole episodes to measure returns, for the evaluator, the serial baseline and the commands. No Redis.

Copy k mod n plays episode k, which has its own seed. This is fixed before the start, so that short episodes
count no more than long ones.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from dppo_redis.errors import EnvironmentBrokenError, StoppedError
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.policy.policy_state import PolicyState
from dppo_redis.protocol.reports import Evaluation
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.spaces.episode_metrics import means
from dppo_redis.spaces.observations import BoolArray
from workers.envs import Environments
from workers.evaluation_copies import EvaluationCopies
from workers.seeding import evaluation_seeds
from workers.watchdog import CallClock

LONGEST_EPISODE = 100_000  # steps; a longer episode would not end in useful time
MayContinue = Callable[[int], bool]  # called between two steps with the number of ended episodes
_REMEDY = (
    "an environment that may go on for ever needs a limit, for example "
    "--wrappers 'TimeLimit(max_episode_steps=1000)', or the same as --evaluation.wrappers"
)
_FREE_CPU_S = 10.0  # computing time without a limit if steps wait


class EvaluationBudget:
    """Decides how often evaluations begin, by the computing time that they take from training.

    An environment that sleeps takes none. If steps wait, cores are free. Then the first evaluations follow
    one another, until they took ten seconds of computing time in all.
    """

    def __init__(self, interval_s: float, max_share: float) -> None:
        self._interval_s = interval_s
        self._max_share = max_share
        self._free_s = _FREE_CPU_S

    def rest_s(self, cpu_s: float, *, waits: bool) -> float:
        """Seconds from the start of an evaluation that took `cpu_s` to the start of the next."""
        free_s = min(cpu_s, self._free_s) if waits else 0.0
        self._free_s -= free_s
        return max(self._interval_s, (cpu_s - free_s) / self._max_share)


class NoEpisodeError(EnvironmentBrokenError):
    """An evaluation was cut before an episode ended, so there is no return."""


@dataclass
class Scores:
    """Returns, lengths and metrics of one evaluation's episodes so far, in their order."""

    planned: int

    def __post_init__(self) -> None:
        self.returns = np.zeros(self.planned)
        self.lengths = np.zeros(self.planned, dtype=np.int64)
        self.ended: BoolArray = np.zeros(self.planned, dtype=np.bool_)
        self.metrics: dict[int, dict[str, float]] = {}  # by episode, for episodes that reported some


class EpisodePlayer:
    """Plays evaluations in the same copies of the run's environment."""

    def __init__(self, description: RunDescription, calls: CallClock | None = None) -> None:
        self._description = description
        self._copies = EvaluationCopies(description, calls)
        self.cpu_s = 0.0  # computing time of all episodes so far, in all processes

    def evaluate(
        self,
        policy: ActingPolicy,
        stop: StopRequest,
        sampling: np.random.Generator | None = None,
        seeds: Sequence[int] | None = None,
        limit_s: float | None = None,
        may_continue: MayContinue = lambda _ended: True,
    ) -> Evaluation:
        """Play greedy episodes, unless `sampling` draws the actions.

        An evaluation is cut by `limit_s`, by `may_continue`, or if an episode does not end. Then it has the
        returns of the ended episodes. Among them short ones are too frequent, so it is marked as not
        complete: it meets no target, and no policy is kept for it.

        Args:
            seeds: one for each episode; by default they follow from the run's seed and the weights' version.

        Raises:
            NoEpisodeError: the evaluation was cut before an episode had ended.
            StoppedError: a stop was requested meanwhile.
            EnvironmentBrokenError: the environment raised.
        """
        join, weights = self._description.join, policy.weights
        if seeds is None:
            seeds = evaluation_seeds(join.seed, weights.version, join.evaluation_episodes)
        try:
            scores = self._play(policy, stop, sampling, seeds, limit_s, may_continue)
        except NoEpisodeError:
            raise
        except EnvironmentBrokenError:
            self.close()  # the state of the copies is unknown
            raise
        ended = scores.ended
        returns, lengths = scores.returns[ended], scores.lengths[ended]
        if not np.isfinite(returns).all():
            raise EnvironmentBrokenError("an episode's return is not a finite number")
        return Evaluation(
            version=weights.version,
            update=weights.update,
            trained_steps=weights.trained_steps,
            settled_steps=weights.settled_steps,
            return_mean=float(np.mean(returns)),
            return_std=float(np.std(returns)),
            length_mean=float(np.mean(lengths)),
            episodes=len(returns),
            planned=len(seeds),
            complete=bool(ended.all()),
            metrics=means(scores.metrics[episode] for episode in sorted(scores.metrics)),
        )

    def _play(
        self,
        policy: ActingPolicy,
        stop: StopRequest,
        sampling: np.random.Generator | None,
        seeds: Sequence[int],
        limit_s: float | None,
        may_continue: MayContinue,
    ) -> Scores:
        copies = self._copies.get(policy, len(seeds), stop)
        scores, first = Scores(len(seeds)), 0
        began = time.monotonic()

        def has_time(ended: int) -> bool:
            return (limit_s is None or time.monotonic() - began < limit_s) and may_continue(ended)

        with self._counting_cpu():
            while first < len(seeds):
                last = len(seeds)
                if self._copies.are_native:  # one seed for all: in each turn every copy plays one episode
                    last = min(last, first + copies.count)
                    copies = self._copies.get(policy, last - first, stop)
                if not _play_all(policy, copies, seeds, range(first, last), scores, stop, sampling, has_time):
                    break
                first = last
        if not scores.ended.any():
            took_s, steps = time.monotonic() - began, int(scores.lengths.max())
            if steps >= LONGEST_EPISODE:
                raise NoEpisodeError(f"an episode has not ended after {LONGEST_EPISODE:,} steps: {_REMEDY}")
            raise NoEpisodeError(
                f"no episode had ended when the evaluation was cut after {took_s:.0f} s, "
                f"{steps:,} steps each: {_REMEDY}"
            )
        return scores

    @contextmanager
    def _counting_cpu(self) -> Iterator[None]:
        before_s = self._copies.cpu_s()
        try:
            yield
        finally:
            self.cpu_s += max(0.0, self._copies.cpu_s() - before_s)  # processes of copies may have ended

    @property
    def waits(self) -> bool:
        """Whether steps wait for something, so that cores are free during a step."""
        return self._copies.steps_wait

    def close(self) -> None:
        """Close the copies; the next evaluation builds new ones."""
        self._copies.close()


def _play_all(
    policy: ActingPolicy,
    copies: Environments,
    seeds: Sequence[int],
    episodes: range,
    scores: Scores,
    stop: StopRequest,
    sampling: np.random.Generator | None,
    has_time: MayContinue,
) -> bool:
    """Play some of the episodes; False if they were cut."""
    count = copies.count
    episode = np.arange(episodes.start, episodes.start + count)  # [N] that each copy plays
    assigned = [[seeds[k] for k in episodes[copy::count]] for copy in range(count)]
    state = PolicyState(policy.spec, copies.begin(assigned))
    playing = episode < episodes.stop
    while playing.any():
        if stop.requested:
            raise StoppedError("stopped during an evaluation")
        if not has_time(int(scores.ended.sum())) or scores.lengths[episode[playing]].max() >= LONGEST_EPISODE:
            return False
        actions = policy.actions(state.outputs(policy), sampling)
        step = copies.step(policy.action.to_environment(actions))
        state.observe(step.observations, step.begins)
        scores.returns[episode[playing]] += step.rewards[playing]
        scores.lengths[episode[playing]] += 1
        ended = playing & (step.terminated | step.truncated)
        scores.ended[episode[ended]] = True
        for copy, metrics in zip(np.flatnonzero(step.terminated | step.truncated), step.metrics, strict=True):
            if ended[copy] and metrics.numbers:
                scores.metrics[int(episode[copy])] = dict(metrics.numbers)
        episode[ended] += count
        playing &= episode < episodes.stop
    return True


def evaluate(
    policy: ActingPolicy,
    description: RunDescription,
    stop: StopRequest,
    sampling: np.random.Generator | None = None,
    seeds: Sequence[int] | None = None,
    calls: CallClock | None = None,
) -> Evaluation:
    """Play one evaluation in new copies, without a time limit; see `EpisodePlayer.evaluate`."""
    player = EpisodePlayer(description, calls)
    try:
        return player.evaluate(policy, stop, sampling, seeds)
    finally:
        player.close()
