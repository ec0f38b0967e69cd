"""Loads a trained policy from any path of a run or an export, for Python programs."""

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

    It keeps the state of a running episode (the last frames, a recurrent network's memory): call `reset` at
    the start of each episode.
    """

    def __init__(self, loaded: LoadedPolicy, seed: int | None = None) -> None:
        """With the same `seed`, `act(..., greedy=False)` draws the same actions.

        Raises:
            ConfigurationError: the weights do not fit their description.
        """
        self.run = loaded.run  # name of the run that trained it
        self.env_id = loaded.description.spec.environment.env_id
        self.update = loaded.weights.update  # updates of the learner before it
        self.trained_steps = loaded.weights.trained_steps  # environment steps that the learner trained on
        self._player = Player(loaded.policy())
        self._sampling = np.random.default_rng(seed)

    def reset(self) -> None:
        """Forget the running episode. Call it at the start of each episode."""
        self._player.begin()

    def act(self, observation: Any, *, greedy: bool = True, mask: Any = None) -> Any:
        """The action for one observation.

        `observation` is an observation as `env.reset` and `env.step` of a single environment return it: an
        array of the observation space's shape, a number for a Discrete space, or a dict or tuple of such
        parts. Do not normalise, stack or batch it: the policy does that. `mask` is the environment's
        `info["action_mask"]`, one flag for each choice; None allows every choice.

        Returns an action for `env.step`: for Discrete a whole number, for Box an array of the space's shape
        and dtype, clipped to its bounds, for Dict and Tuple a dict or tuple of parts. It is the most likely
        action; with `greedy=False` the policy draws it from its distribution.

        Raises:
            ObservationError: the observation or the mask does not fit the spaces of the training.
        """
        spec = self._player.policy.spec.observation
        if spec.masked:
            observation = {"observation": observation, MASK: self._flags(mask)}
        elif mask is not None:
            raise ObservationError(
                f"mask: the policy of {self.run} was trained without an action mask: leave mask out"
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
    """Load the policy at `path`; see `dppo_redis.load`.

    Raises:
        ConfigurationError: the path holds no policy, or an unreadable one.
    """
    try:
        return Policy(_find(Path(path).absolute()), seed)
    except CheckpointError as error:
        raise ConfigurationError(f"{path} holds no readable policy: {error}") from error


def _find(path: Path) -> LoadedPolicy:
    if not path.exists():
        raise ConfigurationError(f"{path} does not exist: name a run's directory, a checkpoint or an export")
    if path.is_dir():
        return load_policy(path, "best", to_play=False)
    if path.name in (DESCRIPTION, ARRAYS, GRAPH) and is_export(path.parent):
        return load_policy(path.parent, "best", to_play=False)
    # The best policy is in the run's directory, a checkpoint in a folder of it.
    run_dir = next((parent for parent in path.parents[:2] if run_in(parent) is not None), None)
    if run_dir is not None:
        return load_policy(run_dir, str(path), to_play=False)
    raise ConfigurationError(
        f"{path} is not in a run's directory, whose files describe its environment and network: move it to "
        f"{RunFiles(Path('RUN_DIRECTORY')).checkpoints}, or pass the run's directory"
    )
