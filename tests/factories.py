"""Makes values for tests: a test passes the values that matter to it, the rest is fixed."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dppo_redis.environments.inspect import inspect
from dppo_redis.environments.make import make_plain
from dppo_redis.policy.actor_critic import Actions, ActorCritic, to_actions
from dppo_redis.policy.networks import Inputs, to_inputs
from dppo_redis.policy.numpy_policy import ActingPolicy
from dppo_redis.protocol.config import EnvValue, NetworkConfig, PpoConfig, RunConfig
from dppo_redis.protocol.reports import RunSummary
from dppo_redis.protocol.rollout import LAYOUTS, Rollout, RolloutHeader, array_forms
from dppo_redis.protocol.run_plan import describe_started
from dppo_redis.protocol.spec import EnvironmentSource, JoinSettings, RunDescription, Spec, source_of
from dppo_redis.protocol.weights import Weights
from dppo_redis.spaces.actions import ActionSpec, BoxSpec, DiscreteSpec
from dppo_redis.spaces.environment_spaces import EnvironmentSpaces
from dppo_redis.spaces.observations import Array, BoolArray, Field, FloatArray, ObservationSpec
from learner.ppo.batch import Batch, stack
from workers.collect import Collector
from workers.envs import Environments
from workers.seeding import actor_seeds

GOLDEN = Path(__file__).parent / "golden"
CPU = torch.device("cpu")
TERMINATING = "tests.envs:Terminating-v0"
TRUNCATING = "tests.envs:Truncating-v0"

Row = tuple[int, int]  # (t, n)


def source(env_id: str, *wrappers: str, **kwargs: EnvValue) -> EnvironmentSource:
    """How to build an environment."""
    return EnvironmentSource(env_id, kwargs, wrappers)


def discrete(n: int = 3, start: int = 0) -> ActionSpec:
    return ActionSpec(DiscreteSpec(n=n, start=start))


def box(*bounds: tuple[float, float], dtype: str = "float32") -> ActionSpec:
    """A vector of continuous actions, one (low, high) for each dimension; two of (-1, 1) if none."""
    bounds = bounds or ((-1.0, 1.0), (-1.0, 1.0))
    low, high = zip(*bounds, strict=True)
    return ActionSpec(BoxSpec(shape=(len(bounds),), low=low, high=high, dtype=dtype))


def make_spec(
    *,
    action: ActionSpec | None = None,
    observation_size: int = 2,
    rollout_steps: int = 4,
    hidden: tuple[int, ...] = (8,),
    activation: Literal["tanh", "relu"] = "tanh",
    env_id: str = TERMINATING,
    env_kwargs: dict[str, EnvValue] | None = None,
    wrappers: tuple[str, ...] = (),
    observation: ObservationSpec | None = None,
    network: NetworkConfig | None = None,
    frame_stack: int = 1,
    normalise_observations: bool = False,
    return_discount: float | None = None,
) -> Spec:
    return Spec(
        environment=EnvironmentSource(env_id, env_kwargs or {}, wrappers),
        observation=observation or ObservationSpec.vector(observation_size),
        action=action or discrete(2),
        rollout_steps=rollout_steps,
        network=network or NetworkConfig(hidden=hidden, activation=activation),
        frame_stack=frame_stack,
        normalise_observations=normalise_observations,
        return_discount=return_discount,
    )


def make_description(spec: Spec | None = None, **join: Any) -> RunDescription:
    defaults = JoinSettings(
        seed=1,
        envs_per_actor=2,
        vectorization="sync",
        evaluation_episodes=2,
        evaluation_interval_s=0.25,
        evaluation_max_share=0.05,
        env_timeout_s=60.0,
    )
    return RunDescription(spec or make_spec(), replace(defaults, **join))


def make_config(**knobs: Any) -> RunConfig:
    return RunConfig.model_validate(knobs)


def make_ppo(**knobs: Any) -> PpoConfig:
    return PpoConfig.model_validate(knobs)


def make_model(spec: Spec, seed: int = 0) -> ActorCritic:
    """A freshly initialised network; torch's own random stream is left as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return ActorCritic(spec).eval()


