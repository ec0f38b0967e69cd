"""A run's small keys: spec, control, status, evaluation, metrics, quarantine, errors."""

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import redis

from dppo_redis.command_line.nearest import listed_instead
from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.report_fields import from_fields, from_whole_fields, to_fields
from dppo_redis.protocol.reports import Control, Evaluation, EvaluatorReport
from dppo_redis.protocol.spec import RunDescription
from dppo_redis.service.renewal import HolderReading
from dppo_redis.store.client import Client
from dppo_redis.store.fenced_writes import read_lease
from dppo_redis.store.keys import RUNS, SPEC_PATTERN, RunKeys, is_run_name, run_of
from dppo_redis.store.scripts import source

METRICS_KEPT = 10_000
QUARANTINE_KEPT = 1000
ERRORS_KEPT = 200
QUARANTINE_BYTES = 256
QUARANTINE_NAME_BYTES = 64
FINISHED_TTL_S = 7 * 24 * 3600

RUN, PAUSE, STOP = "run", "pause", "stop"


@dataclass(frozen=True)
class Counters:
    """The stream's own counters and the ledger, read at one moment."""

    entries_added: int  # of the present stream; 0 where there is none
    backlog: int
    ledger: dict[str, int]
    stream_bytes: int  # of the present stream, in the server's memory


def read_counters(client: Client, keys: RunKeys) -> Counters:
    """Read them inside the server, so that they belong together."""
    script = client.register_script(source("counters"))
    added, backlog, ledger, size = cast(list[Any], script(keys=[keys.rollouts, keys.ledger]))
    counts = parse_counts(dict(zip(ledger[::2], ledger[1::2], strict=True)))
    return Counters(int(added), int(backlog), counts, int(size))


def parse_counts(stored: Any) -> dict[str, int]:
    """A hash of counts as stored; empty when the key is gone, of another type or unreadable."""
    if not isinstance(stored, dict):
        return {}
    return {
        name.decode(errors="replace"): int(count)
        for name, count in stored.items()
        if count.isdigit() and len(count) < 19
    }


ROLLOUT_STEPS = "rollout_steps"  # field of `:control`, written by the keeper


def read_rollout_steps(steps: bytes | None) -> int | None:
    """The wanted length of rollouts as `:control` has it; None where it does not say."""
    return int(steps) or None if steps and steps.isdigit() and len(steps) < 10 else None


