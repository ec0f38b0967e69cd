"""All settings of a run: names, types, allowed ranges, defaults and meanings. Frozen values.

The same classes check the TOML file and the command line, and hold the configuration that a run writes down
as used. `run_plan.py` derives further numbers from them.
"""

import ast
import math
from typing import Annotated, Any, ClassVar, Literal, Self

import tyro
from pydantic import Field, field_validator, model_validator

from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.settings import Section, Switch


def _read_value(words: list[str]) -> Any:
    """The number, truth value, list or mapping that a word spells; else the word itself."""
    try:
        return ast.literal_eval(words[0].title() if words[0] in ("true", "false") else words[0])
    except (SyntaxError, ValueError):
        return words[0]


EnvValue = Annotated[
    int | float | bool | str | list[Any] | dict[str, Any],
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="VALUE",
        instance_from_str=_read_value,
        is_instance=lambda value: isinstance(value, int | float | str | list | dict),
        str_from_instance=lambda value: [str(value)],
    ),
]
MOST_STEPS = 10**15  # many JSON readers read numbers as floats, which hold each of these exactly
Vectorization = Literal["auto", "sync", "async", "threads"]
Correction = Literal["none", "vtrace", "decoupled", "tis"]


class PpoConfig(Section):
    """PPO (arXiv:1707.06347) and its optimiser."""

    path: ClassVar[str] = "ppo."

    batch_steps: int = Field(2048, ge=8, le=10_000_000)
    """Valid environment steps of one update; constant while the fleet grows"""
    minibatch_size: int = Field(256, ge=2, le=10_000_000)
    """Rows of one gradient step; the last one of a pass may be shorter"""
    update_epochs: int | None = Field(None, ge=1, le=1000)
    """Passes over each batch; default: 10 in serial and lock-step runs, else 6 (old data wants fewer)"""
    learning_rate: float = Field(1e-3, gt=0, le=1)
    """Adam step size; 3e-4 or 1e-4 when the return oscillates"""
    anneal_learning_rate: bool = False
    """Lower the learning rate linearly to 0 over total_steps trained steps"""
    anneal_clip: bool = False
    """Lower the clip range likewise"""
    anneal_entropy: bool = False
    """Lower the entropy bonus likewise"""
    clip_epsilon: float = Field(0.2, gt=0, lt=1)
    """Clip range of the probability ratio; 0.1 when the return oscillates"""
    dual_clip: float | None = Field(None, gt=1)
    """Bound on the ratio where the advantage is negative, for example 3; default: none"""
    value_clip: float | None = Field(None, gt=0)
    """Clip range of the value's change in one update; default: none"""
    target_kl: float | None = Field(None, gt=0)
    """End an update after the pass whose mean KL divergence exceeds this; default: none"""
    correction: Correction = "none"
    """Correction for old data: none, V-trace, the decoupled objective, truncated importance weights (tis)"""
    importance_cap: float = Field(2.0, ge=1, le=1000)
    """Largest importance weight of a row under the correction tis"""
    gamma: float = Field(0.99, ge=0, le=1)
    """Discount per step"""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """Lambda of generalised advantage estimation"""
    normalise_observations: bool = False
    """Centre and scale observations by running statistics, which travel inside the weights"""
    normalise_returns: bool = False
    """Scale rewards by the spread of the running discounted return; reports stay raw"""
    value_coef: float = Field(0.5, ge=0)
    """Weight of the value loss"""
    entropy_coef: float = Field(0.0, ge=0)
    """Weight of the entropy bonus"""
    initial_std: float = Field(1.0, gt=0, le=100)
    """Standard deviation of real-valued actions before training; 0.4 is often better for joints and motors"""
    max_grad_norm: float = Field(0.5, gt=0)
    """Gradients are clipped to this global norm"""
    adam_epsilon: float = Field(1e-5, gt=0)
    """Epsilon of Adam"""


MAX_PAYLOAD_BYTES = 128 * 2**20  # of a rollout or a publication; usual rollouts have about 1 MiB


