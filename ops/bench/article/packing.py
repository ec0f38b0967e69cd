"""Packed arrays against an object for each step, on the wire.

One rollout goes through Redis and becomes arrays [T, N] again, in four forms: as the product packs it; a
pickled list of one tuple of arrays for each step; a message of the product's format for each step; a
pickled tuple for each step. The last two are an entry for each step, pushed one by one as a worker without
rollouts does. Computing time of sender, receiver and server together, one process, all forms in turn. The
first form includes the checks that the learner makes (structure, shapes, numbers); the others have none.
"""

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np

from dppo_redis.environments.child import spaces_of
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.rollout import Rollout
from dppo_redis.protocol.run_plan import RunPlan, plan
from dppo_redis.protocol.spec import Spec
from dppo_redis.protocol.wire import decode_rollout, encode_rollout
from dppo_redis.store.client import Client
from learner.intake.decoder import RolloutDecoder
from ops.bench.article.findings import Finding
from ops.bench.gradient import sampled
from ops.bench.rounds import in_rounds, ratios_to, shown
from ops.bench.server import own_server, server_cpu_s

REPEATS = 5
ENVIRONMENTS, STEPS = 8, 128
TASKS = {"vectors": "CartPole-v1", "images": "ops.bench.pixel_catch:PixelCatch-v0"}
FORMS = ("packed arrays", "pickled list of steps", "a message a step", "a pickle a step")
_LEAST_S = 0.2  # of computing time in a sample
_PER_STEP = ("observations", "actions", "log_probs", "rewards", "terminated", "truncated", "valid")
_KEY = "bench:steps"
Arrays = dict[str, Any]  # [T, N, ...] by name
Form = tuple[Callable[[Rollout], list[bytes]], Callable[[list[bytes]], Arrays]]  # to entries, and back


@dataclass(frozen=True)
class Sample:
    """One rollout in one form."""

    us: float  # of computing time
    bytes: int  # of all its entries' payloads


def measure(repeats: int) -> Finding:
    """Measure all forms of all tasks in rounds."""
    header = ["", "entries", "bytes a step", "us of computing time a rollout", "ratio"]
    rows: list[list[object]] = []
    ratios: dict[str, list[float]] = {}
    samples: dict[str, list[float]] = {}
    with own_server() as (client, _):
        for task, env_id in TASKS.items():
            planned = _plan(env_id)
            rollout, forms = sampled(planned)[0], make_forms(planned.description.spec)
            kinds = {name: partial(_sample, client, form, rollout) for name, form in forms.items()}
            found = in_rounds(kinds, repeats)
            times = {name: [one.us for one in values] for name, values in found.items()}
            by_packed = ratios_to(FORMS[0], times)
            for name, values in found.items():
                entries = len(forms[name][0](rollout))
                ratio = shown(by_packed.get(name, [1.0]), 1)
                per_step = values[0].bytes / rollout.rewards.size
                rows.append([f"{task}, {name}", entries, f"{per_step:.1f}", shown(times[name], 0), ratio])
            ratios |= {f"{task}: computing time of {name} by packed": v for name, v in by_packed.items()}
            samples |= {f"{task}, {name}": [round(us, 1) for us in values] for name, values in times.items()}
    return Finding(header, rows, ratios, samples)


def _plan(env_id: str) -> RunPlan:
    values: dict[str, Any] = {
        "env_id": env_id,
        "envs_per_actor": ENVIRONMENTS,
        "rollout_steps": STEPS,
        "device": "cpu",
        "ppo": {"batch_steps": ENVIRONMENTS * STEPS},
    }
    config = RunConfig.model_validate(values)
    return plan(config, spaces_of(config), serial=True)


def make_forms(spec: Spec) -> dict[str, Form]:
    """How each form becomes entries, and arrays again."""
    decoder, one_step = RolloutDecoder(spec), replace(spec, rollout_steps=1)
    whole: Form = (
        lambda rollout: [encode_rollout(rollout)],
        lambda entries: vars(decoder.decode(entries[0])),
    )
    pickled: Form = (
        lambda rollout: [pickle.dumps(list(_steps(rollout)), protocol=5)],
        lambda entries: _stacked(pickle.loads(entries[0])),  # noqa: S301 written by this process
    )
    messages: Form = (
        lambda rollout: [encode_rollout(_cut(rollout, t)) for t in range(len(rollout.rewards))],
        lambda entries: _stacked([_values(decode_rollout(entry, one_step)) for entry in entries]),
    )
    pickles: Form = (
        lambda rollout: [pickle.dumps(step, protocol=5) for step in _steps(rollout)],
        lambda entries: _stacked([pickle.loads(entry) for entry in entries]),  # noqa: S301
    )
    return dict(zip(FORMS, (whole, pickled, messages, pickles), strict=True))


def _steps(rollout: Rollout) -> Iterator[tuple[Any, ...]]:
    """For each step, its arrays [N, ...]."""
    columns = [getattr(rollout, name) for name in _PER_STEP]
    for t in range(len(rollout.rewards)):
        yield tuple(column[t] for column in columns)


def _cut(rollout: Rollout, t: int) -> Rollout:
    """One step as a rollout of its own; what belongs to the whole rollout goes with the last one."""
    arrays = {name: getattr(rollout, name)[t : t + 1] for name in _PER_STEP}
    if t < len(rollout.rewards) - 1:
        for name in ("final_observations", "last_observations", "episode_returns", "episode_lengths"):
            arrays[name] = getattr(rollout, name)[:0]
    return replace(rollout, **arrays)


def _values(rollout: Rollout) -> tuple[Any, ...]:
    return tuple(getattr(rollout, name)[0] for name in _PER_STEP)


def _stacked(steps: Sequence[tuple[Any, ...]]) -> Arrays:
    columns = zip(*steps, strict=True)
    return {name: np.stack(column) for name, column in zip(_PER_STEP, columns, strict=True)}


def _sample(client: Client, form: Form, rollout: Rollout, _number: int) -> Sample:
    """Send it often enough to be measured."""
    encode, decode = form
    own, server, done = time.process_time(), server_cpu_s(client), 0
    while time.process_time() - own < _LEAST_S or not done:
        decode(_through_redis(client, encode(rollout)))
        done += 1
    seconds = time.process_time() - own + server_cpu_s(client) - server
    return Sample(1e6 * seconds / done, sum(map(len, encode(rollout))))


def _through_redis(client: Client, entries: Sequence[bytes]) -> list[bytes]:
    """Push one by one; read and delete all at once."""
    for entry in entries:
        client.xadd(_KEY, {"payload": entry})
    found = cast(list[Any], client.xrange(_KEY))
    client.delete(_KEY)
    return [fields[b"payload"] for _, fields in found]
