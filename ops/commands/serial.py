"""`dppo-redis serial`: one process, no Redis, the same collector and update."""

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from dppo_redis.environments.inspect import spaces_of
from dppo_redis.errors import ConfigurationError, DppoError, ExitStatus
from dppo_redis.protocol.report_fields import to_json
from dppo_redis.protocol.run_plan import plan
from dppo_redis.service.logs import configure
from dppo_redis.service.shutdown import StopRequest
from learner.build import check_network
from learner.warm_start import check_before_start
from ops.fleet.run_directory import check, choose, claim, prepare, write_summary
from ops.options import SerialOptions, read_options
from ops.screens.curve import plot_run
from ops.screens.tables import (
    derived_table,
    make_console,
    progress_of_first_rollouts,
    progress_stream,
    summary_table,
)
from ops.serial import Serial, make_serial
from workers.watchdog import Watchdog

_LINE_PERIOD_S = 2.0
_log = logging.getLogger("dppo")


def main(argv: Sequence[str] | None = None, started: float | None = None) -> int:
    """Entry point; `started`, by the monotonic clock, is when the command began."""
    started = time.monotonic() if started is None else started
    configure("serial")
    stop = StopRequest().install()
    options = read_options(SerialOptions, argv, "dppo-redis serial")
    if options.age < 0:
        raise ConfigurationError(f"age: at least 0 (got {options.age})")
    if options.age and options.config.lock_step:
        raise ConfigurationError("age and lock_step cannot be used together: lock-step data is always fresh")
    torch.set_num_threads(1)
    config = options.config
    planned = plan(config, spaces_of(config), serial=True)
    directory = choose(config, options.run, options.run_dir, resume=False)
    check(directory, resume=False, overwrite=options.overwrite)
    check_network(config, planned.description)
    check_before_start(planned, directory.path)
    claim(directory)
    sampling = f"one process, age {options.age}"
    prepare(directory, planned.config_as_used, resume=False, sampling=sampling)
    console = make_console(progress_stream(options.json))
    console.print(derived_table(config, planned.derived, serial=True))
    serial = make_serial(planned, directory.path, console, stop, options.age, directory.run)
    failure: DppoError | None = None
    try:
        with Watchdog(
            serial.sampling.calls,
            config.env_timeout_s,
            stop,
            stopped_status=ExitStatus.INTERRUPTED,
            meanwhile=FirstRollouts(serial, planned.derived.rollout_steps).show,
        ):
            serial.run()
    except DppoError as error:
        failure = error
    finally:
        serial.close()
    serial.save()
    wall_s = time.monotonic() - started
    return _conclude(serial, directory.run, failure, wall_s, json_wanted=options.json)


class FirstRollouts:
    """Says how far the rollouts of the first update are, where they take long. For the watchdog's thread."""

    def __init__(self, serial: Serial, rollout_steps: int) -> None:
        self._serial = serial
        self._rollout_steps = rollout_steps
        self._began: float | None = None  # monotonic, of the first step
        self._next = time.monotonic() + _LINE_PERIOD_S

    def show(self) -> None:
        """One line, every other second until the first update."""
        sampling, now = self._serial.sampling, time.monotonic()
        done = sampling.whole_rollouts * self._rollout_steps + sampling.steps_done()
        if done and self._began is None:
            self._began = now
        if self._serial.training.progress.update or now < self._next:
            return
        self._next = now + _LINE_PERIOD_S
        length = sampling.wanted_rollouts * self._rollout_steps
        self._serial.console.print(
            progress_of_first_rollouts(done, length, now - (self._began or now)),
            highlight=False,
            soft_wrap=True,
        )


def _conclude(
    serial: Serial, run: str, failure: DppoError | None, wall_s: float, *, json_wanted: bool
) -> int:
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
    if failure is not None:
        raise failure
    return serial.stop.exit_status