class NetworkConfig(Section):
    """Separate policy and value networks of one shape; with images or a memory they share a trunk."""

    # The spec of a run holds these values as they are, under these names.
    path: ClassVar[str] = "network."

    hidden: tuple[int, ...] = Field((64, 64), min_length=1, max_length=8)
    """Width of each hidden layer"""
    activation: Literal["tanh", "relu"] = "tanh"
    """Non-linearity of the hidden layers"""
    memory: Literal["none", "lstm", "gru"] = "none"
    """Recurrent layer between the hidden layers and the heads, for what one observation does not show"""
    memory_size: int = Field(64, ge=1, le=4096)
    """Width of the recurrent layer"""
    custom: str | None = Field(None, max_length=200)
    """A network of your own, module:Class; docs/networks-and-spaces.md describes its three methods"""

    @property
    def state_size(self) -> int:
        """Numbers that an actor carries from step to step: an LSTM's cell and output, or a GRU's output."""
        return {"none": 0, "lstm": 2, "gru": 1}[self.memory] * self.memory_size

    @model_validator(mode="after")
    def _widths(self) -> Self:
        if any(not 1 <= width <= 4096 for width in self.hidden):
            raise ConfigurationError(
                f"network.hidden: each width is from 1 to 4096 (got {list(self.hidden)})"
            )
        size = 4 * sum(a * b for a, b in zip(self.hidden, self.hidden[1:], strict=False))
        if size > MAX_PAYLOAD_BYTES:
            raise ConfigurationError(
                f"network.hidden: {list(self.hidden)} are {size / 2**20:.0f} MiB of weights, and a "
                f"publication may have {MAX_PAYLOAD_BYTES // 2**20}: use smaller or fewer layers"
            )
        return self


class EvaluationConfig(Section):
    """Greedy episodes with published weights, in environments of their own."""

    path: ClassVar[str] = "evaluation."

    enabled: Switch = True
    """Whether anything is evaluated; without it no policy is kept as the best one"""
    episodes: int = Field(20, ge=1, le=10_000)
    """Greedy episodes of one evaluation"""
    environments: int | None = Field(None, ge=1, le=10_000)
    """Copies of the environment that play the episodes; default: 20, or one for each core where a step is
    slow because it computes"""
    wrappers: tuple[str, ...] | None = None
    """Wrappers of these copies, instead of those of training; the flag without a value: no wrappers"""
    interval_s: float = Field(0.25, ge=0, le=86_400)
    """Least time between the starts of two evaluations; longer after costly ones, see max_share"""
    max_share: float = Field(0.05, gt=0, le=1)
    """Share of one core that evaluation may use"""
    limit_s: float = Field(60.0, gt=0, le=86_400)
    """Longest time of one evaluation; it then counts the episodes that have ended, and is not complete"""
    end_wait_s: float = Field(10.0, ge=0, le=86_400)
    """How long the end of a run waits for the last evaluation"""


class CheckpointConfig(Section):
    """When the whole learner is saved, and how many files are kept."""

    path: ClassVar[str] = "checkpoint."

    interval_s: float = Field(10.0, ge=0, le=86_400)
    """Time between two checkpoints; in lock-step mode there is one for each segment instead"""
    keep: int = Field(3, ge=1, le=1000)
    """Newest checkpoints kept"""
    milestone_steps: int | None = Field(None, ge=1, le=MOST_STEPS)
    """Trained steps between two checkpoints that are kept for ever; default: none"""