class RunStore:
    """The small keys of one run. Redis errors pass through; callers translate them."""

    def __init__(self, client: Client, keys: RunKeys) -> None:
        self._client = client
        self.keys = keys

    def exists(self) -> bool:
        """Whether any key of the run is there; actors' own hashes run out within seconds."""
        return bool(self._client.exists(*self.keys.types()))

    def other_runs(self) -> list[str]:
        """Names of the other runs on the server; none for a user of one role, who may not see them."""
        if self._client.connection_pool.connection_kwargs.get("username") not in (None, "default"):
            return []  # asking would count as a refused right
        listed = [run for run in _listed_runs(self._client) if run != self.keys.run]
        return _with_a_spec(self._client, listed) if listed else []

    def delete(self) -> None:
        """Remove every key of the run: their names are known, and a server may hold a million others."""
        pipeline = self._client.pipeline(transaction=False)
        pipeline.zrange(self.keys.actors, 0, -1)
        pipeline.hkeys(self.keys.boots)
        found = [names for names in pipeline.execute(raise_on_error=False) if isinstance(names, list)]
        slots = {int(name) for names in found for name in names if name.isdigit() and len(name) < 10}
        self._client.unlink(*self.keys.types(), *(self.keys.actor(slot) for slot in sorted(slots)))
        with contextlib.suppress(redis.ResponseError):  # of an access file of an older release
            self._client.zrem(RUNS, self.keys.run)

    def description_text(self) -> str | None:
        """The content of the spec key; None while no learner has written it."""
        text = cast(bytes | None, self._client.get(self.keys.spec))
        return None if text is None else text.decode(errors="replace")

    def description(self) -> RunDescription | None:
        """What actors join with; None while no learner has written it.

        Raises:
            ConfigurationError: another release's spec.
        """
        text = self.description_text()
        return None if text is None else RunDescription.from_text(text)

    def control(self) -> Control:
        """What the operator wants; a missing key means run."""
        return from_fields(Control, {"state": RUN, **self._hash(self.keys.control)})

    def rollout_steps(self) -> int | None:
        """How long the rollouts of this fleet should be; None: as the spec has it."""
        (steps,) = cast(list[bytes | None], self._client.hmget(self.keys.control, [ROLLOUT_STEPS]))
        return read_rollout_steps(steps)  # an actor may HMGET this key, and not HGET it

    def claim(self) -> bool:
        """Reserve the name of a new run before anything else is written; False if another process has it."""
        fields = to_fields(Control(RUN, "", None))
        return int(self._client.hset(self.keys.control, mapping=cast(Any, fields))) == len(fields)

    def set_state(self, state: str, reason: str = "", target_step: int | None = None) -> None:
        """Ask the whole fleet to run, pause or stop."""
        fields = to_fields(Control(state, reason, target_step))
        self._client.hset(self.keys.control, mapping=cast(Any, fields))

    def status(self) -> dict[str, str]:
        """What the learner's keeper last wrote, and the fields that readers see."""
        return self._hash(self.keys.status)

    def counters(self) -> Counters:
        """The stream's counters and the ledger, for a summary."""
        return read_counters(self._client, self.keys)

    def ledger(self) -> dict[str, int]:
        """Settled rollouts and steps by outcome and reason."""
        return parse_counts(cast(Any, self._client.hgetall(self.keys.ledger)))

    def evaluation(self) -> Evaluation | None:
        """The last evaluation."""
        return from_whole_fields(Evaluation, self._hash(self.keys.evaluation))

    def evaluator(self) -> EvaluatorReport:
        """What the evaluator reports beside it."""
        return from_fields(EvaluatorReport, self._hash(self.keys.evaluation))

    def write_evaluator(self, report: EvaluatorReport) -> None:
        """Report how evaluations go."""
        self._client.hset(self.keys.evaluation, mapping=cast(Any, to_fields(report)))

    def write_evaluation(
        self, fields: Mapping[str, str | int | float], report: EvaluatorReport | None = None
    ) -> None:
        """Record a complete evaluation, now and in the metrics stream; the report beside it only now."""
        reported = to_fields(*([report] if report is not None else []))
        self._client.hset(self.keys.evaluation, mapping=cast(Any, {**fields, **reported}))
        self.append_metrics({"kind": "evaluation", **fields})

    def append_metrics(self, fields: Mapping[str, str | int | float]) -> None:
        """Add one plain entry to the capped metrics stream."""
        self._append(self.keys.metrics, fields, METRICS_KEPT)

    def quarantine(self, entry_id: bytes, reason: str, detail: str, fields: Mapping[bytes, bytes]) -> None:
        """Keep the head of a refused entry for inspection."""
        head = {
            b"field:" + name[:QUARANTINE_NAME_BYTES]: value[:QUARANTINE_BYTES]
            for name, value in list(fields.items())[:16]
        }
        record: dict[Any, Any] = {"entry": entry_id, "reason": reason, "detail": detail, **head}
        self._append(self.keys.quarantine, record, QUARANTINE_KEPT)

    def append_error(self, service: str, text: str) -> None:
        """Record a traceback where an operator finds it."""
        self._append(self.keys.errors, {"service": service, "error": text[-4000:]}, ERRORS_KEPT)

    def _append(self, key: str, fields: Mapping[Any, Any], kept: int) -> None:
        """Add to a capped stream; a full server loses the record, which the logs and files have too."""
        with contextlib.suppress(redis.exceptions.OutOfMemoryError):
            self._client.xadd(key, dict(fields), maxlen=kept, approximate=True)

    def lease(self) -> HolderReading:
        """Who leads, as far as one look can tell."""
        value = cast(bytes | None, self._client.get(self.keys.lease))
        left_s = max(0, int(self._client.pttl(self.keys.lease))) / 1000
        if not value:
            return HolderReading(None, left_s)
        holder, beat = read_lease(value)
        return HolderReading(holder, left_s, beat)

    def reopen(self) -> None:
        """Before a run is resumed: it runs again, and its keys stay."""
        pipeline = self._client.pipeline(transaction=False)
        for key in self._lasting():
            pipeline.persist(key)
        pipeline.execute()
        self.set_state(RUN)

    def retire(self) -> None:
        """After the end: delete the stream, let the other keys expire in seven days."""
        pipeline = self._client.pipeline(transaction=False)
        pipeline.unlink(self.keys.rollouts)
        for key in self._lasting():
            pipeline.expire(key, FINISHED_TTL_S)
        pipeline.execute()

    def _lasting(self) -> list[str]:
        """All but the lease and the actors' hashes: a dead learner's lease must run out for the next one."""
        return [key for key in self.keys.types() if not self.keys.expires_by_itself(key)]

    def _hash(self, key: str) -> dict[str, str]:
        stored = cast(dict[bytes, bytes], self._client.hgetall(key))
        return {
            name.decode(errors="replace"): value.decode(errors="replace") for name, value in stored.items()
        }


def list_run(client: Client, run: str) -> None:
    """Have `find_runs` find it; no error is worth ending for (an access file of an older release, say)."""
    with contextlib.suppress(redis.ResponseError):
        client.zadd(RUNS, {run: time.time()})


def find_runs(client: Client) -> list[str]:
    """Names of all runs on a server; where none is listed, as by older releases, its keys are searched."""
    listed = _listed_runs(client)
    if not listed:
        keys = client.scan_iter(match=SPEC_PATTERN, count=1000)
        return sorted(run_of(key.decode(errors="replace")) for key in keys)
    return _with_a_spec(client, listed)


def _listed_runs(client: Client) -> list[str]:
    """Names that learners have listed; none where this user may not see the list."""
    try:
        found = cast(list[bytes], client.zrange(RUNS, 0, -1))
    except redis.ResponseError:
        return []
    return [run for run in sorted(name.decode(errors="replace") for name in found) if is_run_name(run)]


def _with_a_spec(client: Client, listed: list[str]) -> list[str]:
    pipeline = client.pipeline(transaction=False)
    for run in listed:
        pipeline.exists(RunKeys(run).spec)
    answers = pipeline.execute(raise_on_error=False)  # a user may be bound to one run
    return [run for run, is_there in zip(listed, answers, strict=True) if is_there == 1]


def only_run(client: Client) -> str:
    """The name of the one run on a server.

    Raises:
        ConfigurationError: there is none, or several.
    """
    runs = find_runs(client)
    if len(runs) != 1:
        found = ", ".join(runs[:10]) if runs else "none"
        raise ConfigurationError(f"name the run with --run; this Redis has: {found}")
    return runs[0]


def missing_run(client: Client, run: str) -> ConfigurationError:
    """That a server has no run of this name, and which ones it has."""
    others = listed_instead(run, find_runs(client))
    return ConfigurationError(f"this Redis has no run {run}{f'; it has: {others}' if others else ''}")
