"""The contents of a server for these commands: runs in each state, and specs that an actor refuses."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import redis

from tests.photographs.product import spec_of

STATUS = {
    "state": "training",
    "alarm": "",
    "dropped_by_actor": "",
    "update": "1234",
    "trained_steps": "2527232",
    "budget_steps": "5000000",
    "target_return": "475.0",
    "train_s": "901.25",
    "steps_per_s": "2804.2",
    "steps_per_s_recent": "2790.5",
    "return_mean": "212.345",
    "episodes": "12345",
    "staleness_mean": "0.9342",
    "staleness_recent": "0.9512",
    "stale_share": "0.0131",
    "staleness_max": "3",
    "staleness_limit": "4",
    "learner_wait_share": "0.031",
    "checkpoint_update": "1200",
    "checkpoint_time": "1700000000.5",
    "save_failures": "0",
    "device": "cpu",
    "trained": "9872",
    "stale": "14",
    "duplicate": "2",
    "refused": "3",
    "lost": "5",
    "env_steps": "2540000",
    "epoch": "2",
    "version": "1237",
    "learner": "host:17:abcdef01",
    "actors": "2",
    "planned_actors": "2",
    "actor_wait_share": "0.2512",
    "backlog_high": "15",
    "entries_added": "9903",
    "backlog": "7",
    "imbalance": "0",
    "stream_bytes": "1048576",
    "valve_bytes": "67108864",
    "time": "4000000000.0",  # in the future, so that its age is always 0
}
LEDGER = {
    **{name: STATUS[name] for name in ("trained", "stale", "duplicate", "refused", "lost")},
    "refused:crc": "2",
    "refused:shape": "1",
    "lost:valve": "5",
    "steps:trained": "2527232",
    "steps:stale": "3584",
}
EVALUATION = {
    "version": "1230",
    "update": "1227",
    "trained_steps": "2512896",
    "env_steps": "2525000",
    "return_mean": "301.55",
    "return_std": "12.25",
    "length_mean": "301.55",
    "episodes": "20",
}
ACTORS = {
    0: {"fps": "1402.1", "version": "1237", "pushes": "4951", "wait_share": "0.2504", "boot": "1",
        "step_ms": "5.123", "vectorization": "async",
        "host": "here", "pid": "21", "last_error": "", "time": "4000000000.0"},
    1000: {"fps": "1399.7", "version": "1236", "pushes": "4952", "wait_share": "0.252", "boot": "3",
        "step_ms": "0.021", "vectorization": "native",
        "host": "there", "pid": "22", "last_error": "NaN in a reward", "time": "4000000000.0"},
}  # fmt: skip
QUARANTINED = {
    "entry": "1699999999999-0",
    "reason": "crc",
    "detail": "crc: the payload is not what was sent",
    "field:actor": "0",
    "field:seq": "17",
    "field:payload": bytes(range(40)),
}


@dataclass(frozen=True)
class State:
    """The differences from a run that trains."""

    status: Mapping[str, str] = field(default_factory=dict)
    control: Mapping[str, str] = field(default_factory=dict)
    has_status: bool = True


STATES = {
    "training": State(),
    "paused": State(control={"state": "pause"}),
    "stopped": State(control={"state": "stop", "reason": "target", "target_step": "2400000"}),
    "alarmed": State(status={"alarm": "no rollout is young enough: all of the last 20 were stale"}),
    "silent": State(status={"time": "1000000000.0"}),
    "waiting": State(has_status=False),
    "young": State(status=dict.fromkeys(("target_return", "return_mean"), "") | {"update": "0"}),
}


def _broken_specs() -> dict[str, str]:
    """Spec keys that an actor refuses, by their mistake."""
    text = spec_of({"env_id": "CartPole-v1"})[1]
    good: dict[str, Any] = json.loads(text)
    spec: dict[str, Any] = good["spec"]
    wide = {**spec, "observation": [{**spec["observation"][0], "shape": [5]}]}
    values = {
        "schema": {**good, "spec": {**spec, "wire_schema": 99}},
        "unknown": {**good, "spec": {**spec, "colour": "red"}},
        "missing": {**good, "spec": {name: value for name, value in spec.items() if name != "rollout_steps"}},
        "kind": {**good, "spec": {**spec, "rollout_steps": "128"}},
        "digest": {**good, "digest": 16 * "0"},
        "other": {**good, "spec": wide, "digest": digest_of(wide)},
    }
    planned = spec_of({"env_id": "CartPole-v1", "lock_step": True})[1]
    return {**{name: json.dumps(value) for name, value in values.items()}, "text": "{no", "planned": planned}


def digest_of(spec: Mapping[str, Any]) -> str:
    """The digest of a spec, computed as in all releases."""
    values = {name: value for name, value in spec.items() if name != "wire_schema"}
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


REFUSED = tuple(_broken_specs())


def furnish(client: redis.Redis) -> None:
    """Write all runs to an empty server."""
    for run, text in _broken_specs().items():
        client.set(_key(run, "spec"), text)
    client.set(_key("released", "spec"), spec_of({"env_id": "CartPole-v1"})[1])
    for run, state in STATES.items():
        _write(client, run, state)
    client.xadd(_key("training", "quarantine"), QUARANTINED, id="1700000000000-0")  # type: ignore[arg-type]


def _write(client: redis.Redis, run: str, state: State) -> None:
    control = {"state": "run", "reason": "", "target_step": "", **state.control}
    client.hset(_key(run, "control"), mapping=control)  # type: ignore[arg-type]
    if state.has_status:
        hashes = {"status": {**STATUS, **state.status}, "ledger": LEDGER, "evaluation": EVALUATION}
        for name, fields in hashes.items():
            client.hset(_key(run, name), mapping=fields)  # type: ignore[arg-type]
    for slot, report in ACTORS.items():
        client.hset(_key(run, f"actor:{slot}"), mapping=report)  # type: ignore[arg-type]
        client.zadd(_key(run, "actors"), {str(slot): 1.0})


def _key(run: str, name: str) -> str:
    return f"dppo:{{{run}}}:{name}"