class RunConfig(Section):
    """One training run."""

    env_id: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")] = Field("", max_length=200)
    """Environment id of gymnasium, or module:EnvId"""
    env_kwargs: dict[str, EnvValue] = Field(default_factory=dict)
    """Arguments of the environment's constructor: NAME VALUE ..."""
    wrappers: tuple[str, ...] = ()
    """Wrappers around each environment, outermost last: AtariPreprocessing(frame_skip=4), module:Class"""
    frame_stack: int = Field(1, ge=1, le=64)
    """Last observations that the policy sees together; each travels once"""
    use_action_mask: bool = True
    """Never choose an action that the environment's info["action_mask"] forbids, where it has one"""
    env_timeout_s: float = Field(600.0, gt=0, le=86_400)
    """Longest time of one reset or step, and of building all copies of an actor; a process that takes
    longer is restarted"""
    env_retry_s: float = Field(30.0, ge=0, le=86_400)
    """Time to go on trying to build an environment that raises, with growing pauses"""
    vectorization: Vectorization = "auto"
    """How an actor steps its environments: one after another (sync), in processes (async) or in threads; auto
    takes a native vector version, else async where a step is slow, else sync"""
    open_rollouts: int = Field(3, ge=0, le=64)
    """Most rollouts that an actor samples at the same time (async, threads): an environment that has done its
    part of one begins the next; 0: all step together, as in lock-step mode"""
    actors: int = Field(2, ge=1, le=1000)  # actors that join later have slots from 1000 on
    """Actor processes started here; more may join from anywhere"""
    envs_per_actor: int = Field(8, ge=1, le=65_536)
    """Environments each actor steps together"""
    rollout_steps: int | None = Field(None, ge=1, le=1_000_000)
    """Steps of one rollout, T; default: batch_steps / (actors x envs_per_actor)"""
    total_steps: int = Field(500_000, ge=1, le=MOST_STEPS)
    """Budget: the run ends after this many trained environment steps"""
    target_return: float | None = None
    """The run ends when the mean return reaches this; default: train for the whole budget"""
    target_on: Literal["eval", "train"] = "eval"
    """What target_return is compared with: greedy evaluation, or the last 100 training episodes"""
    seed: int = Field(1, ge=0, lt=2**32)
    """Seed of networks, environments and sampling"""
    publish_every: int = Field(1, ge=1, le=1000)
    """Updates between two publications of weights"""
    max_staleness: int = Field(4, ge=0, le=10_000)
    """Oldest data trained on, in updates; older rollouts are dropped and counted; 0 in lock-step mode"""
    lock_step: bool = False
    """Staleness 0 and reproducible: each update takes the same number of rollouts of every actor"""
    segment_updates: int = Field(50, ge=1, le=1_000_000)
    """Lock-step mode: updates after which a checkpoint is written and all environments are rebuilt"""
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """Where the learner computes: auto, cpu, cuda or cuda:N"""
    init_from: str | None = Field(None, max_length=4096)
    """Begin with the trained network of a run's directory, a checkpoint or an export; not with --resume"""
    ppo: PpoConfig = PpoConfig()
    network: NetworkConfig = NetworkConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()

    @property
    def staleness_limit(self) -> int:
        """Oldest data trained on, in updates, in this run's mode."""
        return 0 if self.lock_step else self.max_staleness

    @field_validator("env_kwargs")
    @classmethod
    def _have_a_text(cls, values: dict[str, EnvValue]) -> dict[str, EnvValue]:
        """Refuse values that JSON (of the spec) or TOML (of the configuration file) cannot hold."""
        for value in values.values():
            _check_plain(value)
        return values

    @model_validator(mode="after")
    def _feasible(self) -> Self:
        if self.lock_step and self.publish_every != 1:
            raise ConfigurationError(
                f"lock_step trains every update on rollouts of its own weights (publish_every is "
                f"{self.publish_every}): set publish_every to 1"
            )
        if self.staleness_limit < self.publish_every and not self.lock_step:
            raise ConfigurationError(
                f"max_staleness ({self.max_staleness}) must be at least publish_every "
                f"({self.publish_every}), or every rollout would be dropped: "
                f"set max_staleness to {self.publish_every} or more"
            )
        if self.target_return is not None and self.target_on == "eval" and not self.evaluation.enabled:
            raise ConfigurationError(
                "target_return is compared with evaluations, and evaluation.enabled is false: "
                "set target_on to train (--target-on train), or leave evaluation on"
            )
        return self._one_network()

    def _one_network(self) -> Self:
        if self.network.custom is not None and self.network.memory != "none":
            raise ConfigurationError(
                "network.custom and network.memory cannot be used together: a custom network has no state"
            )
        return self


def _check_plain(value: Any) -> None:
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_plain(part)
    if isinstance(value, dict) and any(type(key) is not str for key in value):
        raise ValueError(f"{value!r} has keys that are not strings, which JSON cannot hold")
    is_plain = isinstance(value, bool | int | float | str | list | dict)
    if not is_plain or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{value!r} is not a number, string, list or mapping of these")
