"""One point of the curve: a number of actors for some time, what they did, and what it cost."""

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import fields
from typing import cast

from dppo_redis.errors import StoppedError
from dppo_redis.protocol.reports import LedgerSummary
from dppo_redis.protocol.run_plan import RunPlan
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import Client, TransientError, connect, translated
from dppo_redis.store.keys import RunKeys
from ops.bench.scale.actors import Report
from ops.bench.scale.intake import IntakeLearner
from ops.bench.scale.measured import Measured, Wish, rates
from ops.bench.scale.processes import Probe, Processes
from ops.bench.server import server_cpu_s

START_S = 120.0  # for all actors to join
KILL_FROM_S = 24.0  # shorter points kill no process: its registrations could not expire
_REGISTRATION_S = 12.0  # its time to live, and the keeper's next round
_AFTER_S = 4.0  # until it is looked whether they have expired
_END_S = 30.0


class Cores:
    """The computing time that server and learner use, by the wall-clock time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._began = self._read()

    def _read(self) -> tuple[float, float, float]:
        return time.monotonic(), server_cpu_s(self._client), time.process_time()

    def used(self) -> tuple[float, float]:
        """(server, learner) since the beginning."""
        (began, *before), (now, *after) = self._began, self._read()
        server, learner = ((b - a) / (now - began) for a, b in zip(before, after, strict=True))
        return server, learner


class Point:
    """One measurement: a learner, its actors, and the probe beside them."""

    def __init__(self, wish: Wish, planned: RunPlan, url: str, run: str, stop: StopRequest) -> None:
        self._wish = wish
        self._stop = stop
        self._keys = RunKeys(run)
        self._rollout_s = wish.step_s * planned.derived.rollout_steps
        self._client = connect(url, "bench")
        self._learner = IntakeLearner(url, run, planned, stop)
        self._processes = Processes(url, run, wish)
        self._probe = Probe(url, run, wish.seconds, self._learner)

    def close(self) -> None:
        """Leave no process, thread, connection or key behind."""
        self._probe.close()
        self._processes.close()
        self._learner.keeper.close()
        with suppress(TransientError), translated():
            self._learner.store.delete()
        self._learner.close()
        self._client.close()

    def measure(self) -> Measured:
        """Measure.

        Raises:
            StoppedError: a stop was requested before the end.
        """
        learner, processes, probe = self._learner, self._processes, self._probe
        learner.start()
        started = time.monotonic()
        processes.start()
        deadline = started + START_S
        learner.run(lambda: self._is_over(deadline) or len(self._registered()) >= self._wish.actors)
        began = time.monotonic()
        if began > deadline:
            probe.failures.append(f"not all actors had joined after {START_S:.0f} s")
        started_s = began - started
        self._run_until(began + self._rollout_s)  # the first rollouts
        probe.start()
        began, cores = time.monotonic(), Cores(self._client)
        self._run_with_a_loss(began)
        ended, used = time.monotonic(), cores.used()
        probe.close()
        self._check_stop()
        registered = self._registered()
        learner.end_run()
        learner.run(lambda: processes.have_ended or self._is_over(ended + _END_S))
        learner.run(lambda: learner.has_read_all or self._is_over(ended + 2 * _END_S))
        self._check_stop()
        return self._measured(started_s, (began, ended), used, registered)

    def _check_stop(self) -> None:
        if self._stop.requested:
            raise StoppedError("stopped while measuring")

    def _is_over(self, deadline: float) -> bool:
        return self._stop.requested or time.monotonic() > deadline

    def _run_until(self, deadline: float) -> None:
        self._learner.run(lambda: self._is_over(deadline))

    def _registered(self) -> set[int]:
        return {int(slot) for slot in cast(list[bytes], self._client.zrange(self._keys.actors, 0, -1))}

    def _run_with_a_loss(self, began: float) -> None:
        """Run for as long as wished; in between one process of actors dies."""
        wish = self._wish
        if wish.kills and wish.seconds >= KILL_FROM_S and wish.processes > 1:
            self._run_until(began + wish.seconds - _REGISTRATION_S - _AFTER_S)
            if not self._stop.requested:
                self._processes.kill_one()
        self._run_until(began + wish.seconds)

    def _measured(
        self, started_s: float, window: tuple[float, float], used: tuple[float, float], registered: set[int]
    ) -> Measured:
        learner, processes, probe, (began, ended) = self._learner, self._processes, self._probe, window
        reports, status = list(processes.reports()), learner.last_status()
        failures = [*probe.failures, *(text for report in reports for text in report.failures)]
        if status.trained != learner.trained:
            failures.append(f"{learner.trained} rollouts were trained on, and {status.trained} are counted")
        return Measured(
            wish=self._wish,
            started_s=started_s,
            rates=rates(probe.delivered, began, ended),
            push_ms=_within(window, [timed for report in reports for timed in report.push]),
            fetch_ms=_within(window, [timed for report in reports for timed in report.fetch]),
            status_s=[wall for wall, _ in probe.status_s],
            status_cpu_s=[computing for _, computing in probe.status_s],
            keeper_ms=[1000 * computing for _, computing in learner.keeper.rounds],
            joined=sum(report.joined for report in reports),
            left=sum(report.left for report in reports),
            killed=len(processes.killed),
            registered=len(registered),
            outlived=len(registered & set(processes.killed)),
            pushed=sum(report.pushes for report in reports),
            ambiguous=sum(report.ambiguous for report in reports),
            ledger=LedgerSummary(
                **{field.name: getattr(status, field.name) for field in fields(LedgerSummary)}
            ),
            staleness_mean=sum(learner.staleness) / max(1, len(learner.staleness)),
            staleness_max=max(learner.staleness, default=0),
            connections=probe.connections,
            server_mb=probe.server_mb,
            server_cpu=used[0],
            learner_cpu=used[1],
            actors_cpu=sum(_cpu_s(window, report) for report in reports) / (ended - began),
            failures=failures,
        )


def _within(window: tuple[float, float], timed: Iterable[tuple[float, float]]) -> list[float]:
    """The milliseconds of what ended in the window, sorted."""
    return sorted(1000 * took for at, took in timed if window[0] <= at <= window[1])


def _cpu_s(window: tuple[float, float], report: Report) -> float:
    """Computing time of a process of actors in the window; that of a killed one is not known."""
    within = [seconds for at, seconds in report.cpu if window[0] <= at <= window[1]]
    return max(within) - min(within) if within else 0.0
