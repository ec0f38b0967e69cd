"""The `dppo-redis` command: finds the sub-command; each has a module of its own."""

import importlib
import os
import sys
import time
from collections.abc import Sequence

from dppo_redis.errors import DppoError, ExitStatus

STARTED = time.monotonic()
COMMANDS = {
    "train": ("ops.train", "train an environment with a fleet of actors, through Redis"),
    "serial": ("ops.serial", "train in one process, without Redis: the baseline"),
    "evaluate": ("ops.evaluate", "play episodes with what a run has learnt"),
    "enjoy": ("ops.enjoy", "watch what a run has learnt, in a window or as a video"),
    "export": ("ops.export", "write what a run has learnt as safetensors, JSON and ONNX"),
    "plot": ("ops.compare", "compare the training curves of runs"),
    "bench": ("ops.bench.__main__", "run a study: what the age of the data costs"),
    "status": ("ops.status", "show what a run is doing"),
    "acl": ("ops.acl", "make Redis users: one per role, each with the rights it needs"),
    "quarantine": ("ops.quarantine", "show or clear what the learner refused as broken"),
    "actor": ("workers.__main__", "join a run as an actor"),
    "learner": ("learner.__main__", "run the learner of a run by itself"),
    "evaluator": ("workers.evaluate", "evaluate a run's newest weights by itself"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return ExitStatus.DONE if arguments else ExitStatus.CONFIGURATION
    if arguments[0] in ("-V", "--version"):
        from dppo_redis import __version__

        print(__version__)
        return ExitStatus.DONE
    command = COMMANDS.get(arguments[0])
    if command is None:
        print(f"dppo-redis: no command {arguments[0]!r}; there are: {', '.join(COMMANDS)}", file=sys.stderr)
        return ExitStatus.CONFIGURATION
    for library in ("OMP", "OPENBLAS", "MKL"):  # one compute thread; more change the last bits, too
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    try:
        # Imported only now: an actor must not wait for the learner's libraries.
        status = int(importlib.import_module(command[0]).main(arguments[1:]))
        sys.stdout.flush()
        return status
    except DppoError as error:
        print(f"dppo-redis: {error}", file=sys.stderr)
        return error.exit_status
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitStatus.DONE
    except KeyboardInterrupt:
        return ExitStatus.INTERRUPTED


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return (
        "usage: dppo-redis COMMAND ...\n\n" + "\n".join(lines) + "\n\n`dppo-redis COMMAND --help` says more."
    )


if __name__ == "__main__":
    sys.exit(main())
