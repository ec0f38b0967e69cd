"""Makes the files of tests/photographs/released: `python -m tests.photographs.release NEW_DIRECTORY`.

A release wrote these files. They must not change, because later releases must continue from them. A release
that writes other files gets its own directory beside them.
"""

import shutil
import subprocess
import sys
from pathlib import Path

SMALL = (
    *("CartPole-v1", "--vectorization", "sync", "--envs-per-actor", "2", "--seed", "3"),
    *("--network.hidden", "8", "--ppo.batch-steps", "64", "--ppo.minibatch-size", "32"),
    *("--ppo.update-epochs", "2", "--evaluation.episodes", "4", "--checkpoint.keep", "1"),
    *("--env-steps", "1280"),
)
RUNS = {
    "serial": ("serial", *SMALL, "--ppo.normalise-observations"),
    "fleet": ("train", *SMALL, "--actors", "2", "--checkpoint.milestone-steps", "1000"),
    "lock_step": ("train", *SMALL, "--actors", "2", "--lock-step", "--segment-updates", "5"),
}
KEPT = (
    *("config.toml", "run.json", "used.json", "metrics.csv", "best_policy.msgpack", "best_evaluation.json"),
    "checkpoints",
)


def main(target: Path) -> None:
    """Train each run, keep the files that other programs read, and export the first run."""
    scratch = target / "scratch"
    for name, arguments in RUNS.items():
        _command(*arguments, "--run", f"released-{name}", "--run-dir", str(scratch / name))
        (target / name).mkdir()
        for kept in KEPT:
            if (scratch / name / kept).exists():
                (scratch / name / kept).rename(target / name / kept)
    _command("export", str(target / "serial"), "--to", str(target / "export"), "--onnx", "no")
    shutil.rmtree(scratch)


def _command(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "ops", *arguments], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
