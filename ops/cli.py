"""The `dppo-redis` command: finds and runs the sub-command, each in a module of its own."""

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
    "evaluate": ("ops.commands.evaluate", "play episodes with what a run has learnt"),
    "enjoy": ("ops.commands.enjoy", "watch what a run has learnt, in a window or as a video"),
    "export": ("ops.commands.export", "write what a run has learnt as safetensors, JSON and ONNX"),
    "plot": ("ops.commands.plot", "compare the training curves of runs"),
    "bench": ("ops.bench.menu", "list the benchmarks and studies, or run one"),
    "status": ("ops.commands.status", "show what a run is doing"),
    "acl": ("ops.commands.acl", "make Redis users: one per role, each with the rights it needs"),
    "quarantine": ("ops.commands.quarantine", "show or clear what the learner refused as broken"),
    "actor": ("workers.__main__", "join a run as an actor"),
    "learner": ("learner.__main__", "run the learner of a run by itself"),
    "evaluator": ("workers.evaluate", "evaluate a run's newest weights by itself"),
}

_VERSIONED = re.compile(r"-v\d+$")
_GUARDED = ("train", "serial", "evaluate", "enjoy", "export", "actor", "evaluator")
_ANSWERING = ("train", "serial", "evaluate", "enjoy", "export")  # the user's code runs in these processes
_TIMED = ("train", "serial")  # the wall time in their summary includes imports


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Without `argv`, a command that runs the user's environments gets a guard process."""
    _open_standard_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None and arguments and arguments[0] in _GUARDED:
        return run_guarded(lambda: _main_apart(arguments))
    return _main(arguments)


def _main_apart(arguments: list[str]) -> int:
    """Run a command under the guard. The user's code must not print into the command's answers."""
    if arguments[0] in _ANSWERING and not {"-h", "--help"} & set(arguments):
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
    except BrokenPipeError:  # the reader of our output has ended, for example `head`
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
    for library in ("OMP", "OPENBLAS", "MKL"):  # one compute thread; more would also change the last bits
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    # Imported here, so that an actor does not import the learner's libraries.
    main = importlib.import_module(command[0]).main
    return int(main(arguments[1:], STARTED) if arguments[0] in _TIMED else main(arguments[1:]))


def _suggestion(word: str) -> str:
    """The probable intention behind a word that is no command."""
    if ":" in word or _VERSIONED.search(word):  # looks like an environment's id
        return f"; did you mean dppo-redis train {word}?"
    near = difflib.get_close_matches(word.lower(), COMMANDS, n=1)
    question = f"; did you mean {near[0]}?" if near else ";"
    return f"{question} there are: {', '.join(COMMANDS)}"


def _open_standard_streams() -> None:
    """Open closed standard streams on /dev/null, so that no other file gets their numbers: a lock with such a
    number would not reach a child process, and a library's error message would go into a socket."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
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
        return f"{error.strerror}: the working directory, or what was to be run in it, is gone"
    return str(error.strerror or error)


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return (
        "usage: dppo-redis COMMAND ...\n\n" + "\n".join(lines) + "\n\n`dppo-redis COMMAND --help` says more."
    )


if __name__ == "__main__":
    sys.exit(main())
