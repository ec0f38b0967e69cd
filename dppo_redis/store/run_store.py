"""Reads and writes a run's small keys: spec, control, status, evaluation, metrics, quarantine, errors."""

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import redis

from dppo_redis.command_line.nearest import list_by_similarity
from dppo_redis.errors import ConfigurationError
from dppo_redis.protocol.report_fields import from_fields, from_whole_fields, to_fields
from dppo_redis.protocol.reports import Control, Evaluation, EvaluatorReport
from dppo_redis.service.renewal import HolderReading
from dppo_redis.store.client import Client
from dppo_redis.store.keys import RUNS, SPEC_PATTERN, RunKeys, is_run_name, run_of
from dppo_redis.store.scripts import source

if TYPE_CHECKING:
    from dppo_redis.protocol.spec import RunDescription

METRICS_KEPT = 10_000
QUARANTINE_KEPT = 1000
ERRORS_KEPT = 200
QUARANTINE_BYTES = 256
QUARANTINE_NAME_BYTES = 64
FINISHED_TTL_S = 7 * 24 * 3600
_START_OR_CHECK = "check the URL, or start a run with dppo-redis train ENV --redis URL"

RUN, PAUSE, STOP = "run", "pause", "stop"


@dataclass(frozen=True)
class Counters:
    """The stream's own counters and the ledger, read at one moment."""

    entries_added: int  # of the present stream; 0 if there is none
    backlog: int
    ledger: dict[str, int]
    stream_bytes: int  # of the present stream, in the server's memory


def read_counters(client: Client, keys: RunKeys) -> Counters:
    """Read the counters with a script in the server, so that they are of one moment."""
    script = client.register_script(source("counters"))
    added, backlog, ledger, size = cast(list[Any], script(keys=[keys.rollouts, keys.ledger]))
    counts = parse_counts(dict(zip(ledger[::2], ledger[1::2], strict=True)))
    return Counters(int(added), int(backlog), counts, int(size))


def parse_counts(stored: Any) -> dict[str, int]:
    """A stored hash of counts; empty if the key is missing, of another type or unreadable."""
    if not isinstance(stored, dict):
        return {}
    return {
        name.decode(errors="replace"): int(count)
        for name, count in stored.items()
        if count.isdigit() and len(count) < 19
    }


ROLLOUT_STEPS = "rollout_steps"  # field of `:control`, written by the keeper


def read_rollout_steps(steps: bytes | None) -> int | None:
    """The wanted length of rollouts in `:control`; None if it has none."""
    return int(steps) or None if steps and steps.isdigit() and len(steps) < 10 else None


def read_lease(value: bytes) -> tuple[str, str | None]:
    """(holder, beat) of a lease; the beat changes with each renewal, and is None in older releases."""
    holder, _, beat = value.decode(errors="replace").partition(" ")
    return holder, beat or None


