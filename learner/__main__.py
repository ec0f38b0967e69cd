"""`python -m learner`: builds the learner of one run from its directory and runs it."""

import logging
import os
import secrets
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from dppo_redis.artefacts.config_file import load_toml
from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.artefacts.spaces_file import read_spaces, write_spaces
from dppo_redis.environments.child import spaces_of
from dppo_redis.errors import ConfigurationError, ExitStatus, FencedError, StoppedError, WireError
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.pacing import FleetPacing
from dppo_redis.protocol.run_plan import RunPlan, plan
from dppo_redis.protocol.spec import source_of
from dppo_redis.service.arguments import parse_arguments
from dppo_redis.service.event_log import EventLog
from dppo_redis.service.logs import configure
from dppo_redis.service.shutdown import StopRequest, run_service
from dppo_redis.spaces.environment_spaces import EnvironmentSpaces
from dppo_redis.store.client import Client, RetryLoop, connect, eviction_warning
from dppo_redis.store.credentials import Role, find_url
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.registry import Registry
from dppo_redis.store.rollout_stream import RolloutConsumer, StreamEntry
from dppo_redis.store.run_store import RunStore
from learner.build import build_ppo, check_size, make_checkpoints
from learner.intake.batch_rule import BatchRule, ElasticBatch, LockStepBatch
from learner.intake.intake import Intake
from learner.leadership.keeper import Keeper
from learner.leadership.leadership import make_leadership
from learner.leadership.reserved_versions import ReservedVersions
from learner.leadership.takeover import stand_by, take_over
from learner.loop import Learner
from learner.malloc import keep_freed_memory, naming_memory_settings
from learner.metrics import MetricsFiles
from learner.progress import Progress
from learner.training import Training
from learner.warm_start import warm_start


@dataclass(frozen=True)
class LearnerOptions:
    """Train a run: consume its rollouts, update, publish weights."""

    run: str
    """Name of the run"""
    run_dir: Path
    """Directory of the run, with its config.toml"""
    redis: str | None = None
    """Redis URL; default: the environment variable DPPO_REDIS_URL"""
    threads: int = 1
    """Compute threads; small networks are fastest with one"""
    standby: bool = False
    """Wait while another learner leads this run, and take over when it ends or dies"""
    event_log: Path | None = None
    """File to which every event is appended, for checking afterwards; default: none"""


def _quarantine(store: RunStore, retry: RetryLoop, entry: StreamEntry, error: WireError) -> None:
    retry.call(
        "quarantine an entry", lambda: store.quarantine(entry.id, error.reason, str(error), entry.fields)
    )


def _serve(argv: Sequence[str] | None, stop: StopRequest) -> ExitStatus:
    options = parse_arguments(LearnerOptions, argv, "dppo-redis learner")
    if options.threads < 1:
        raise ConfigurationError(f"threads: at least 1 (got {options.threads})")
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    url = find_url(options.redis, Role.LEARNER)
    options = replace(options, run_dir=options.run_dir.absolute())  # the user's code may change it
    config = load_toml(RunFiles(options.run_dir).config)
    client = connect(url, f"dppo-learner-{options.run}")
    planned = plan(config, _spaces(options, config, client, stop), serial=False, may_shorten=True)
    learner = _build(options, planned, client, stop)
    keeper_client = connect(url, f"dppo-keeper-{options.run}")
    keys = RunKeys(options.run)
    keeper = Keeper(
        learner.leadership,
        Registry(keeper_client, keys),
        learner.current_report,
        FleetPacing.of(config, planned.derived),
        learner.training.warnings,
        lambda: learner.training.wait_share,
    )
    try:
        with suppress(StoppedError), naming_memory_settings(config.ppo):
            learner.run(keeper)
        # Only a learner that still leads and has stopped between two updates may save.
        is_saved = learner.save_last()
        learner.hand_back(keeper)
    except FencedError:
        learner.event_log.write("fenced", epoch=learner.leadership.fence.epoch)
        raise
    finally:
        keeper.close()
        learner.training.metrics.close()
    return ExitStatus.DONE if is_saved else ExitStatus.IO_ERROR


