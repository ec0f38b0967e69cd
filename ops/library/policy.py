"""Loads a trained policy from any path of a run or an export, for Python programs that play with it."""

from pathlib import Path
from typing import Any

import numpy as np

from dppo_redis.artefacts.exports import ARRAYS, DESCRIPTION, GRAPH, is_export
from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.environments.masks import MASK, read_mask
from dppo_redis.errors import CheckpointError, ConfigurationError, ObservationError
from dppo_redis.policy.player import Player
from dppo_redis.spaces.observation_check import check_observation
from ops.fleet.run_directory import run_in
from ops.policies.load_policy import LoadedPolicy, load_policy


class Policy:
    """A trained policy that plays one environment.

        policy = dppo_redis.load("runs/NAME")
        observation, info = env.reset()
        policy.reset()
        action = policy.act(observation)

    It keeps what it has to remember of a running episode (the last frames, a recurrent network's memory):
    call `reset` where an episode begins.
    """

    def __init__(self, loaded: LoadedPolicy, seed: int | None = None) -> None:
        """`seed` makes the actions of `greedy=False` repeatable.

        Raises:
            ConfigurationError: the weights do not fit their description.
        """
        self.run = loaded.run  # name of the run that it was trained in
        self.env_id = loaded.description.spec.environment.env_id
        self.update = loaded.weights.update  # updates of the learner that made it
        self.trained_steps = loaded.weights.trained_steps  # environment steps that these learnt from
        self._player = Player(loaded.policy())
        self._sampling = np.random.default_rng(seed)

    def reset(self) -> None:
        """Forget the episode so far: a new one begins."""
        self._player.begin()

    def act(self, observation: Any, *, greedy: bool = True, mask: Any = None) -> Any:
        """The action for one observation.

        `observation` is what `env.reset` and `env.step` of a single environment return: an array of its
        observation space's shape, a number of a Discrete space, or a dict or tuple of such parts. It is not
        normalised, stacked or batched: the policy does that itself. `mask` is the environment's
        `info["action_mask"]`, one flag for each choice; None allows every choice.

        Returns what `env.step` takes: for Discrete a whole number, for Box an array of the space's shape and
        dtype, clipped to its bounds, for Dict and Tuple a dict or tuple of parts. The most likely action;
        with `greedy=False` one drawn from the policy's distribution.

        Raises:
            ObservationError: the observation or the mask has another form than the policy was trained on.
        """
        spec = self._player.policy.spec.observation
        if spec.masked:
            observation = {"observation": observation, MASK: self._flags(mask)}
        elif mask is not None:
            raise ObservationError(
                f"mask: the policy of {self.run} was trained without an action mask, so it cannot obey one"
            )
        check_observation(spec, observation)
        return self._player.act(observation, None if greedy else self._sampling)

    def _flags(self, mask: Any) -> Any:
        try:
            return read_mask(mask, self._player.policy.action)
        except ConfigurationError as error:
            raise ObservationError(f"mask: {error}") from error

    def __repr__(self) -> str:
        return f"<Policy for {self.env_id} of run {self.run}, {self.trained_steps:,} trained steps>"


def load_from(path: Path | str, seed: int | None = None) -> Policy:
    """The policy that `path` names: see `dppo_redis.load`.

    Raises:
        ConfigurationError: there is none, or it cannot be read.
    """
    try:
        return Policy(_find(Path(path).absolute()), seed)
    except CheckpointError as error:
        raise ConfigurationError(f"{path} holds no policy that can be read: {error}") from error


def _find(path: Path) -> LoadedPolicy:
    if not path.exists():
        raise ConfigurationError(f"{path} does not exist: name a run's directory, a checkpoint or an export")
    if path.is_dir():
        return load_policy(path, "best", to_play=False)
    if path.name in (DESCRIPTION, ARRAYS, GRAPH) and is_export(path.parent):
        return load_policy(path.parent, "best", to_play=False)
    # The best policy lies in its run's directory, a checkpoint in a folder of that.
    run_dir = next((one for one in path.parents[:2] if run_in(one) is not None), None)
    if run_dir is not None:
        return load_policy(run_dir, str(path), to_play=False)
    raise ConfigurationError(
        f"{path} lies in no run's directory, and what it was trained on is written there: put it into "
        f"{RunFiles(Path('RUN_DIRECTORY')).checkpoints}, or name the directory"
    )
