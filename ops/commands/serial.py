"""`dppo-redis serial`: trains in one process without Redis, with the same collector and update as a fleet."""

import json
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from dppo_redis.artefacts.spaces_file import write_spaces
from dppo_redis.environments.child import check_evaluation, spaces_of, try_in_child
from dppo_redis.errors import ConfigurationError, DppoError, EnvironmentBrokenError, ExitStatus, StoppedError
from dppo_redis.protocol.report_fields import to_json
from dppo_redis.protocol.run_plan import plan
from dppo_redis.service import user_code
from dppo_redis.service.logs import answer, configure
from dppo_redis.service.shutdown import StopRequest
from learner.build import check_network
from learner.warm_start import check_before_start
from ops.fleet.run_directory import RunDirectory, check, claim, prepare, sampling_in
from ops.fleet.start_decision import decide_start
from ops.options import SerialOptions
from ops.screens.run_end import Times, report_finished, status_of_end, with_save_checked, write_results
from ops.screens.start_table import derived_table
from ops.screens.tables import (
    RunConsole,
    make_console,
    progress_of_first_rollouts,
    progress_stream,
    summary_table,
)
from ops.serial import Serial, make_serial
from workers.watchdog import Watchdog

_LINE_PERIOD_S = 2.0
_ONE_PROCESS = "one process, age "  # the `sampling` entry of a run directory
_log = logging.getLogger("dppo")


def main(argv: Sequence[str] | None = None, started: float | None = None) -> int:
    """Entry point; `started`, by the monotonic clock, is when the command began.

    Raises:
        ConfigurationError: an option, the environment or the directory cannot be used.
    """
    configure("serial")
    stop = StopRequest().install()
    try:
        return _main(argv, stop, time.monotonic() if started is None else started)
    except StoppedError as error:  # while the command waited for the directory, or inspected the environment
        _log.info("%s", error)
        return stop.exit_status


def _main(argv: Sequence[str] | None, stop: StopRequest, started: float) -> int:
    start = decide_start(SerialOptions, argv, "dppo-redis serial", stop)
    options, directory = start.options, start.directory
    if options.resume:
        options = replace(options, age=_age_to_resume(directory, options.age))
    if options.age < 0:
        raise ConfigurationError(f"--age: must be at least 0 (got {options.age})")
    if options.age and options.config.lock_step:
        raise ConfigurationError(
            "--age and --lock-step exclude each other, as lock-step data is never old: leave one of them out"
        )
    torch.set_num_threads(1)
    config = options.config
    planned = plan(config, spaces_of(config, stop), serial=True)
    check_evaluation(config, planned.spaces, stop)
    check(directory, resume=bool(options.resume), overwrite=options.overwrite)
    if config.network.custom is not None:  # a custom network may hang or crash
        try_in_child("the network", partial(check_network, config, planned.description), config, stop)
    check_network(config, planned.description)
    if options.resume:
        from ops.commands.train import check_resumed  # imports Redis's client, which takes time

        check_resumed(directory, planned, stop)
    else:
        check_before_start(planned, directory.path)
    if start.summary is not None:
        return report_finished(directory, start.summary, as_json=options.json)
    claim(directory, stop, start.lock)
    sampling = f"{_ONE_PROCESS}{options.age}"
    prepare(directory, planned.config_as_used, resume=bool(options.resume), sampling=sampling)
    write_spaces(directory.path, config, planned.spaces)
    console = make_console(progress_stream(options.json), RunConsole)
    console.print(derived_table(config, planned.derived, serial=True))
    serial = make_serial(planned, directory.path, console, stop, options.age, directory.run)
    end = _RunEnd(serial, directory, started, as_json=options.json)
    failure: DppoError | None = None
    try:
        with Watchdog(
            *(serial.sampling.calls, config.env_timeout_s, stop),
            stopped_status=None,
            meanwhile=FirstRolloutsProgress(serial, planned.derived.rollout_steps).show,
            farewell=end.from_watchdog,
        ):
            serial.run()
    except DppoError as error:
        failure = error
    return end.conclude(failure)


def _age_to_resume(directory: RunDirectory, age: int) -> int:
    """The age of the policies with which a resumed run was sampled before.

    Raises:
        ConfigurationError: the user sets another age, or a fleet sampled the run.
    """
    sampling = sampling_in(directory.path)
    before = sampling.removeprefix(_ONE_PROCESS)
    if not before.isdecimal():
        if sampling:
            raise ConfigurationError(
                f"{directory.path} holds a run of {sampling}: continue it with `dppo-redis train`, "
                "or choose another --run-dir"
            )
        return age  # an earlier release did not record the age
    if age not in (0, int(before)):
        raise ConfigurationError(f"a resumed run keeps its age, {before}: leave out --age")
    return int(before)


@dataclass(frozen=True)
class _RunEnd:
    """Ends a serial run: writes its last files and prints its summary."""

    serial: Serial
    directory: RunDirectory
    started: float  # by the monotonic clock
    as_json: bool

    def conclude(self, failure: DppoError | None) -> int:
        """Save and report, then close the environments. Returns the exit status."""
        status = self._save_and_report(failure)
        user_code.announce_end(status)  # from here the guard limits the time for closing
        self.serial.evaluations.close()
        self.serial.sampling.close()
        if failure is not None:
            raise failure
        return status

    def from_watchdog(self, reason: str | None) -> None:
        """Save before the watchdog ends this process, while the main thread is in a call of the
        environment."""
        self.serial.stop.request()  # in case that call returns
        failure = None if reason is None else EnvironmentBrokenError(reason)
        try:
            self._save_and_report(failure)
            if failure is not None:
                print(f"dppo-redis: {failure}", file=sys.stderr)
        except Exception as error:  # noqa: BLE001 the process ends anyway
            _log.error("the final save and summary failed: %s: %s", type(error).__name__, error)

    def _save_and_report(self, failure: DppoError | None) -> ExitStatus:
        """Save, write the summary and the curve, and print the summary. Returns the exit status."""
        serial = self.serial
        serial.training.metrics.close()
        serial.training.save_last(serial.save)
        summary = serial.summary()
        if failure is not None:
            summary = replace(summary, reason="failed")
        times = Times(self.started, serial.training.first_update_time, serial.ended_at)
        summary = write_results(self.directory, with_save_checked(summary, self.directory), times)
        if failure is None:
            serial.console.print(summary_table(summary))
        if self.as_json:
            answer(json.dumps(to_json(summary)))
        return status_of_end(summary, serial.stop) if failure is None else failure.exit_status


class FirstRolloutsProgress:
    """Prints the progress of the first update's rollouts if they take long. The watchdog's thread calls
    it."""

    def __init__(self, serial: Serial, rollout_steps: int) -> None:
        self._serial = serial
        self._rollout_steps = rollout_steps
        self._began: float | None = None  # by the monotonic clock, at the first step
        self._next = time.monotonic() + _LINE_PERIOD_S

    def show(self) -> None:
        """Print one line every two seconds until the first update."""
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
