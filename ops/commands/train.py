"""`dppo-redis train`: starts a fleet under supervisord, watches it until its goal, then stops it in order."""

import json
import logging
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from dppo_redis.artefacts.config_file import load_toml
from dppo_redis.artefacts.spaces_file import write_spaces
from dppo_redis.environments.child import check_evaluation, inspect_in_child, spaces_of, try_in_child
from dppo_redis.errors import DppoError, StoppedError
from dppo_redis.protocol.report_fields import to_json
from dppo_redis.protocol.reports import RunSummary
from dppo_redis.protocol.run_plan import RunPlan, plan, refuse_another_plan
from dppo_redis.protocol.spec import source_of
from dppo_redis.service.logs import answer, configure
from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.address import redact
from dppo_redis.store.client import connect
from dppo_redis.store.credentials import Role, as_role, base_url, is_url_given, shown_credentials
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.run_store import STOP, RunStore
from ops.fleet.broker import Broker, embedded
from ops.fleet.machine_limits import check_limits, needs_of
from ops.fleet.private_directory import SocketUpkeep, make_private_directory
from ops.fleet.redis_cli import redis_cli
from ops.fleet.render import FleetPlan, check_path
from ops.fleet.run_directory import RunDirectory, check, claim, prepare
from ops.fleet.run_lock import sign
from ops.fleet.shared_redis import check_shared, leave_shared, prepare_shared
from ops.fleet.start_decision import decide_start
from ops.fleet.supervisor import Fleet
from ops.options import TrainOptions
from ops.screens.run_end import (
    Times,
    prepare_to_draw,
    report_finished,
    status_of_end,
    with_save_checked,
    write_results,
)
from ops.screens.start_table import derived_table
from ops.screens.summary import summarise
from ops.screens.tables import progress_stream, summary_table
from ops.screens.view import Screen
from ops.screens.watch import FailedServices, Watch, log_redis_errors, wait_for_broker

_log = logging.getLogger("dppo")


def main(argv: Sequence[str] | None = None, started: float | None = None) -> int:
    """Entry point; `started`, by the monotonic clock, is when the command began."""
    configure("train")
    stop = StopRequest().install()
    try:
        return _main(argv, stop, time.monotonic() if started is None else started)
    except StoppedError as error:  # while the command waited for Redis
        _log.info("%s", error)
        return stop.exit_status


def _main(argv: Sequence[str] | None, stop: StopRequest, started: float) -> int:
    start = decide_start(TrainOptions, argv, "dppo-redis train", stop)
    options, directory = start.options, start.directory
    config = options.config
    shared_url = base_url(options.redis) if is_url_given(options.redis) else None
    url = as_role(shared_url, Role.OPERATOR) if shared_url is not None else None
    if start.summary is None:
        check_limits(needs_of(config, has_server=url is None))
    planned = plan(config, spaces_of(config, stop), serial=False, may_shorten=bool(options.resume))
    check_evaluation(config, planned.spaces, stop)
    # All checks come before the command writes or removes files.
    for path in (directory.path, Path.cwd(), Path(sys.executable), options.event_log):
        check_path(path)
    if url is not None and start.summary is None:
        check_shared(url, options, directory, stop)
    check(directory, resume=bool(options.resume), overwrite=options.overwrite)
    if _needs_trial(planned):
        try_in_child("the network", partial(_check_network, planned), config, stop)
    if config.init_from is not None and not options.resume:
        try_in_child("init_from", partial(_check_before_start, planned, directory.path), config, stop)
    if options.resume:
        check_resumed(directory, planned, stop)
    if start.summary is not None:
        return report_finished(directory, start.summary, as_json=options.json)
    if stop.requested:
        return stop.exit_status
    lock = claim(directory, stop, start.lock)
    if url is not None:
        prepare_shared(url, options, directory, stop)
    prepare(directory, planned.config_as_used, resume=bool(options.resume))
    write_spaces(directory.path, config, planned.spaces)
    screen = Screen(progress_stream(options.json))
    screen.print(derived_table(config, planned.derived))
    private_dir = make_private_directory(directory.path)
    try:
        return _train(options, directory, shared_url, private_dir, lock, screen, stop, started)
    finally:
        shutil.rmtree(private_dir, ignore_errors=True)


def _needs_trial(planned: RunPlan) -> bool:
    """Whether the learner might refuse the network or the device, so that a child process tries them
    first."""
    network, observation = planned.config.network, planned.spaces.observation
    inputs = planned.config.frame_stack * observation.size
    large = max(inputs, *network.hidden, network.memory_size) > 1024 or bool(observation.images)
    return network.custom is not None or planned.config.device.startswith("cuda") or large


