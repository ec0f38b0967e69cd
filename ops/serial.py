"""`dppo-redis serial`: one process, no Redis, the same collector and update.

What every distributed run is compared with, and what a newcomer debugs with.
"""

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dppo_redis.acting import ActingPolicy
from dppo_redis.config import RunConfig
from dppo_redis.environments import inspect
from dppo_redis.errors import (
    ConfigurationError,
    DppoError,
    EnvironmentBrokenError,
    ExitStatus,
    StoppedError,
)
from dppo_redis.logs import configure
from dppo_redis.pacing import as_used, derive
from dppo_redis.report_fields import to_json
from dppo_redis.reports import Evaluation, RunSummary
from dppo_redis.shutdown import StopRequest
from dppo_redis.spec import RunDescription, describe_run, source_of
from dppo_redis.weights import Weights
from learner.batch import stack
from learner.build import build_ppo, check_network
from learner.cautions import Cautions
from learner.goal import Finished, Goal, judge_goal
from learner.metrics import MetricsFiles, make_record
from learner.ppo_update import PpoUpdate, UpdateReport
from learner.progress import Progress
from learner.warm_start import check_before_start, warm_start
from ops.ageing import PolicyHistory
from ops.options import SerialOptions, read_options
from ops.plot import plot_run
from ops.run_directory import check, choose, claim, prepare, write_summary
from ops.serial_sampling import Sampling, make_sampling
from ops.serial_saving import Saving
from ops.view import Screen, derived_table, progress_stream, summary_table
from workers.evaluate import evaluate, keep_best
from workers.watchdog import Watchdog

_LINE_PERIOD_S = 2.0
_log = logging.getLogger("dppo")


@dataclass
class Serial:
    """Sampling and an update in turn."""

    config: RunConfig
    description: RunDescription
    sampling: Sampling
    ppo: PpoUpdate
    metrics: MetricsFiles
    run_dir: Path
    screen: Screen
    stop: StopRequest
    age: int = 0  # updates that the behaviour policy lies behind
    saving: Saving | None = None  # None: no checkpoints are left

    def __post_init__(self) -> None:
        self.progress = Progress()
        self.cautions = Cautions()
        self.history = PolicyHistory(self.age)
        self.goal = Goal(self.config.env_steps, self.config.target_return, self.config.target_on)
        self.evaluation: Evaluation | None = None
        self.best: float | None = None
        self.finished: Finished | None = None
        self.began = time.monotonic()
        self.next_evaluation = 0.0
        self.next_line = 0.0

    def run(self) -> None:
        """Train until the goal is reached or a stop is asked for."""
        self._save_when_due(steps_before=0)
        while self.finished is None and not self.stop.requested:
            policy = self.history.behaviour(self._policy())
            started = time.monotonic()
            try:
                rollouts = self.sampling.collect(policy, self.stop)
            except StoppedError:
                break
            collected = time.monotonic()
            staleness = [self.progress.update - policy.weights.update] * len(rollouts)
            batch = stack(rollouts, staleness)
            steps_before = self.progress.trained_steps
            report = self.ppo.update(batch, steps_before / self.config.env_steps)
            self.cautions.consider(report)
            self.progress.add_update(batch.steps, staleness, batch.episode_returns.tolist())
            self.progress.train_s = time.monotonic() - self.began
            if time.monotonic() >= self.next_evaluation:
                self._evaluate()
            self._record(report, staleness[0], collected - started, time.monotonic() - collected)
            self._save_when_due(steps_before)
            self._judge()
        if not self.stop.requested and not self._is_evaluated():
            self._evaluate()
            self._judge()

    def _save_when_due(self, steps_before: int) -> None:
        if self.saving is not None:
            self.saving.save_when_due(self.ppo, self.progress, steps_before)

    def _policy(self) -> ActingPolicy:
        steps = self.progress.trained_steps
        update = self.progress.update
        weights = Weights(
            1, update + 1, update, steps, steps, self.description.digest, self.ppo.acting_arrays()
        )
        return ActingPolicy(weights, self.description.spec)

    def _evaluate(self) -> None:
        """Greedy episodes, as rarely as the evaluator of a fleet would play them."""
        started = time.monotonic()
        policy = self._policy()
        try:
            self.evaluation = evaluate(policy, self.description, self.stop)
        except StoppedError:
            return
        except EnvironmentBrokenError as error:
            _log.error("no evaluation: %s", error)
        else:
            if self.best is None or self.evaluation.return_mean > self.best:
                self.best = self.evaluation.return_mean
                self._keep(policy.weights, self.evaluation)
        took_s = time.monotonic() - started
        pause_s = max(self.config.evaluation.interval_s, took_s / self.config.evaluation.max_share - took_s)
        self.next_evaluation = time.monotonic() + pause_s

    def _keep(self, weights: Weights, evaluation: Evaluation) -> None:
        try:
            keep_best(self.run_dir, weights, evaluation)
        except OSError as error:
            _log.error("cannot keep the best policy: %s", error)

    def _is_evaluated(self) -> bool:
        return self.evaluation is not None and self.evaluation.update == self.progress.update

    def _judge(self) -> None:
        evaluation = self.evaluation
        self.finished = judge_goal(
            self.goal,
            self.progress,
            self.progress.trained_steps,
            evaluation.return_mean if evaluation else None,
            evaluation.env_steps if evaluation else None,
        )

    def _record(self, report: UpdateReport, staleness: int, collect_s: float, update_s: float) -> None:
        progress, evaluation = self.progress, self.evaluation
        self.metrics.write(
            make_record(
                report,
                update=progress.update,
                trained_steps=progress.trained_steps,
                env_steps=progress.trained_steps,
                train_s=round(progress.train_s, 3),
                return_mean=progress.return_mean,
                episodes=progress.episodes,
                evaluation_return=evaluation.return_mean if evaluation else None,
                evaluation_steps=evaluation.env_steps if evaluation else None,
                staleness_mean=float(staleness),
                staleness_max=staleness,
                version=progress.update,
                wait_s=collect_s,
                update_s=update_s,
            )
        )
        if time.monotonic() >= self.next_line:
            self.next_line = time.monotonic() + _LINE_PERIOD_S
            self.screen.say(
                f"{progress.trained_steps}/{self.config.env_steps} steps, {progress.steps_per_s():.0f}/s, "
                f"update {progress.update}, return {progress.return_mean or 0:.1f}, "
                f"evaluation {f'{evaluation.return_mean:.1f}' if evaluation else '-'}"
            )

    def summary(self, wall_s: float) -> RunSummary:
        """What the run came to."""
        progress, evaluation, finished = self.progress, self.evaluation, self.finished
        return RunSummary(
            reason=finished.reason if finished and not self.stop.requested else "stopped",
            env_steps=progress.trained_steps,
            trained_steps=progress.trained_steps,
            wall_s=wall_s,
            train_s=progress.train_s,
            steps_per_s=progress.steps_per_s(),
            updates=progress.update,
            return_mean=evaluation.return_mean if evaluation else None,
            return_episodes=evaluation.episodes if evaluation else 0,
            target_step=finished.target_step if finished else None,
            train_return_mean=progress.return_mean,
            refused=self.sampling.trouble.refused,
            run_dir=str(self.run_dir),
        )


