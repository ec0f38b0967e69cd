"""Renders the supervisord configuration of a run. Pure.

Each service is a group of its own, so that priorities set the order of the shutdown: actors first, then
evaluator, learner and broker. Each service waits for Redis itself; supervisord does not wait for it.
"""

import configparser
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dppo_redis.artefacts.run_files import RunFiles, event_log_file
from dppo_redis.errors import ConfigurationError

ACTORS = "actor_"  # prefix of the names of actor processes
SAMPLING_STOP_WAIT_S = 3  # longer than an actor needs to end a hanging step and its child processes
LEARNER, EVALUATOR = "learner", "evaluator"
LEARNER_STOP_WAIT_S = 60  # longer than the longest allowed save


@dataclass(frozen=True)
class FleetPlan:
    """The services that supervisord runs, and their directories."""

    run: str
    run_dir: Path
    private_dir: Path  # of the sockets; a short path, mode 0700
    working_dir: Path  # from which services import the user's modules
    python: str
    actors: int
    broker_command: Sequence[str] | None  # None: the run uses a Redis that already runs
    open_files: int = 1024  # limit of open files that supervisord requires (minfds)
    event_log: Path | None = None  # directory for one file of events for each service
    evaluator: bool = True  # whether the fleet has an evaluator

    @property
    def files(self) -> RunFiles:
        return RunFiles(self.run_dir)

    @property
    def control_socket(self) -> Path:
        return self.private_dir / "supervisor.sock"


def render(plan: FleetPlan) -> str:
    """The text of the configuration file. It holds no secrets: services read these from environment
    variables.

    Raises:
        ConfigurationError: supervisord's format cannot hold a path.
    """
    paths = (plan.run_dir, plan.private_dir, plan.working_dir, Path(plan.python), plan.event_log)
    for path in paths:
        check_path(path)
    sections = [_supervisord(plan)]
    if plan.broker_command is not None:
        broker = [plan.python, "-P", "-m", "ops.fleet.run_tied", *plan.broker_command]
        sections.append(_program(plan, "broker", broker, priority=10, stop_wait_s=10, restart="true"))
    run = ["--run", plan.run]
    directory = ["--run-dir", str(plan.run_dir)]
    learner = [plan.python, "-P", "-m", "learner", *run, *directory, *_event_log(plan, "learner")]
    evaluator = [
        plan.python,
        "-P",
        "-m",
        "workers.evaluate",
        *run,
        *directory,
        *_event_log(plan, "evaluator"),
    ]
    actor = [plan.python, "-P", "-m", "workers", *run, "--slot"]
    sections.append(_program(plan, LEARNER, learner, priority=50, stop_wait_s=LEARNER_STOP_WAIT_S))
    if plan.evaluator:
        sections.append(_program(plan, EVALUATOR, evaluator, priority=80, stop_wait_s=SAMPLING_STOP_WAIT_S))
    sections.append(
        _program(plan, "actor", actor, priority=90, stop_wait_s=SAMPLING_STOP_WAIT_S, numbered=plan.actors)
    )
    return "\n".join(sections)


def _supervisord(plan: FleetPlan) -> str:
    return f"""\
[supervisord]
nodaemon=true
logfile={_value(plan.files.log("supervisord"))}
logfile_maxbytes=5MB
logfile_backups=1
pidfile={_value(plan.private_dir / "supervisord.pid")}
minfds={plan.open_files}
minprocs=1
directory={_value(plan.working_dir)}

[unix_http_server]
file={_value(plan.control_socket)}
chmod=0700

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface

[supervisorctl]
serverurl=unix://{_value(plan.control_socket)}
"""


def _program(
    plan: FleetPlan,
    name: str,
    command: Sequence[str],
    *,
    priority: int,
    stop_wait_s: int,
    restart: str = "unexpected",
    numbered: int | None = None,
) -> str:
    text = _value(shlex.join(command))
    service = name if numbered is None else f"{name}_%(process_num)03d"
    # supervisord expands this value twice, so percent signs are doubled twice.
    log = RunFiles(Path(_value(_value(plan.run_dir)))).log(service)
    numbering = ""
    if numbered is not None:
        text += " %(process_num)d"
        if plan.event_log is not None:
            directory = Path(_value(shlex.quote(str(plan.event_log))))
            text += f" --event-log {event_log_file(directory, service)}"
        numbering = f"process_name=%(program_name)s_%(process_num)03d\nnumprocs={numbered}\n"
    return f"""\
[program:{name}]
command={text}
{numbering}priority={priority}
autorestart={restart}
exitcodes=0,74,78,79
startsecs=1
startretries=20
stopsignal=TERM
stopwaitsecs={stop_wait_s}
stopasgroup=true
killasgroup=true
redirect_stderr=true
stdout_logfile={log}
stdout_logfile_maxbytes=5MB
stdout_logfile_backups=1
environment=PYTHONUNBUFFERED="1",OMP_NUM_THREADS="1",OPENBLAS_NUM_THREADS="1",MKL_NUM_THREADS="1"
"""


def _event_log(plan: FleetPlan, service: str) -> list[str]:
    return [] if plan.event_log is None else ["--event-log", str(event_log_file(plan.event_log, service))]


def _value(value: object) -> str:
    return str(value).replace("%", "%%")


def private_directory_in(configuration: Path) -> Path | None:
    """The socket directory in a configuration file; None if the file is missing or unreadable."""
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(configuration.read_text(encoding="utf-8"))
        return Path(parser["unix_http_server"]["file"].replace("%%", "%")).parent
    except (OSError, ValueError, KeyError, configparser.Error):
        return None


def check_path(path: Path | None) -> None:
    """Refuse a path that supervisord's format cannot hold.

    Raises:
        ConfigurationError: the message names the path.
    """
    text = str(path)
    if any(mark in text for mark in ("\n", "\r", " ;", " #", "\t")):
        raise ConfigurationError(
            f"the path {text!r} contains ' ;', ' #' or a control character: choose another path"
        )
