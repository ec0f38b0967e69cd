"""What actors and learner of one run must agree on, and its digest.

The learner publishes it as JSON; an actor joins with nothing else. `Spec` is what the digest
covers; `JoinSettings` is what an actor also needs but may differ between actors.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, cast

from dppo_redis.config import EnvValue, RunConfig
from dppo_redis.errors import ConfigurationError
from dppo_redis.spaces import (
    ActionSpec,
    ObservationSpec,
    action_spec_from_json,
    action_spec_to_json,
)

WIRE_SCHEMA = 1  # changes when the layout of a rollout or of the weights changes


@dataclass(frozen=True)
class Spec:
    """Environment, spaces, rollout length, network and wire schema of a run."""

    env_id: str
    env_kwargs: dict[str, EnvValue]
    observation: ObservationSpec
    action: ActionSpec
    rollout_steps: int  # T
    hidden: tuple[int, ...]
    activation: Literal["tanh", "relu"]
    normalise_observations: bool = False
    return_discount: float | None = None  # of the running return that actors carry; None: not carried
    wire_schema: int = WIRE_SCHEMA

    def to_json(self) -> dict[str, Any]:
        """Plain values, in a form that has one text."""
        values = asdict(self)
        values["hidden"] = list(self.hidden)
        values["action"] = action_spec_to_json(self.action)
        return values

    @staticmethod
    def from_json(values: dict[str, Any]) -> "Spec":
        """Inverse of `to_json`."""
        return Spec(
            env_id=values["env_id"],
            env_kwargs=values["env_kwargs"],
            observation=ObservationSpec(**values["observation"]),
            action=action_spec_from_json(values["action"]),
            rollout_steps=values["rollout_steps"],
            hidden=tuple(values["hidden"]),
            activation=values["activation"],
            normalise_observations=values["normalise_observations"],
            return_discount=values["return_discount"],
            wire_schema=values["wire_schema"],
        )

    def digest(self) -> str:
        """Sixteen hex digits that differ when anything in the spec differs but the wire schema.

        Each message names its schema itself, and a checkpoint outlives a release that changes it.
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


@dataclass(frozen=True)
class JoinSettings:
    """What an actor or evaluator needs besides the spec."""

    seed: int
    envs_per_actor: int
    vectorization: Literal["auto", "sync", "async"]
    evaluation_episodes: int
    evaluation_interval_s: float
    evaluation_max_share: float


@dataclass(frozen=True)
class RunDescription:
    """The content of a run's spec key."""

    spec: Spec
    join: JoinSettings
    digest: str = field(default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", self.spec.digest())

    def to_text(self) -> str:
        """The JSON text that the spec key holds."""
        values = {"digest": self.digest, "spec": self.spec.to_json(), "join": asdict(self.join)}
        return json.dumps(values, sort_keys=True, allow_nan=False)

    @staticmethod
    def from_text(text: str | bytes) -> "RunDescription":
        """Inverse of `to_text`.

        Raises:
            ConfigurationError: written by another release, or not a description at all.
        """
        try:
            values = cast(dict[str, Any], json.loads(text))
            schema = values["spec"]["wire_schema"]
            if schema != WIRE_SCHEMA:
                raise ConfigurationError(
                    f"the run uses wire schema {schema}, this release speaks {WIRE_SCHEMA}: "
                    "install the learner's release here"
                )
            description = RunDescription(Spec.from_json(values["spec"]), JoinSettings(**values["join"]))
            if description.digest != values["digest"]:
                raise ValueError(f"its digest is {description.digest}, it says {values['digest']}")
            return description
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"the run's spec key is unreadable: {error!r}") from error


def describe_run(
    config: RunConfig, observation: ObservationSpec, action: ActionSpec, rollout_steps: int
) -> RunDescription:
    """The description that a learner publishes for `config`."""
    spec = Spec(
        env_id=config.env_id,
        env_kwargs=dict(config.env_kwargs),
        observation=observation,
        action=action,
        rollout_steps=rollout_steps,
        hidden=config.network.hidden,
        activation=config.network.activation,
        normalise_observations=config.ppo.normalise_observations,
        return_discount=config.ppo.gamma if config.ppo.normalise_returns else None,
    )
    join = JoinSettings(
        seed=config.seed,
        envs_per_actor=config.envs_per_actor,
        vectorization=config.vectorization,
        evaluation_episodes=config.evaluation.episodes,
        evaluation_interval_s=config.evaluation.interval_s,
        evaluation_max_share=config.evaluation.max_share,
    )
    return RunDescription(spec, join)