def _check_network(planned: RunPlan) -> None:
    from learner.build import check_network  # imports torch, which takes time

    check_network(planned.config, planned.description)


def _check_before_start(planned: RunPlan, run_dir: Path) -> None:
    from learner.warm_start import check_before_start  # imports torch

    check_before_start(planned, run_dir)


def check_resumed(directory: RunDirectory, planned: RunPlan, stop: StopRequest) -> None:
    """Refuse to resume a run whose spec differs from that of its checkpoints.

    Raises:
        ConfigurationError: the message names the differences.
    """
    config, stored = planned.config, load_toml(directory.files.config)
    spaces = planned.spaces
    if stored.use_action_mask != config.use_action_mask:
        spaces = inspect_in_child(
            source_of(config),
            use_mask=stored.use_action_mask,
            limit_s=config.env_timeout_s,
            retry_s=config.env_retry_s,
            stop=stop,
        )
    refuse_another_plan(stored, spaces, planned)
    if config.network.custom is not None:  # its class may have changed, which only loading a checkpoint shows
        try_in_child("the network", partial(_load_checkpoint, directory, planned), config, stop)


def _load_checkpoint(directory: RunDirectory, planned: RunPlan) -> None:
    from learner.build import build_ppo
    from learner.checkpoint import Checkpoints

    digest = planned.description.digest
    checkpoints = Checkpoints(directory.files.checkpoints, directory.run, digest, keep=1)
    checkpoints.peek(build_ppo(planned.config, planned.description, update_epochs=1), None)


def _train(
    options: TrainOptions,
    directory: RunDirectory,
    shared_url: str | None,
    private_dir: Path,
    lock: int,
    screen: Screen,
    stop: StopRequest,
    started: float,
) -> int:
    broker = embedded(private_dir) if shared_url is None else None
    address = broker.url if broker is not None else str(shared_url)
    plan = FleetPlan(
        run=directory.run,
        run_dir=directory.path,
        private_dir=private_dir,
        working_dir=Path.cwd(),
        python=sys.executable,
        actors=options.config.actors,
        broker_command=broker.command if broker is not None else None,
        open_files=needs_of(options.config, has_server=broker is not None).files,
        event_log=None if options.event_log is None else options.event_log.absolute(),
        evaluator=options.config.evaluation.enabled,
    )
    fleet = Fleet.start(plan, address, lock)  # each service adds the credentials of its own role
    sign(lock, directory.run, fleet.pid)
    client = connect(address if broker is not None else as_role(address, Role.OPERATOR), "dppo-train")
    store = RunStore(client, RunKeys(directory.run))
    failed_services = FailedServices(every_actor_counts=options.config.lock_step)
    upkeep = SocketUpkeep(fleet, broker.socket if broker is not None else None)
    watch = Watch(fleet, client, store, screen, stop, failed_services, upkeep)
    failure: DppoError | None = None
    try:
        try:
            if broker is not None:
                wait_for_broker(client, fleet, stop)
            _print_how_to_join(screen, directory.run, address, broker)
            with screen:
                watch.until_the_end()
                prepare_to_draw()
                watch.finish(options.config.evaluation.end_wait_s)
        except DppoError as error:
            failure = error
            if broker is not None:  # on a shared server `leave_shared` does this
                log_redis_errors(lambda: watch.store.set_state(STOP, "failed"))
        summary = summarise(options.config, watch, directory.path, failed=failure is not None)
    finally:
        fleet.stop()
    if broker is None:
        log_redis_errors(lambda: leave_shared(watch.store, failed=failure is not None))
    times = Times(started, watch.first_update_time, watch.ended_at)
    summary = write_results(directory, with_save_checked(summary, directory), times)
    return _conclude(options, summary, screen, stop, failure)


def _print_how_to_join(screen: Screen, run: str, address: str, broker: Broker | None) -> None:
    shown = shlex.quote(redact(address))
    secret, cli_secret = shown_credentials(address) if broker is None else ("", "")
    redis_command = f"{cli_secret}{redis_cli(address)}"
    screen.print_line(f"another actor:  {secret}dppo-redis actor --redis {shown} --run {run}")
    screen.print_line(f"status:         {secret}dppo-redis status --redis {shown} --run {run}")
    screen.print_line(f"by hand:        {redis_command} HGETALL {shlex.quote(RunKeys(run).status)}")


def _conclude(
    options: TrainOptions,
    summary: RunSummary,
    screen: Screen,
    stop: StopRequest,
    failure: DppoError | None,
) -> int:
    """Print the summary; returns the exit status, or raises the failure."""
    if failure is None:
        screen.print(summary_table(summary))
    if options.json:
        answer(json.dumps(to_json(summary)))
    if failure is not None:
        raise failure
    return status_of_end(summary, stop)
