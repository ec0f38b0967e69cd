"""`dppo-redis train`: a whole fleet under supervisord, watched until the goal, then stopped cleanly."""

import json
import logging
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dppo_redis.environments import inspect
from dppo_redis.errors import ConfigurationError, DppoError, ExitStatus
from dppo_redis.keys import RunKeys
from dppo_redis.ledger import Ledger
from dppo_redis.logs import configure
from dppo_redis.pacing import derive
from dppo_redis.redis_client import (
    INTERACTIVE_PATIENCE_S,
    PASSWORD_FILE_VARIABLE,
    URL_VARIABLE,
    Client,
    Patience,
    TransientError,
    connect,
    find_url,
    has_password,
    redact,
    translated,
)
from dppo_redis.run_store import STOP, RunStore
from dppo_redis.shutdown import StopRequest
from ops import cli
from ops.broker import Broker, check_server, embedded
from ops.fleet import Fleet, FleetError, ProcessState, last_line
from ops.options import TrainOptions, read_options
from ops.run_directory import RunDirectory, choose, prepare, write_summary
from ops.status import RunStatus, ledger_json, read_status
from ops.supervisor.render import FleetPlan
from ops.view import Screen, derived_table, progress_stream, summary_table

_PERIOD_S = 0.25
_LAST_EVALUATION_S = 600.0  # the last evaluation of a slow environment is worth waiting for
_HASTY_STOP_S = 8.0  # after Ctrl-C or SIGTERM nobody wants to wait
_LEASE_CHECK_S = 2.5
_LONGEST_PARENT = 60
_LOOP_WINDOW_S = 120.0
_MOST_STARTS = 5
_log = logging.getLogger("dppo")


class RunFailedError(DppoError):
    """A service ended in a way that supervisord will not mend."""


@dataclass
class Training:
    """A fleet that is running, and what was seen of it."""

    options: TrainOptions
    directory: RunDirectory
    fleet: Fleet
    client: Client
    store: RunStore
    screen: Screen
    stop: StopRequest
    status: RunStatus | None = None
    most_actors: int = 0
    restarts: "Restarts" = field(default_factory=lambda: Restarts())

    def watch(self) -> None:
        """Show progress until the run ends, a signal comes, or a service gives up.

        Raises:
            RunFailedError: a service gave up; the message holds the end of its log.
        """
        while not self.stop.requested:
            self._look()
            if self.status is not None and self.status.control.state == STOP:
                return
            self._check(self.fleet.processes().values())
            self.stop.sleep(_PERIOD_S)

    def _look(self, *, last: bool = False) -> None:
        try:
            with translated():
                self.status = read_status(self.client, self.store.keys)
        except TransientError as error:
            self.screen.say(f"Redis does not answer: {error}")
            return
        self.most_actors = max(self.most_actors, len(self.status.actors))
        self.screen.show(self.status, last=last)

    def _check(self, processes: Iterable[ProcessState]) -> None:
        update = self.status.integer("update") if self.status is not None else 0
        for process in processes:
            looping = self.restarts.is_looping(process, update, time.monotonic())
            if process.gave_up or looping:
                how = "keeps ending" if looping else f"gave up (status {process.exit_status})"
                raise RunFailedError(f"{process.name} {how}: {last_line(process.log)} (log: {process.log})")

    def finish(self) -> None:
        """Ask the services to end by themselves and wait for them, the last evaluation included."""
        hasty = self.stop.requested
        if hasty:
            _quietly(lambda: self.store.set_state(STOP, "stopped"))
        deadline = time.monotonic() + (_HASTY_STOP_S if hasty else _LAST_EVALUATION_S)
        signalled = self.stop.signal
        while time.monotonic() < deadline and self.stop.signal is signalled:
            self._look()
            running = [p.name for p in self.fleet.processes().values() if p.alive and p.name != "broker"]
            if not running:
                break
            time.sleep(_PERIOD_S / 2)
        self._look(last=True)