def constant_model(spec: Spec, outputs: Sequence[float], log_std: float = 0.0) -> ActorCritic:
    """A network whose logits or means are `outputs` for every input."""
    model = make_model(spec)
    with torch.no_grad():
        head = model.policy[-1]
        assert isinstance(head, torch.nn.Linear)
        head.weight.zero_()
        head.bias.copy_(torch.tensor(outputs))
        if spec.action.dimensions:
            model.log_std.fill_(log_std)
    return model


def scattered_model(spec: Spec, seed: int = 0) -> ActorCritic:
    """A network like one after long training: large weights, biases, and no two deviations alike."""
    model = make_model(spec, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return model


def make_weights(spec: Spec, model: ActorCritic | None = None, **identity: Any) -> Weights:
    """A publication of `model`; `identity` may set epoch, version, update and the step counts."""
    weights = Weights(
        epoch=1,
        version=1,
        update=0,
        trained_steps=0,
        settled_steps=0,
        spec=spec.digest(),
        arrays=(model or make_model(spec)).acting_arrays(),
    )
    return replace(weights, **identity)


def make_policy(spec: Spec, model: ActorCritic | None = None) -> ActingPolicy:
    return ActingPolicy(make_weights(spec, model), spec)


def make_header(spec: Spec | None = None, **fields: Any) -> RolloutHeader:
    """The first rollout of slot 0 in a run of `spec`; `fields` replace its values."""
    header = RolloutHeader(
        actor=0,
        boot="00000000deadbeef",
        seq=1,
        epoch=1,
        version=1,
        update=0,
        steps=8,
        crc=0,
        spec=(spec or make_spec()).digest(),
    )
    return replace(header, **fields)


def make_rollout(
    spec: Spec,
    *,
    count: int = 2,
    seed: int = 0,
    terminated: Iterable[Row] = (),
    truncated: Iterable[Row] = (),
    invalid: Iterable[Row] = (),
    policy: ActingPolicy | None = None,
    **arrays: Any,
) -> Rollout:
    """A rollout of random numbers that `validate` accepts, with episode ends at the rows named.

    With `policy` the log-probabilities are its own; `arrays` replace whole fields.
    """
    rng = np.random.default_rng(seed)
    rows = (spec.rollout_steps, count)
    ended, cut, dummy = (_marked(rows, places) for places in (terminated, truncated, invalid))
    forms = array_forms(spec, count, int((ended | cut).sum()))
    found = {name: _random_array(rng, LAYOUTS[name].row, *form, spec) for name, form in forms.items()}
    log_probs = -np.abs(found["log_probs"])
    if policy is not None:
        flat = found["observations"].reshape(-1, *spec.observation.row_shape)
        log_probs = policy.log_probs(policy.outputs(flat).reshape(*rows, -1), found["actions"])
    returns, lengths = slow_episodes(found["rewards"], ended | cut, ~dummy)
    rollout = replace(
        Rollout(**found),
        log_probs=log_probs,
        terminated=ended,
        truncated=cut,
        valid=~dummy,
        episode_returns=np.array(returns, np.float32),
        episode_lengths=np.array(lengths, np.int32),
    )
    return replace(rollout, **arrays)


def _random_array(
    rng: np.random.Generator, row: str, shape: tuple[int, ...], dtype: np.dtype[Any], spec: Spec
) -> Array:
    """Random rows and real numbers; zeros where it holds flags or counts."""
    if row in ("observation", "frames"):
        return random_observations(rng, shape[: len(shape) - len(spec.observation.row_shape)], spec)
    if row == "action":
        return random_actions(rng, shape[:2], spec.action)
    return rng.standard_normal(shape, dtype.type) if dtype.kind == "f" else np.zeros(shape, dtype)


def inputs_of(spec: Spec, rows: Array) -> Inputs:
    """Rows [B, (k,) ...] of observations as the network of `spec` reads them, not normalised."""
    return to_inputs(spec.observation, rows, spec.frame_stack, None, CPU)


def actions_of(spec: Spec, rows: Array) -> Actions:
    """Rows [B, ...] of actions as tensors."""
    return to_actions(spec.action, rows, CPU)


def make_batch(spec: Spec, *, count: int = 2, seed: int = 0, **rollout: Any) -> Batch:
    """A batch of one rollout."""
    return stack([make_rollout(spec, count=count, seed=seed, **rollout)])


def normal(rng: np.random.Generator, *shape: int) -> FloatArray:
    return rng.standard_normal(shape, dtype=np.float32)


def random_actions(rng: np.random.Generator, rows: tuple[int, ...], action: ActionSpec) -> Array:
    categories = rng.integers(0, np.asarray(action.categories, np.int64), (*rows, len(action.categories)))
    return action.join(categories, normal(rng, *rows, action.dimensions))


def random_observations(rng: np.random.Generator, lead: tuple[int, ...], spec: Spec) -> Array:
    """Rows [*lead, ...] of any observation space; everything is allowed where there is a mask."""
    observation = spec.observation
    rows = np.zeros(lead + observation.row_shape, observation.row_dtype)
    for field in observation.fields:
        part = _random_part(rng, lead + field.shape, field)
        if observation.is_plain:
            return part
        rows[field.name] = part
    return rows


def _random_part(rng: np.random.Generator, shape: tuple[int, ...], field: Field) -> Array:
    if field.kind == "vector" and field.wire_dtype == np.float32:
        return normal(rng, *shape)
    sizes = np.asarray(field.sizes or 2 if field.kind in ("binary", "mask", "categories") else 256)
    lowest = 1 if field.kind == "mask" else 0
    return rng.integers(lowest, sizes, shape).astype(field.wire_dtype)


def _marked(rows: Row, places: Iterable[Row]) -> BoolArray:
    last_sequence_numbers = np.zeros(rows, np.bool_)
    for place in places:
        last_sequence_numbers[place] = True
    return last_sequence_numbers


def slow_episodes(rewards: FloatArray, ends: BoolArray, valid: BoolArray) -> tuple[list[float], list[int]]:
    """Returns and lengths of the episodes that end, in row order, by walking row after row."""
    count = rewards.shape[1]
    running, steps = [0.0] * count, [0] * count
    returns, lengths = [], []
    for t, n in np.ndindex(*rewards.shape):
        running[n] += float(rewards[t, n])
        steps[n] += int(valid[t, n])
        if ends[t, n]:
            returns.append(running[n])
            lengths.append(steps[n])
            running[n], steps[n] = 0.0, 0
    return returns, lengths


def make_vector(
    env_id: str, kwargs: Sequence[dict[str, EnvValue]], mode: AutoresetMode = AutoresetMode.SAME_STEP
) -> SyncVectorEnv:
    """One environment for each entry of `kwargs`, in the reset mode asked for."""
    builders = [partial(make_plain, EnvironmentSource(env_id, one), masked=False) for one in kwargs]
    return SyncVectorEnv(builders, autoreset_mode=mode)


def make_environments(
    env_id: str = TERMINATING,
    kwargs: Sequence[dict[str, EnvValue]] = ({}, {}),
    mode: AutoresetMode = AutoresetMode.SAME_STEP,
) -> Environments:
    return Environments(make_vector(env_id, kwargs, mode), seeds=list(range(len(kwargs))))


def make_collector(environments: Environments, spec: Spec, seed: int = 1) -> Collector:
    return Collector(environments, spec, actor_seeds(seed, slot=0, boot=0, count=environments.count))


def copied(rollout: Rollout) -> Rollout:
    """A copy of a rollout, which the collector's next call does not change."""
    return replace(rollout, **{name: array.copy() for name, array in vars(rollout).items()})


def make_summary(**known: Any) -> RunSummary:
    """The summary of a serial run that was stopped at once; `known` replaces values."""
    nothing: dict[str, Any] = dict.fromkeys(("return_mean", "train_return_mean", "target_step"))
    steps = dict.fromkeys(("settled_steps", "trained_steps", "updates", "return_episodes"), 0)
    times = dict.fromkeys(("train_s", "wall_s", "steps_per_s"), 0.0)
    return RunSummary(**{**nothing, **steps, **times, "reason": "stopped", "run_dir": "run", **known})


def spaces_of(config: RunConfig) -> EnvironmentSpaces:
    """The spaces of the environment of `config`, inspected in this process."""
    return inspect(source_of(config), use_mask=config.use_action_mask)


def describe(config: RunConfig) -> RunDescription:
    """The description of a run that was started by the environment that is installed here."""
    return describe_started(config, spaces_of(config))
