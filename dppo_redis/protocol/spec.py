"""The spec of a run, on which its actors and learner must agree, and its digest.

The learner publishes the spec as JSON, and an actor needs nothing else to join. The digest covers `Spec`.
`JoinSettings` are further settings of actors, which may differ between them.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

from dppo_redis.errors import ConfigurationError, DamagedSpecError
from dppo_redis.protocol.config import EnvValue, NetworkConfig, RunConfig, Vectorization
from dppo_redis.protocol.lock_step import LockStep, lock_step_of
from dppo_redis.spaces.actions import ActionSpec
from dppo_redis.spaces.environment_spaces import EnvironmentSpaces
from dppo_redis.spaces.observations import ObservationSpec

WIRE_SCHEMA = 2  # changes when the layout of a rollout or of the weights changes


@dataclass(frozen=True)
class EnvironmentSource:
    """The source from which a run's environment is built."""

    env_id: str
    env_kwargs: dict[str, EnvValue] = field(default_factory=dict)
    wrappers: tuple[str, ...] = ()  # outermost last


@dataclass(frozen=True)
class Spec:
    """Environment, spaces, rollout length, network and wire schema of a run."""

    environment: EnvironmentSource
    observation: ObservationSpec
    action: ActionSpec
    rollout_steps: int  # T
    network: NetworkConfig = field(default_factory=NetworkConfig)
    frame_stack: int = 1
    normalise_observations: bool = False
    return_discount: float | None = None  # of the discounted return that actors carry; None: they carry none
    wire_schema: int = WIRE_SCHEMA

    def to_json(self) -> dict[str, Any]:
        """Plain values, whose JSON text is unique."""
        values = {name: value for name, value in vars(self).items() if name not in _PARTS}
        source, network = asdict(self.environment), self.network.model_dump()
        return {
            **values,
            "environment": {**source, "wrappers": list(self.environment.wrappers)},
            "observation": self.observation.to_json(),
            "action": self.action.to_json(),
            "network": {**network, "hidden": list(self.network.hidden)},
        }

    @staticmethod
    def from_json(values: dict[str, Any]) -> "Spec":
        """Inverse of `to_json`.

        Raises:
            ValueError, KeyError, TypeError: the values are not those of a spec.
        """
        environment, network = dict(values["environment"]), dict(values["network"])
        environment["wrappers"] = tuple(environment["wrappers"])
        network["hidden"] = tuple(network["hidden"])
        try:
            checked = NetworkConfig.model_validate(network, strict=True)
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
        return Spec(
            **{name: value for name, value in values.items() if name not in _PARTS},
            environment=EnvironmentSource(**environment),
            observation=ObservationSpec.from_json(values["observation"]),
            action=ActionSpec.from_json(values["action"]),
            network=checked,
        )

    def digest(self) -> str:
        """Sixteen hex digits, which change with any value of the spec except the wire schema.

        Each message names its schema, and a checkpoint must stay readable after a release with a new one.
        """
        values = {name: value for name, value in self.to_json().items() if name != "wire_schema"}
        text = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def differences(self, other: "Spec") -> list[str]:
        """One `name: mine != theirs` line for each value that differs."""
        mine, theirs = self.to_json(), other.to_json()
        # Compared as the digest sees them: True is not 1 there.
        return [
            f"{name}: {mine[name]!r} != {theirs[name]!r}"
            for name in mine
            if json.dumps(mine[name], sort_keys=True) != json.dumps(theirs[name], sort_keys=True)
        ]

    def seen_with(self, spaces: EnvironmentSpaces) -> "Spec":
        """This spec with the spaces of the environment on this machine."""
        return replace(self, observation=spaces.observation, action=spaces.action)

    def acting_differences(self, other: "Spec") -> list[str]:
        """`differences` in what makes a policy of `other` unfit for this one.

        The environment's name and arguments, the rollout length and return normalisation may differ.
        """
        free = ("environment", "rollout_steps", "return_discount", "wire_schema")
        return self.differences(replace(other, **{name: getattr(self, name) for name in free}))


_PARTS = ("environment", "observation", "action", "network")
_LATER = (  # names in JoinSettings that earlier releases do not know
    "env_retry_s",
    "evaluation_environments",
    "evaluation_wrappers",
    "evaluation_limit_s",
    "evaluation_end_wait_s",
    "open_rollouts",
)


