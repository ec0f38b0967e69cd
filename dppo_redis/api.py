"""The Python API: `dppo_redis.train` and `dppo_redis.load`. `ops/library` does the work.

The one module of this package that imports from `ops`. Nothing imports it: `dppo_redis/__init__.py` loads it
when one of its names is used.
"""

from pathlib import Path
from typing import Any, Literal

from dppo_redis.protocol.config import RunConfig
from ops.library.policy import Policy, load_from
from ops.library.request import make_request
from ops.library.run import Run, start

__all__ = ["Policy", "Run", "load", "train"]


def train(
    env: str | None = None,
    *,
    config: RunConfig | Path | str | None = None,
    run: str | None = None,
    run_dir: Path | str | None = None,
    redis: str | None = None,
    resume: bool | Literal["auto"] = False,
    overwrite: bool = False,
    event_log: Path | str | None = None,
    **settings: Any,
) -> Run:
    """Train a fleet in the background, as `dppo-redis train` does: returns once its processes run.

        run = dppo_redis.train("CartPole-v1", actors=2, total_steps=100_000, ppo={"learning_rate": 3e-4})

    The fleet ends when this program ends. Signals, threads and output of this process are left alone.

    Args:
        env: id of gymnasium, or "module:EnvId"; the module is found where this process finds it.
        config: settings to begin with, a `RunConfig` or the path of a TOML file; keyword arguments win.
        run: name of the run; default: environment, seed and time.
        run_dir: directory of its files; default: runs/NAME.
        redis: URL of a Redis; default: DPPO_REDIS_URL, where set, else a server of the run's own.
        resume: True: go on with the run in `run_dir` or of that name; "auto": begin, go on or show the end.
        overwrite: remove what an earlier run left in this directory and under this name.
        event_log: directory in which each process writes down what it did; default: none.
        settings: fields of `RunConfig`; sections as dicts: `ppo={"gamma": 0.98}`, `network={"hidden": [32]}`.

    Raises:
        ConfigurationError: a mistake in the settings or in the environment, in the words of the command, or
            an environment that only this notebook or script knows. Nothing has been started or removed.
        EnvironmentBrokenError: the environment kept raising, or hangs.
        UnavailableError: Redis cannot be reached.
        RunFailedError: the fleet did not start.
    """
    return start(
        make_request(
            env,
            settings,
            config=config,
            run=run,
            run_dir=run_dir,
            redis=redis,
            resume=resume,
            overwrite=overwrite,
            event_log=event_log,
        )
    )


def load(path: Path | str, *, seed: int | None = None) -> Policy:
    """The policy in a run's directory, a checkpoint, `best_policy.msgpack` or an export, ready to act.

        policy = dppo_redis.load("runs/NAME")
        action = policy.act(observation)

    Of a run's directory it is the best one of the evaluations, of a run without evaluations the newest
    checkpoint. The environment need not be installed. torch is imported for checkpoints, and for networks
    with images, a memory, or of your own.

    Args:
        path: of any of these.
        seed: makes the actions that `act(..., greedy=False)` draws repeatable.

    Raises:
        ConfigurationError: there is no policy, or it is damaged, or a checkpoint lies outside of its run.
    """
    return load_from(path, seed)