class RunStore:
    """The small keys of one run. Redis errors pass through; callers translate them."""

    def __init__(self, client: Client, keys: RunKeys) -> None:
        self._client = client
        self.keys = keys

    def exists(self) -> bool:
        """Whether any key of the run exists, actors' own hashes aside, which expire within seconds."""
        return bool(self._client.exists(*self.keys.types()))

    def other_runs(self) -> list[str]:
        """Names of the other runs on the server; none for a user of one role, which may not list them."""
        if self._client.connection_pool.connection_kwargs.get("username") not in (None, "default"):
            return []  # the server would log a refused command
        listed = [run for run in _listed_runs(self._client) if run != self.keys.run]
        return _with_a_spec(self._client, listed) if listed else []

    def delete(self) -> None:
        """Remove every key of the run by name, without a scan: a server may hold a million other keys."""
        pipeline = self._client.pipeline(transaction=False)
        pipeline.zrange(self.keys.actors, 0, -1)
        pipeline.hkeys(self.keys.boots)
        found = [names for names in pipeline.execute(raise_on_error=False) if isinstance(names, list)]
        slots = {int(name) for names in found for name in names if name.isdigit() and len(name) < 10}
        self._client.unlink(*self.keys.types(), *(self.keys.actor(slot) for slot in sorted(slots)))
        with contextlib.suppress(redis.ResponseError):  # with an access file of an older release
            self._client.zrem(RUNS, self.keys.run)

    def description_text(self) -> str | None:
        """The content of the spec key; None while no learner has written it."""
        text = cast(bytes | None, self._client.get(self.keys.spec))
        return None if text is None else text.decode(errors="replace")

    def description(self) -> "RunDescription | None":
        """The description that actors join with; None while no learner has written it.

        Raises:
            ConfigurationError: another release wrote the spec, or it is damaged.
        """
        from dppo_redis.protocol.spec import RunDescription  # numpy and pydantic, which `status` does without

        text = self.description_text()
        return None if text is None else RunDescription.from_text(text)

    def control(self) -> Control:
        """The state that the operator requested; a missing key means run."""
        return from_fields(Control, {"state": RUN, **self._hash(self.keys.control)})

    def orders(self) -> tuple[str, int | None]:
        """The state, and the wanted length of rollouts (None: as in the spec), for an actor in a long one."""
        state, steps = cast(
            list[bytes | None], self._client.hmget(self.keys.control, ["state", ROLLOUT_STEPS])
        )
        return (state or RUN.encode()).decode(errors="replace"), read_rollout_steps(steps)

    def claim(self) -> bool:
        """Reserve the name of a new run before anything else is written; False if another process has it."""
        fields = to_fields(Control(RUN, "", None))
        return int(self._client.hset(self.keys.control, mapping=cast(Any, fields))) == len(fields)

    def set_state(self, state: str, reason: str = "", target_step: int | None = None) -> None:
        """Ask the whole fleet to run, pause or stop."""
        fields = to_fields(Control(state, reason, target_step))
        self._client.hset(self.keys.control, mapping=cast(Any, fields))

    def status(self) -> dict[str, str]:
        """The fields of the status hash, which the learner's keeper wrote last."""
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
        """The evaluator's report, which is stored beside the evaluation."""
        return from_fields(EvaluatorReport, self._hash(self.keys.evaluation))

    def write_evaluator(self, report: EvaluatorReport) -> None:
        """Replace the evaluator's report."""
        self._client.hset(self.keys.evaluation, mapping=cast(Any, to_fields(report)))

    def write_evaluation(
        self, fields: Mapping[str, str | int | float], report: EvaluatorReport | None = None
    ) -> None:
        """Record a complete evaluation in its key and in the metrics stream; the report only in the key."""
        reported = to_fields(*([report] if report is not None else []))
        self._client.hset(self.keys.evaluation, mapping=cast(Any, {**fields, **reported}))
        self.append_metrics({"kind": "evaluation", **fields})

    def append_metrics(self, fields: Mapping[str, str | int | float]) -> None:
        """Add one plain entry to the capped metrics stream."""
        self._append(self.keys.metrics, fields, METRICS_KEPT)

    def quarantine(self, entry_id: bytes, reason: str, detail: str, fields: Mapping[bytes, bytes]) -> None:
        """Keep the first part of a refused entry for inspection."""
        head = {
            b"field:" + name[:QUARANTINE_NAME_BYTES]: value[:QUARANTINE_BYTES]
            for name, value in list(fields.items())[:16]
        }
        record: dict[Any, Any] = {"entry": entry_id, "reason": reason, "detail": detail, **head}
        self._append(self.keys.quarantine, record, QUARANTINE_KEPT)

    def append_error(self, service: str, text: str) -> None:
        """Record a traceback for the operator."""
        self._append(self.keys.errors, {"service": service, "error": text[-4000:]}, ERRORS_KEPT)

    def _append(self, key: str, fields: Mapping[Any, Any], kept: int) -> None:
        """Add to a capped stream. A full server loses the record; logs and files have it, too."""
        with contextlib.suppress(redis.exceptions.OutOfMemoryError):
            self._client.xadd(key, dict(fields), maxlen=kept, approximate=True)

    def lease(self) -> HolderReading:
        """One reading of the lease: its holder, its time left and its beat."""
        value = cast(bytes | None, self._client.get(self.keys.lease))
        left_s = max(0, int(self._client.pttl(self.keys.lease))) / 1000
        if not value:
            return HolderReading(None, left_s)
        holder, beat = read_lease(value)
        return HolderReading(holder, left_s, beat)

    def reopen(self) -> None:
        """Prepare a resume: set the state to run, and keep all keys."""
        pipeline = self._client.pipeline(transaction=False)
        for key in self._lasting():
            pipeline.persist(key)
        pipeline.execute()
        self.set_state(RUN)

    def retire(self) -> None:
        """Clean up after the end: delete the stream, and let the other keys expire in seven days."""
        pipeline = self._client.pipeline(transaction=False)
        pipeline.unlink(self.keys.rollouts)
        for key in self._lasting():
            pipeline.expire(key, FINISHED_TTL_S)
        pipeline.execute()

    def _lasting(self) -> list[str]:
        """All keys but the actors' hashes and the lease, which must expire for the next learner."""
        return [key for key in self.keys.types() if not self.keys.expires_by_itself(key)]

    def _hash(self, key: str) -> dict[str, str]:
        stored = cast(dict[bytes, bytes], self._client.hgetall(key))
        return {
            name.decode(errors="replace"): value.decode(errors="replace") for name, value in stored.items()
        }


def list_run(client: Client, run: str) -> None:
    """List a run for `find_runs`. Errors are ignored: an older access file may forbid this write."""
    with contextlib.suppress(redis.ResponseError):
        client.zadd(RUNS, {run: time.time()})


def find_runs(client: Client) -> list[str]:
    """Names of all runs on a server. If none is listed (older releases list none), its keys are searched."""
    listed = _listed_runs(client)
    if not listed:
        keys = client.scan_iter(match=SPEC_PATTERN, count=1000)
        return sorted(run_of(key.decode(errors="replace")) for key in keys)
    return _with_a_spec(client, listed)


def _listed_runs(client: Client) -> list[str]:
    """Names that learners have listed; none if this user may not read the list."""
    try:
        found = cast(list[bytes], client.zrange(RUNS, 0, -1))
    except redis.ResponseError:
        return []
    return [run for run in sorted(name.decode(errors="replace") for name in found) if is_run_name(run)]


def _with_a_spec(client: Client, listed: list[str]) -> list[str]:
    pipeline = client.pipeline(transaction=False)
    for run in listed:
        pipeline.exists(RunKeys(run).spec)
    answers = pipeline.execute(raise_on_error=False)  # a user may have access to one run only
    return [run for run, is_there in zip(listed, answers, strict=True) if is_there == 1]


def only_run(client: Client) -> str:
    """The name of the one run on a server.

    Raises:
        ConfigurationError: there is no run, or there are several.
    """
    runs = find_runs(client)
    if not runs:
        raise ConfigurationError(f"this Redis has no run: {_START_OR_CHECK}")
    if len(runs) != 1:
        raise ConfigurationError(f"name the run with --run; this Redis has: {', '.join(runs[:10])}")
    return runs[0]


def missing_run(client: Client, run: str) -> ConfigurationError:
    """An error which says that a server has no run of this name, and which runs it has."""
    others = list_by_similarity(run, find_runs(client))
    rest = f"; it has: {others}" if others else f" and no other run: {_START_OR_CHECK}"
    return ConfigurationError(f"this Redis has no run {run}{rest}")