class Restarts:
    """Tells a service that supervisord starts again and again, to no avail, from one that was killed."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self._starts: dict[str, list[float]] = {}
        self._update = -1

    def is_looping(self, process: ProcessState, update: int, now: float) -> bool:
        """Whether it was started too often of late, while the run got nowhere."""
        if update > self._update:
            self._update = update
            self._starts.clear()
        if process.pid and process.pid != self._pids.get(process.name):
            self._pids[process.name] = process.pid
            self._starts.setdefault(process.name, []).append(now)
        recent = [start for start in self._starts.get(process.name, []) if now - start < _LOOP_WINDOW_S]
        return len(recent) > _MOST_STARTS


def _quietly(action: Callable[[], object]) -> None:
    """Do it if Redis is there; the fleet is stopped by signals anyway."""
    try:
        with translated():
            action()
    except (TransientError, ConfigurationError) as error:
        _log.warning("%s", error)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    configure("train")
    stop = StopRequest().install()
    options = read_options(TrainOptions, argv, "dppo-redis train")
    config = options.config
    spaces = inspect(config.env_id, config.env_kwargs)
    derived = derive(config, spaces.observation, spaces.action)
    directory = choose(config, options.run, options.run_dir, options.resume)
    url = find_url(options.redis) if options.redis or os.environ.get(URL_VARIABLE) else None
    if url is not None:
        _check_shared(url, options, directory, stop)
    # A resumed run keeps its rollout length, whatever the number of actors then.
    as_used = config.model_copy(update={"rollout_steps": derived.rollout_steps})
    prepare(directory, as_used, resume=options.resume, overwrite=options.overwrite)
    screen = Screen(progress_stream(options.json))
    screen.print(derived_table(config, derived))
    private_dir = _private_directory()
    try:
        return _train(options, directory, url, private_dir, screen, stop)
    finally:
        shutil.rmtree(private_dir, ignore_errors=True)


def _private_directory() -> Path:
    """Short, because the path of a unix socket may have about 100 characters; mode 0700."""
    parent = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="dppo-", dir="/tmp" if len(parent) > _LONGEST_PARENT else parent))


def _check_shared(url: str, options: TrainOptions, directory: RunDirectory, stop: StopRequest) -> None:
    """Refuse a Redis that cannot be reached or used, and a run name that is taken."""
    if options.redis and has_password(options.redis):
        _log.warning(
            "a password on the command line is visible to every user of this machine: set %s or %s instead",
            URL_VARIABLE,
            PASSWORD_FILE_VARIABLE,
        )
    client = connect(url, "dppo-train")
    patience = Patience(stop, deadline_s=INTERACTIVE_PATIENCE_S)
    for warning in patience.call(f"reach {redact(url)}", lambda: check_server(client)):
        _log.warning("%s", warning)
    store = RunStore(client, RunKeys(directory.run))
    _refuse_living_learner(store, patience, stop)
    if not patience.call("look for the run", store.exists):
        return
    if options.overwrite:
        patience.call("remove the old run", store.delete)
    elif options.resume:
        patience.call("reopen the run", store.reopen)
    else:
        raise ConfigurationError(
            f"this Redis already has a run {directory.run}: pass --resume, --overwrite or another --run"
        )


def _refuse_living_learner(store: RunStore, patience: Patience, stop: StopRequest) -> None:
    """A lease that is renewed while we look belongs to a living learner."""
    holder, left_ms = patience.call("look at the lease", store.lease)
    deadline = time.monotonic() + _LEASE_CHECK_S
    while holder and time.monotonic() < deadline and not stop.requested:
        stop.sleep(0.2)
        now_holder, now_left_ms = patience.call("look at the lease", store.lease)
        if now_holder and now_left_ms > left_ms:
            raise ConfigurationError(
                f"run {store.keys.run} is led by a living learner, {now_holder}: "
                "stop that one, or choose another --run"
            )
        left_ms = min(left_ms, now_left_ms)


def _train(
    options: TrainOptions,
    directory: RunDirectory,
    url: str | None,
    private_dir: Path,
    screen: Screen,
    stop: StopRequest,
) -> int:
    broker = embedded(private_dir) if url is None else None
    address = broker.url if broker is not None else str(url)
    plan = FleetPlan(
        run=directory.run,
        run_dir=directory.path,
        private_dir=private_dir,
        working_dir=Path.cwd(),
        python=sys.executable,
        actors=options.config.actors,
        broker_command=broker.command if broker is not None else None,
    )
    fleet = Fleet.start(plan, address)
    client = connect(address, "dppo-train")
    store = RunStore(client, RunKeys(directory.run))
    training = Training(options, directory, fleet, client, store, screen, stop)
    failure: DppoError | None = None
    try:
        if broker is not None:
            _wait_for_broker(client, fleet, stop)
        _say_how_to_join(screen, directory.run, address, broker)
        with screen:
            training.watch()
            training.finish()
    except (RunFailedError, FleetError) as error:
        failure = error
        _quietly(lambda: store.set_state(STOP, "failed"))
    try:
        summary = _summary(training, failure)
    finally:
        fleet.stop()
    if url is not None:
        _quietly(store.retire)
    return _conclude(training, summary, failure)


def _wait_for_broker(client: Client, fleet: Fleet, stop: StopRequest) -> None:
    deadline = time.monotonic() + 15.0
    while not stop.requested:
        try:
            with translated():
                client.ping()
            return
        except TransientError as error:
            state = fleet.processes().get("broker")
            if time.monotonic() > deadline or (state is not None and state.gave_up):
                cause = last_line(state.log) if state is not None else str(error)
                raise RunFailedError(f"the embedded server did not start: {cause}") from error
            stop.sleep(0.05)


def _say_how_to_join(screen: Screen, run: str, address: str, broker: Broker | None) -> None:
    shown = redact(address)
    secret, cli_secret = "", ""
    if has_password(address):
        secret, cli_secret = f"{PASSWORD_FILE_VARIABLE}=FILE ", "REDISCLI_AUTH=... "
    by_hand = broker.redis_cli if broker is not None else f"{cli_secret}redis-cli -u {shlex.quote(shown)}"
    screen.say(f"another actor:  {secret}dppo-redis actor --redis {shlex.quote(shown)} --run {run}")
    screen.say(f"status:         {secret}dppo-redis status --redis {shlex.quote(shown)} --run {run}")
    screen.say(f"by hand:        {by_hand} HGETALL {shlex.quote(RunKeys(run).status)}")


def _summary(training: Training, failure: DppoError | None) -> dict[str, Any]:
    """The object that --json prints. Read from Redis while it is still there."""
    status, store = training.status, training.store
    summary = _empty_summary(training)
    if status is not None:
        _fill_from_status(summary, status)
        try:
            with translated():
                _fill_from_counters(summary, store)
        except (TransientError, ConfigurationError) as error:
            _log.warning("the last books are not known: %s", error)
    config = training.options.config
    evaluated = summary["return_mean"]
    if failure is not None:
        summary["reason"] = "failed"
    elif training.stop.requested:
        summary["reason"] = "stopped"
    elif (
        summary["reason"] == "env_steps"
        and config.target_on == "eval"
        and config.target_return is not None
        and evaluated is not None
        and evaluated >= config.target_return
        and status is not None
        and status.evaluation is not None
    ):  # the last evaluation, of the final weights, met the target
        summary["reason"], summary["target_step"] = "target", status.evaluation.env_steps
    summary["wall_s"] = round(time.monotonic() - cli.STARTED, 3)
    return summary


def _empty_summary(training: Training) -> dict[str, Any]:
    limit = training.options.config.max_staleness
    return {
        "reason": "stopped",
        "env_steps": 0,
        "trained_steps": 0,
        "wall_s": 0.0,
        "train_s": 0.0,
        "steps_per_s": 0.0,
        "updates": 0,
        "version": 0,
        "return_mean": None,
        "return_episodes": 0,
        "target_step": None,
        "train_return_mean": None,
        "staleness": {"mean": 0.0, "max": 0, "limit": limit},
        "ledger": ledger_json(Ledger(), 0, 0, 0),
        "actors": training.most_actors,
        "actor_wait_share": 0.0,
        "run_dir": str(training.directory.path),
    }


def _fill_from_status(summary: dict[str, Any], status: RunStatus) -> None:
    return_mean = status.fields.get("return_mean")
    evaluation = status.evaluation
    summary.update(
        reason=status.control.reason or "stopped",
        env_steps=status.ledger.env_steps,
        trained_steps=status.integer("trained_steps"),
        train_s=status.number("train_s"),
        steps_per_s=status.number("steps_per_s"),
        updates=status.integer("update"),
        version=status.integer("version"),
        return_mean=evaluation.return_mean if evaluation else None,
        return_episodes=evaluation.episodes if evaluation else 0,
        target_step=status.control.target_step,
        train_return_mean=float(return_mean) if return_mean else None,
        actor_wait_share=status.number("actor_wait_share"),
    )
    summary["staleness"].update(mean=status.number("staleness_mean"), max=status.integer("staleness_max"))


def _fill_from_counters(summary: dict[str, Any], store: RunStore) -> None:
    counters = store.counters()
    ledger = Ledger(counters.ledger)
    added = ledger.entries_before + counters.entries_added
    imbalance = added - ledger.settled - counters.backlog
    summary["ledger"] = ledger_json(ledger, added, counters.backlog, imbalance)
    summary["env_steps"] = ledger.env_steps


def _conclude(training: Training, summary: dict[str, Any], failure: DppoError | None) -> int:
    """Artefacts, the last words, and the exit status."""
    path = training.directory.path
    try:
        write_summary(path, summary)
        evaluation = training.status.evaluation if training.status else None
        last = None if evaluation is None else (evaluation.env_steps, evaluation.return_mean)
        from ops.plot import plot_run  # half a second of import that the start need not wait for

        plot_run(path, training.directory.run, last)
    except OSError as error:
        _log.error("cannot write the last artefacts: %s", error)
    if failure is None:
        training.screen.print(summary_table(summary))
    if training.options.json:
        print(json.dumps(summary), flush=True)
    if failure is not None:
        raise failure
    return training.stop.exit_status if training.stop.requested else ExitStatus.DONE
