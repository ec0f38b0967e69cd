"""`dppo-redis bench article`: the claims of the article behind this product, with numbers of our own.

Each claim is a comparison in one run, all kinds in turn. Without `--claim` all are measured, one after
another. A claim takes up to three minutes on two idle cores.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dppo_redis.environments.step_time import cores
from dppo_redis.errors import ConfigurationError, ExitStatus
from ops.bench.arguments import BenchmarkParser
from ops.bench.article import packing, publishing, ray_version, smaller_steps, streams, total_batch
from ops.bench.article.findings import Finding, all_as_json
from ops.bench.processes import stoppable
from ops.bench.rounds import add_common, check_repeats


@dataclass(frozen=True)
class Claim:
    """A sentence of the article, and how it is measured."""

    sentence: str
    measure: Callable[[int], Finding]
    repeats: int
    missing: Callable[[], str | None] = lambda: None  # the command that installs what it needs


CLAIMS = {
    "streams": Claim("a queue for each actor avoids contention", streams.measure, streams.REPEATS),
    "publishing": Claim(
        "weights every 5 to 10 updates are over 20 % faster", publishing.measure_small, publishing.REPEATS
    ),
    "publishing-16mb": Claim(
        "the same with 16 MB of weights", publishing.measure_large, publishing.LARGE_REPEATS
    ),
    "packing": Claim(
        "whole rollouts as packed arrays, not an object for each step", packing.measure, packing.REPEATS
    ),
    "smaller-steps": Claim(
        "a lower learning rate and clip range after distributing",
        smaller_steps.measure,
        smaller_steps.REPEATS,
    ),
    "total-batch": Claim(
        "the total batch stays constant while workers grow", total_batch.measure, total_batch.REPEATS
    ),
    "ray": Claim(
        "its version on Ray beside this one",
        ray_version.measure,
        ray_version.REPEATS,
        ray_version.how_to_install,
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table for each claim.

    Raises:
        ConfigurationError: a number is out of range.
    """
    options = _options(argv)
    found: dict[str, Finding] = {}
    with stoppable():
        for name in options.claim:
            claim = CLAIMS[name]
            command = claim.missing()
            if command is not None:
                print(f"{name}: its peer is not installed: {command}", file=sys.stderr)
                continue
            found[name] = claim.measure(options.repeats or claim.repeats)
            if not options.json:
                print(f"{name}: {claim.sentence}\n\n{found[name].text()}\n", flush=True)
    if options.json:
        print(json.dumps(all_as_json(found)))
    else:
        print(f"Medians, with the lowest and the highest; {cores()} cores")
    return ExitStatus.DONE


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = BenchmarkParser(prog="dppo-redis bench article", description=__doc__)
    names = ", ".join(CLAIMS)
    parser.add_argument("--claim", nargs="+", default=list(CLAIMS), metavar="NAME", help=names)
    add_common(parser, None, "default: 3 or 5, as the claim needs")
    options = parser.parse_args(argv)
    check_repeats(options.repeats)
    unknown = [name for name in options.claim if name not in CLAIMS]
    if unknown:
        raise ConfigurationError(f"claim: no claim {unknown[0]!r}; there are: {names}")
    return options


if __name__ == "__main__":
    sys.exit(main())
