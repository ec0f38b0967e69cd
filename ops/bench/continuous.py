"""`dppo-redis bench continuous`: continuous control with the defaults, 2 actors, over seeds.

InvertedPendulum-v5 (MuJoCo, from ops/bench/requirements.txt); keeps the curve of the first seed.
"""

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.errors import ExitStatus
from ops.bench.arguments import BenchmarkParser
from ops.bench.runs import run, table

ENV_ID = "InvertedPendulum-v5"
FIGURES = Path(__file__).parent / "figures"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = BenchmarkParser(prog="dppo-redis bench continuous", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=300_000)
    options = parser.parse_args(argv)
    rows = []
    for index, seed in enumerate(options.seeds):
        with tempfile.TemporaryDirectory(prefix="dppo-bench-") as temporary:
            directory = Path(temporary) / "run"
            arguments = ["train", ENV_ID, "--actors", "2", "--seed", str(seed)]
            result = run([*arguments, "--total-steps", str(options.steps)], directory)
            assert result.staleness is not None  # of a fleet
            if index == 0:
                FIGURES.mkdir(exist_ok=True)
                shutil.copy(RunFiles(directory).curve, FIGURES / "inverted_pendulum.png")
        rows.append(
            [
                seed,
                f"{result.train_return_mean:.0f}",
                f"{result.return_mean:.0f}",
                f"{result.train_s:.0f}",
                f"{result.staleness.mean:.2f}",
            ]
        )
    print(table(["seed", "last 100 returns", "20 greedy episodes", "seconds", "mean staleness"], rows))
    return ExitStatus.DONE


if __name__ == "__main__":
    sys.exit(main())