def make_serial(
    config: RunConfig,
    run_dir: Path,
    screen: Screen,
    stop: StopRequest,
    age: int = 0,
    run: str | None = None,
) -> Serial:
    """All parts of a serial run; its files go to `run_dir`, checkpoints only where it has a name."""
    spaces = inspect(source_of(config), use_mask=config.use_action_mask)
    derived = derive(config, spaces.observation, spaces.action, serial=True)
    description = describe_run(config, spaces.observation, spaces.action, derived.rollout_steps)
    ppo = build_ppo(config, description, derived.update_epochs)
    if config.init_from is not None:
        warm_start(ppo, Path(config.init_from))
    return Serial(
        config=config,
        description=description,
        sampling=make_sampling(config, description),
        ppo=ppo,
        metrics=MetricsFiles(run_dir, first_update=0),
        run_dir=run_dir,
        screen=screen,
        stop=stop,
        age=age,
        saving=None if run is None else Saving(run, run_dir, config, description),
    )


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
    spaces = inspect(source_of(config), use_mask=config.use_action_mask)
    derived = derive(config, spaces.observation, spaces.action, serial=True)
    directory = choose(config, options.run, options.run_dir, resume=False)
    check(directory, resume=False, overwrite=options.overwrite)
    check_network(config, describe_run(config, spaces.observation, spaces.action, derived.rollout_steps))
    check_before_start(config, spaces, directory.path)
    claim(directory)
    sampling = f"one process, age {options.age}"
    prepare(directory, as_used(config, derived), resume=False, sampling=sampling)
    screen = Screen(progress_stream(options.json))
    screen.print(derived_table(config, derived, serial=True))
    serial = make_serial(config, directory.path, screen, stop, options.age, directory.run)
    failure: DppoError | None = None
    try:
        with Watchdog(config.env_timeout_s, stop, stopped_status=ExitStatus.INTERRUPTED):
            serial.run()
    except DppoError as error:
        failure = error
    finally:
        serial.metrics.close()
        serial.sampling.close()
    if serial.saving is not None:
        serial.saving.save(serial.ppo, serial.progress)
    wall_s = time.monotonic() - started
    return _conclude(serial, directory.run, failure, wall_s, json_wanted=options.json)


def _conclude(
    serial: Serial, run: str, failure: DppoError | None, wall_s: float, *, json_wanted: bool
) -> int:
    summary = serial.summary(wall_s)
    if failure is not None:
        summary = replace(summary, reason="failed")
    evaluation = serial.evaluation
    try:
        write_summary(serial.run_dir, summary)
        plot_run(serial.run_dir, run, (evaluation.env_steps, evaluation.return_mean) if evaluation else None)
    except OSError as error:
        _log.error("cannot write the last artefacts: %s", error)
    if failure is None:
        serial.screen.print(summary_table(summary))
    if json_wanted:
        print(json.dumps(to_json(summary)), flush=True)
    if failure is not None:
        raise failure
    return serial.stop.exit_status
