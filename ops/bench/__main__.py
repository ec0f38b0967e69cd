"""`dppo-redis bench STUDY`: the long studies. The short benchmarks are modules of their own, see README."""

import importlib
import sys
from collections.abc import Sequence

from dppo_redis.errors import ConfigurationError, ExitStatus

STUDIES = {"staleness": ("ops.bench.staleness", "what the age of the data costs, and what helps against it")}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: dppo-redis bench STUDY ...\n")
        print("\n".join(f"  {name}  {text}" for name, (_, text) in STUDIES.items()))
        return ExitStatus.DONE if arguments else ExitStatus.CONFIGURATION
    study = STUDIES.get(arguments[0])
    if study is None:
        raise ConfigurationError(f"no study {arguments[0]!r}; there are: {', '.join(STUDIES)}")
    return int(importlib.import_module(study[0]).main(arguments[1:]))
