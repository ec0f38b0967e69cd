"""`python -m tests.photographs`: photograph an old commit and this checkout, and print the differences."""

import argparse
import signal
import sys
import time
from collections.abc import Iterator

from tests.photographs import cost, going_on, lock_step, mixed, recorded
from tests.photographs.sides import BrokenSideError, Sides, sides

_ALL = {"lock_step": lock_step, "going_on": going_on, "mixed": mixed, "recorded": recorded}
_SHOWN = 8


def main() -> int:
    """Compare and print; the exit status is 0 if both sides are the same."""
    parser = argparse.ArgumentParser(prog="python -m tests.photographs", description=__doc__)
    parser.add_argument("--old", default="39f35ce", help="commit to compare with")
    parser.add_argument("--only", nargs="*", default=list(_ALL), choices=_ALL, metavar="NAME")
    parser.add_argument("--cost", action="store_true", help="compare CPU time instead")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of runs, with --cost")
    options = parser.parse_args()
    if options.cost and options.pairs < cost.FEWEST_PAIRS:
        parser.error(f"an interval of 95 % needs at least {cost.FEWEST_PAIRS} pairs")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the context managers clean up
    began, same, different = time.monotonic(), 0, 0
    with sides(options.old) as both:
        if options.cost:
            return int(not cost.compare(both, options.pairs))
        for title, found in _compare(both, options.only):
            lines = [f"{'differs' if found else 'same   '} {title}", *found[:_SHOWN]]
            print("\n    ".join(lines), flush=True)
            same, different = same + (not found), different + bool(found)
    print(f"{same} photographs are the same, {different} differ; {time.monotonic() - began:.0f} s")
    return int(different > 0 or same == 0)


def _compare(both: Sides, parts: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Compare the photographs of these parts. A side that fails counts as a difference."""
    for name in parts:
        try:
            yield from _ALL[name].photographs(both)
        except BrokenSideError as error:
            yield f"{name}, of which the rest is missing", [str(error)]


if __name__ == "__main__":
    sys.exit(main())
