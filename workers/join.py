"""The steps of joining a run: connect, wait for its description, check the environment and the slot.

`check_run` later finds out whether the run has changed since the process joined it.
"""

import logging
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from dppo_redis.command_line.nearest import list_by_similarity
from dppo_redis.environments.copy_number import CopyNumber
from dppo_redis.environments.inspect import inspect
from dppo_redis.errors import (
    ConfigurationError,
    DamagedSpecError,
    EnvironmentBrokenError,
    EnvironmentNotBuiltError,
    WireError,
)
from dppo_redis.protocol.reports import ActorReport
from dppo_redis.protocol.spec import RunDescription, Spec
from dppo_redis.service.logs import RateLimit
from dppo_redis.service.process_state import keeping_process_state
from dppo_redis.service.renewal import HolderReading, living_holder
from dppo_redis.service.service_deaths import MOST_DEATHS, Deaths, is_supervised
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client, RetryLoop, TransientError, connect, translated
from dppo_redis.store.credentials import Role, find_url
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.registry import BEAT_PERIOD_S, Registry, SlotHolder
from dppo_redis.store.run_store import RunStore
from workers.failures import FailureCount
from workers.watchdog import CallClock

_READINGS_OF_A_DAMAGED_SPEC = 15  # three seconds
_log = logging.getLogger("dppo")


@dataclass(frozen=True)
class RunConnection:
    """The run that an actor joins, and the actor's connection to it."""

    url: str
    keys: RunKeys
    client: Client
    store: RunStore
    registry: Registry
    retry: RetryLoop
    stop: StopRequest

    @staticmethod
    def open(url: str | None, run: str, stop: StopRequest) -> "RunConnection":
        """Connect to a run; `url` None: to the server of the environment variable.

        Raises:
            ConfigurationError: there is no URL, or Redis refuses this client.
        """
        url, keys = find_url(url, Role.ACTOR), RunKeys(run)
        client = _connect(url, keys)
        return RunConnection(
            url, keys, client, RunStore(client, keys), Registry(client, keys), RetryLoop(stop), stop
        )

    def connect_again(self) -> Client:
        """Open a further connection, for another thread."""
        return _connect(self.url, self.keys)

    def report(self, slot: int | None, text: str | None) -> None:
        """Report a text of the actor to the operator, if Redis answers."""
        report_error(self.store, "actor" if slot is None else f"actor {slot}", text)

    def beat(self, slot: int, report: ActorReport) -> None:
        """Renew the registration of a slot that waits, if Redis answers."""
        with suppress(TransientError, ConfigurationError), translated():
            self.registry.beat(slot, report)


def _connect(url: str, keys: RunKeys) -> Client:
    return connect(url, f"dppo-actor-{keys.run}")


def report_error(store: RunStore, service: str, text: str | None) -> None:
    """Report a text of `service` to the operator, if Redis answers; None is not reported."""
    if text is not None:
        with suppress(TransientError, ConfigurationError), translated():
            store.append_error(service, text)


def wait_for_description(store: RunStore, retry: RetryLoop, stop: StopRequest) -> RunDescription | None:
    """Wait for the description that the run's learner publishes; None if the run is over.

    Raises:
        ConfigurationError: the run speaks another release's wire schema, or its spec stays damaged.
    """
    rate_limit, damaged = RateLimit(), 0
    while not stop.requested:
        try:
            description = retry.call("read the spec", store.description)
        except DamagedSpecError:
            description, damaged = None, damaged + 1
            if damaged == _READINGS_OF_A_DAMAGED_SPEC:
                raise
        if description is not None:
            return description
        if rate_limit.due():
            _log.info("waiting for the learner of run %s%s", store.keys.run, _list_other_runs(store, retry))
        stop.sleep(0.2)
    return None


def _list_other_runs(store: RunStore, retry: RetryLoop) -> str:
    """A text with the names of other runs, in case the name is mistyped; empty in a fleet's services."""
    if is_supervised():
        return ""
    others = list_by_similarity(store.keys.run, retry.call("list the runs", store.other_runs))
    return f"; this Redis has other runs: {others}" if others else ""


def check_run(error: WireError, mine: RunDescription, store: RunStore, retry: RetryLoop) -> None:
    """Check after unreadable weights whether the run was upgraded, or started again with another spec.

    Raises:
        ConfigurationError: the spec has changed; the message names the differences.
    """
    if error.reason not in ("schema", "spec"):
        return  # damaged: the learner repairs the weights
    now = retry.call("read the spec", store.description)
    if now is not None and now.digest != mine.digest:
        differences = "; ".join(mine.spec.differences(now.spec))
        raise ConfigurationError(
            f"run {store.keys.run} has changed since this process joined it ({differences})"
        )


