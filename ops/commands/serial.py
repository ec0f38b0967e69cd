"""`dppo-redis serial`: one process, no Redis, the same collector and update."""

import json
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from dppo_redis.artefacts.spaces_file import write_spaces
from dppo_redis.environments.child import spaces_of, try_in_child
from dppo_redis.errors import ConfigurationError, DppoError, EnvironmentBrokenError, StoppedError
from dppo_redis.protocol.report_fields import to_json
from dppo_redis.protocol.run_plan import plan
from dppo_redis.service import user_code
from dppo_redis.service.logs import configure
from dppo_redis.service.shutdown import StopRequest
from learner.build import check_network
from learner.warm_start import check_before_start
from ops.fleet.run_directory import check, choose, claim, prepare, write_summary
from ops.options import SerialOptions, read_options
from ops.screens.curve import plot_run
from ops.screens.tables import derived_table, make_console, progress_stream, summary_table
from ops.serial import Serial, make_serial
from workers.watchdog import Watchdog

_log = logging.getLogger("dppo")


def main(argv: Sequence[str] | None = None, started: float | None = None) -> int:
    """Entry point; `started`, by the monotonic clock, is when the command began."""
    configure("serial")
    stop = StopRequest().install()
    try:
        return _main(argv, stop, time.monotonic() if started is None else started)
    except StoppedError as error:  # while it looked at the environment
        _log.info("%s", error)
        return stop.exit_status


def _main(argv: Sequence[str] | None, stop: StopRequest, started: float) -> int:
    options = read_options(SerialOptions, argv, "dppo-redis serial")
    if options.age < 0:
        raise ConfigurationError(f"age: at least 0 (got {options.age})")
    if options.age and options.config.lock_step:
        raise ConfigurationError("age and lock_step cannot be used together: lock-step data is always fresh")
    torch.set_num_threads(1)
    config = options.config
    planned = plan(config, spaces_of(config, stop), serial=True)
    directory = choose(config, options.run, options.run_dir, resume=False)
    check(directory, resume=False, overwrite=options.overwrite)
    if config.network.custom is not None:  # which may hang, or crash
        try_in_child("the network", partial(check_network, config, planned.description), config, stop)
    check_network(config, planned.description)
    check_before_start(planned, directory.path)
    claim(directory)
    sampling = f"one process, age {options.age}"
    prepare(directory, planned.config_as_used, resume=False, sampling=sampling)
    write_spaces(directory.path, config, planned.spaces)
    console = make_console(progress_stream(options.json))
    console.print(derived_table(config, planned.derived, serial=True))
    serial = make_serial(planned, directory.path, console, stop, options.age, directory.run)
    failure: DppoError | None = None
    try:
        last_words = partial(_last_words, serial, directory.run, started, json_wanted=options.json)
        limit_s = config.env_timeout_s
        with Watchdog(serial.sampling.calls, limit_s, stop, stopped_status=None, farewell=last_words):
            serial.run()
    except DppoError as error:
        failure = error
    finally:
        serial.training.metrics.close()
    serial.save()
    wall_s = time.monotonic() - started
    return _conclude(serial, directory.run, failure, wall_s, json_wanted=options.json)


def _last_words(serial: Serial, run: str, started: float, reason: str | None, *, json_wanted: bool) -> None:
    """Of the watchdog's thread, before it ends this process: the main one is in a call of the environment."""
    serial.stop.request()  # should that call return after all
    failure = None if reason is None else EnvironmentBrokenError(reason)
    try:
        serial.training.metrics.close()
        serial.save()
        _tell(serial, run, failure, time.monotonic() - started, json_wanted=json_wanted)
        if failure is not None:
            print(f"dppo-redis: {failure}", file=sys.stderr)
    except Exception as error:  # noqa: BLE001 the process ends in any case
        _log.error("the last words: %s: %s", type(error).__name__, error)


def _conclude(
    serial: Serial, run: str, failure: DppoError | None, wall_s: float, *, json_wanted: bool
) -> int:
    _tell(serial, run, failure, wall_s, json_wanted=json_wanted)
    status = serial.stop.exit_status if failure is None else failure.exit_status
    user_code.announce_end(status)  # closing has as long as the guard then gives it
    serial.sampling.close()
    if failure is not None:
        raise failure
    return status


def _tell(serial: Serial, run: str, failure: DppoError | None, wall_s: float, *, json_wanted: bool) -> None:
    """Write the summary and the curve, and print the summary."""
    summary = serial.summary(wall_s)
    if failure is not None:
        summary = replace(summary, reason="failed")
    evaluation = serial.training.evaluation
    try:
        write_summary(serial.run_dir, summary)
        plot_run(serial.run_dir, run, (evaluation.env_steps, evaluation.return_mean) if evaluation else None)
    except OSError as error:
        _log.error("cannot write the last artefacts: %s", error)
    if failure is None:
        serial.console.print(summary_table(summary))
    if json_wanted:
        print(json.dumps(to_json(summary)), flush=True)