def _spaces(
    options: LearnerOptions, config: RunConfig, client: Client, stop: StopRequest
) -> EnvironmentSpaces:
    """The spaces of the run's environment, which need not be installed here.

    They come from the run's directory, else from the spec that an earlier learner of this run published, else
    from an inspection of the environment.
    """
    found = read_spaces(options.run_dir, config)
    if found is None:
        found = _published_spaces(options, config, client, stop) or spaces_of(config, stop)
        with suppress(OSError):  # the file only saves the next inspection
            write_spaces(options.run_dir, config, found)
    return found


def _published_spaces(
    options: LearnerOptions, config: RunConfig, client: Client, stop: StopRequest
) -> EnvironmentSpaces | None:
    store = RunStore(client, RunKeys(options.run))
    try:
        description = RetryLoop(stop).call("read the spec", store.description)
    except ConfigurationError:  # damaged, or of another release: this learner will publish it again
        return None
    if description is None or description.spec.environment != source_of(config):
        return None
    seen = description.spec
    if seen.observation.masked and not config.use_action_mask:
        return None
    return EnvironmentSpaces(seen.observation, seen.action)


def _build(options: LearnerOptions, planned: RunPlan, client: Client, stop: StopRequest) -> Learner:
    config, description = planned.config, planned.description
    keys = RunKeys(options.run)
    retry = RetryLoop(stop)
    store = RunStore(client, keys)
    ppo = build_ppo(config, description, planned.derived.update_epochs)
    check_size(ppo)
    lock_step = description.join.lock_step
    files = RunFiles(options.run_dir)
    checkpoints = make_checkpoints(config, description, options.run, options.run_dir)
    owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
    event_log = EventLog(options.event_log, "learner")
    reserved = ReservedVersions(files.used)
    leadership = make_leadership(client, keys, description, owner, stop, event_log, reserved)
    if warning := retry.call("look at the server", lambda: eviction_warning(client)):
        logging.getLogger("dppo").warning("%s", warning)
    wait = partial(stand_by, store, retry, stop) if options.standby else None
    snapshot = take_over(leadership, checkpoints, ppo, wait)
    if snapshot is None and config.init_from is not None:
        warm_start(ppo, Path(config.init_from))
    progress = snapshot.progress if snapshot else Progress()
    if snapshot:
        event_log.write("resumed", update=progress.update, epoch=snapshot.epoch, version=snapshot.version)
    consumer = RolloutConsumer(client, keys, leadership.bookkeeper.restore_stream)
    intake = Intake(
        consumer,
        description.spec,
        leadership.bookkeeper.settle,
        partial(_quarantine, store, retry),
        _batch_rule(planned),
        config.staleness_limit,
        event_log,
        lambda: leadership.publisher.versions,
    )
    if snapshot:
        intake.last_sequence_numbers = snapshot.last_sequence_numbers
    leadership.publisher.announce()
    retry.call("prepare the stream", leadership.bookkeeper.restore_stream)
    retry.call("take over pending rollouts", consumer.claim_all)
    return Learner(
        training=Training(
            config, ppo, progress, lock_step, MetricsFiles(options.run_dir, progress.update), checkpoints
        ),
        lock_step=lock_step,
        leadership=leadership,
        intake=intake,
        store=store,
        retry=retry,
        stop=stop,
        event_log=event_log,
    )


def _batch_rule(planned: RunPlan) -> BatchRule:
    lock_step = planned.description.join.lock_step
    if lock_step is not None:
        return LockStepBatch(lock_step)
    return ElasticBatch(planned.config.ppo.batch_steps, planned.derived.rollout_rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    configure("learner")
    return run_service(partial(_serve, argv))


if __name__ == "__main__":
    sys.exit(main())
