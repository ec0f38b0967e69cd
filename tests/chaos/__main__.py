"""`python -m tests.chaos`: a long attack on a CartPole fleet; prints the verdict and the recoveries."""

import argparse
import random
import signal
import sys
from pathlib import Path

from tests.chaos.faults import FAULTS
from tests.chaos.fleet import Fleet
from tests.chaos.injector import Injector, to_markdown

ACTORS = 4
CARTPOLE = (
    *("CartPole-v1", "--actors", str(ACTORS), "--total-steps", str(10**9)),
    *("--checkpoint.interval-s", "2"),
)


def main() -> int:
    """Attack, print, and say by the exit status whether every promise held."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], help="names of faults, such as kill_the_learner")
    parser.add_argument("--haste", type=float, default=0.0, help="share of faults not waited for, 0 to 1")
    parser.add_argument("--report", type=Path, help="write the table to this file")
    parser.add_argument("--keep", type=Path, help="copy histories and logs into this new directory")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the fleet is ended, too
    kinds = [fault for fault in FAULTS if not options.only or fault.__name__ in options.only]
    with Fleet(CARTPOLE, ACTORS) as fleet:
        if not fleet.disk_is_small:
            kinds = [fault for fault in kinds if fault.__name__ != "fill_the_disk"]
            print("no small disk without root: the full disk is left out")
        try:
            rng = random.Random(options.seed)
            report = Injector(fleet, rng, kinds, say=True, haste=options.haste).run(options.seconds)
        finally:
            if options.keep is not None:
                fleet.copy_logs(options.keep)
    text = to_markdown(report)
    print(text)
    if options.report is not None:
        options.report.write_text(text, encoding="utf-8")
    return int(bool(report.broken))


if __name__ == "__main__":
    sys.exit(main())