@dataclass(frozen=True)
class JoinSettings:
    """Settings that an actor or evaluator needs besides the spec."""

    seed: int
    envs_per_actor: int
    vectorization: Vectorization
    evaluation_episodes: int
    evaluation_interval_s: float
    evaluation_max_share: float
    env_timeout_s: float
    lock_step: LockStep | None = None
    env_retry_s: float = 30.0
    evaluation_environments: int | None = None
    evaluation_wrappers: tuple[str, ...] | None = None  # None: those of training
    evaluation_limit_s: float = 60.0
    evaluation_end_wait_s: float = 10.0
    open_rollouts: int = 3  # as many as the staleness limit allows, at most those that were asked for

    def to_json(self) -> dict[str, Any]:
        """Names and values; settings that earlier releases do not know are left out at their defaults."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in _LATER or value != getattr(JoinSettings, name)
        }

    @staticmethod
    def from_json(values: dict[str, Any]) -> "JoinSettings":
        """Inverse of `to_json`."""
        lock_step, wrappers = values["lock_step"], values.get("evaluation_wrappers")
        return JoinSettings(
            **{
                **values,
                "lock_step": LockStep(**lock_step) if lock_step else None,
                "evaluation_wrappers": None if wrappers is None else tuple(wrappers),
            }
        )


@dataclass(frozen=True)
class RunDescription:
    """The content of a run's spec key."""

    spec: Spec
    join: JoinSettings
    digest: str = field(default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", self.spec.digest())

    @property
    def evaluated(self) -> EnvironmentSource:
        """The environment of evaluations: the run's environment, possibly in other wrappers."""
        wrappers = self.join.evaluation_wrappers
        source = self.spec.environment
        return source if wrappers is None else replace(source, wrappers=wrappers)

    def to_text(self) -> str:
        """The JSON text that the spec key holds."""
        values = {"digest": self.digest, "spec": self.spec.to_json(), "join": self.join.to_json()}
        return json.dumps(values, sort_keys=True, allow_nan=False)

    @staticmethod
    def from_text(text: str | bytes) -> "RunDescription":
        """Inverse of `to_text`.

        Raises:
            ConfigurationError: written by another release, or not a description at all (DamagedSpecError).
        """
        try:
            values = cast(dict[str, Any], json.loads(text))
            schema = values["spec"]["wire_schema"]
            if schema != WIRE_SCHEMA:
                raise ConfigurationError(
                    f"the run uses wire schema {schema}, this release speaks {WIRE_SCHEMA}: "
                    "install the learner's release here"
                )
            description = RunDescription(
                Spec.from_json(values["spec"]), JoinSettings.from_json(values["join"])
            )
            if description.digest != values["digest"]:
                raise ValueError(f"its digest is {description.digest}, but it states {values['digest']}")
            return description
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedSpecError(f"the run's spec key is unreadable: {error!r}") from error


def source_of(config: RunConfig) -> EnvironmentSource:
    """The environment that `config` asks for."""
    return EnvironmentSource(config.env_id, dict(config.env_kwargs), config.wrappers)


def describe_run(config: RunConfig, spaces: EnvironmentSpaces, rollout_steps: int) -> RunDescription:
    """The description that a learner publishes for `config`."""
    spec = Spec(
        environment=source_of(config),
        observation=spaces.observation,
        action=spaces.action,
        rollout_steps=rollout_steps,
        network=config.network,
        frame_stack=config.frame_stack,
        normalise_observations=config.ppo.normalise_observations,
        return_discount=config.ppo.gamma if config.ppo.normalise_returns else None,
    )
    return RunDescription(spec, join_settings(config, rollout_steps))


def join_settings(config: RunConfig, rollout_steps: int) -> JoinSettings:
    """The settings that actors and evaluators of `config` need besides the spec."""
    return JoinSettings(
        seed=config.seed,
        envs_per_actor=config.envs_per_actor,
        vectorization=config.vectorization,
        evaluation_episodes=config.evaluation.episodes,
        evaluation_interval_s=config.evaluation.interval_s,
        evaluation_max_share=config.evaluation.max_share,
        env_timeout_s=config.env_timeout_s,
        lock_step=lock_step_of(config, rollout_steps),
        env_retry_s=config.env_retry_s,
        evaluation_environments=config.evaluation.environments,
        evaluation_wrappers=config.evaluation.wrappers,
        evaluation_limit_s=config.evaluation.limit_s,
        evaluation_end_wait_s=config.evaluation.end_wait_s,
        open_rollouts=config.open_rollouts,
    )