def check_environment(spec: Spec, slot: int = 0) -> None:
    """Compare this machine's environment with the run's spec.

    Raises:
        ConfigurationError: they differ; the message names the differences.
        EnvironmentNotBuiltError: the environment could not be built; this may pass.
    """
    try:
        with keeping_process_state():
            number = CopyNumber("look", slot)
            spaces = inspect(spec.environment, use_mask=spec.observation.masked, number=number)
    except EnvironmentBrokenError as error:
        raise EnvironmentNotBuiltError(str(error)) from (error.__cause__ or error)
    except KeyboardInterrupt as error:  # the user's code raised it: our own handlers only set a flag
        raise EnvironmentNotBuiltError("building raised KeyboardInterrupt") from error
    differences = spec.seen_with(spaces).differences(spec)
    if differences:
        raise ConfigurationError(
            f"{spec.environment.env_id} here is not the run's environment ({'; '.join(differences)}): "
            "install the same versions as the learner's machine"
        )


def check_environment_patiently(
    description: RunDescription, slot: int, calls: CallClock, stop: StopRequest, report: Callable[[str], None]
) -> None:
    """Call `check_environment`, retry it for `env_retry_s`, and call `report` with each failure.

    Raises:
        ConfigurationError: the environments differ.
        EnvironmentBrokenError: the environment could not be built in that time.
    """
    failure_count = FailureCount(description.join.env_retry_s)
    while not stop.requested:
        calls.start()
        try:
            check_environment(description.spec, slot)
        except EnvironmentBrokenError as error:
            calls.stop()
            failure_count.count_failure(error)
            report("".join(traceback.format_exception(error)))
            stop.sleep(failure_count.pause_s(error))
        else:
            return
        finally:
            calls.stop()


def pause_after_deaths(
    deaths: Deaths, beat: Callable[[ActorReport], None], report: Callable[[str], None], stop: StopRequest
) -> None:
    """Report how the previous process ended, and pause. The pause grows with the number of failures in a row.

    Raises:
        TooManyDeathsError: too many processes failed in a row.
    """
    if not deaths.last:
        return
    pause_s = deaths.pause_s
    count = f"{deaths.in_a_row} of at most {MOST_DEATHS} in a row"
    text = f"the process before this one ended before its time: {deaths.last} ({count}"
    text += f"; sampling begins in {pause_s:g} s)" if pause_s else ")"
    _log.warning("%s", text)
    report(text)
    deaths.check()
    until = time.monotonic() + pause_s
    while (left := until - time.monotonic()) > 0 and not stop.requested:
        beat(ActorReport(deaths=deaths.faults, killed=deaths.killed, last_death=deaths.last))
        stop.sleep(min(left, BEAT_PERIOD_S))


def check_place(run: str, slot: int | None, envs_per_actor: int | None, description: RunDescription) -> None:
    """Check that a lock-step run, whose fleet is fixed, has a place for this actor.

    Raises:
        ConfigurationError: it has no place for this actor.
    """
    plan, environments = description.join.lock_step, description.join.envs_per_actor
    if plan is None:
        return
    if slot is None or slot >= plan.actors:
        raise ConfigurationError(
            f"run {run} is in lock-step mode: it takes no more than the {plan.actors} actors it was "
            f"started with (set --actors); pass --slot 0 to {plan.actors - 1} only to replace an "
            "actor that has ended"
        )
    if envs_per_actor not in (None, environments):
        raise ConfigurationError(
            f"run {run} is in lock-step mode with {environments} environments in each actor: "
            "leave out --envs-per-actor"
        )


def refuse_living_holder(
    registry: Registry, slot: int, retry: RetryLoop, stop: StopRequest, dead: SlotHolder | None = None
) -> SlotHolder | None:
    """Refuse a slot whose registration is renewed, because it belongs to a living actor.

    Returns the holder of a registration that is not renewed, if there is one: its slot may be taken. `dead`
    is the holder that an earlier call returned; an unchanged registration of it counts as none.

    Raises:
        ConfigurationError: a living actor holds the slot; the message names it.
    """
    holder: SlotHolder | None = None

    def read_holder() -> HolderReading:
        nonlocal holder
        holder = retry.call("look at the slot", lambda: registry.holder(slot))
        if holder is None or holder == dead:
            return HolderReading(None)
        return HolderReading(str(holder), beat=holder, is_dead=holder.is_dead)

    living = living_holder(read_holder, 2.5 * BEAT_PERIOD_S, stop)
    if living:
        raise ConfigurationError(
            f"slot {slot} belongs to a living actor, {living}: stop that one, or leave out --slot"
        )
    return holder
