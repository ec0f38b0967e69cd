"""The `dppo-redis` command: finds and runs a sub-command. Each has a module of its own."""

import difflib
import importlib
import os
import re
import sys
import time
from collections.abc import Sequence

from dppo_redis.errors import ConfigurationError, DppoError, ExitStatus
from dppo_redis.service.guard import run_guarded
from dppo_redis.service.logs import answers, keep_output_apart

STARTED = time.monotonic()
COMMANDS = {
    "train": ("ops.commands.train", "train an environment with a fleet of actors, through Redis"),
    "serial": ("ops.commands.serial", "train in one process, without Redis: the baseline"),
    "evaluate": ("ops.commands.evaluate", "measure the mean return of a trained policy"),
    "enjoy": ("ops.commands.enjoy", "watch a trained policy, in a window or as a video"),
    "export": ("ops.commands.export", "write a trained policy as safetensors, JSON and ONNX"),
    "plot": ("ops.commands.plot", "compare the training curves of runs"),
    "bench": ("ops.bench.menu", "list the benchmarks and studies, or run one"),
    "status": ("ops.commands.status", "show the present status of a run"),
    "acl": ("ops.commands.acl", "make Redis users: one per role, each with the rights it needs"),
    "quarantine": ("ops.commands.quarantine", "show or remove the broken rollouts that the learner refused"),
    "actor": ("workers.__main__", "start an actor that joins a run"),
    "learner": ("learner.__main__", "start only the learner of a run"),
    "evaluator": ("workers.evaluate", "start only the evaluator of a run"),
}

_VERSIONED = re.compile(r"-v\d+$")
_GUARDED = ("train", "serial", "evaluate", "enjoy", "export", "actor", "evaluator")
_RUNNING_USER_CODE = (
    "train",
    "serial",
    "evaluate",
    "enjoy",
    "export",
)  # their own process runs the user's environment
_TIMED = ("train", "serial")  # the wall time in their summary includes imports


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Without `argv`, a command that runs the user's environments gets a guard process."""
    _open_standard_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None and arguments and arguments[0] in _GUARDED:
        return run_guarded(lambda: _main_under_guard(arguments))
    return _main(arguments)


def _main_under_guard(arguments: list[str]) -> int:
    """Run a command under the guard. Output of the user's code must not mix with the command's results."""
    if arguments[0] in _RUNNING_USER_CODE and not {"-h", "--help"} & set(arguments):
        keep_output_apart()
    return _main(arguments)


def _main(arguments: list[str]) -> int:
    try:
        status = _run(arguments)
        answers().flush()
        return status
    except DppoError as error:
        print(f"dppo-redis: {error}", file=sys.stderr)
        return error.exit_status
    except BrokenPipeError:  # the process that reads our output has ended, for example `head`
        _drop_output()
        return ExitStatus.DONE
    except OSError as error:  # a path that is too long or not readable, a full disk
        print(f"dppo-redis: {_explain(error)}", file=sys.stderr)
        _drop_output()
        return ExitStatus.FAILED if error.filename is None else ExitStatus.CONFIGURATION
    except KeyboardInterrupt:
        return ExitStatus.INTERRUPTED


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return ExitStatus.DONE if arguments else ExitStatus.CONFIGURATION
    if arguments[0] in ("-V", "--version"):
        from dppo_redis import __version__

        print(__version__)
        return ExitStatus.DONE
    command = COMMANDS.get(arguments[0])
    if command is None:
        raise ConfigurationError(f"no command {arguments[0]!r}{_suggestion(arguments[0])}")
    for library in (
        "OMP",
        "OPENBLAS",
        "MKL",
    ):  # one compute thread; several would change the last bits of sums
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    # Imported here, so that an actor does not import the learner's libraries.
    main = importlib.import_module(command[0]).main
    return int(main(arguments[1:], STARTED) if arguments[0] in _TIMED else main(arguments[1:]))


def _suggestion(word: str) -> str:
    """The end of the message about an unknown command: the command that the user probably meant."""
    if ":" in word or _VERSIONED.search(word):  # like an environment id
        return f"; did you mean dppo-redis train {word}?"
    if word.startswith("-"):
        return f"; write a command first: {', '.join(COMMANDS)}"
    near = difflib.get_close_matches(word.lower(), COMMANDS, n=1)
    question = f"; did you mean {near[0]}?" if near else ";"
    return f"{question} commands: {', '.join(COMMANDS)}"


def _open_standard_streams() -> None:
    """Open closed standard streams on /dev/null, so that no other file gets their numbers.

    A child process would not inherit a lock with such a number, and a library's error message would go into a
    socket with such a number.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def _drop_output() -> None:
    """Discard unwritten output, which would raise again at the interpreter's exit."""
    try:
        answers().flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), answers().fileno())


def _explain(error: OSError) -> str:
    if error.filename is not None:
        return f"{error.strerror}: {error.filename}"
    if isinstance(error, FileNotFoundError):
        return f"{error.strerror}: the working directory or a program was removed"
    return str(error.strerror or error)


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return (
        "usage: dppo-redis COMMAND ...\n\n"
        + "\n".join(lines)
        + "\n\n`dppo-redis COMMAND --help` lists the options of a command."
    )


if __name__ == "__main__":
    sys.exit(main())
