"""The Python API: `dppo_redis.train` and `dppo_redis.load`. `ops/library` does the work.

Only this module of the package imports from `ops`. No module imports it: `dppo_redis/__init__.py` loads it
when a program uses one of its names.
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
    """Train with a fleet in the background, as `dppo-redis train` does. Returns as soon as its processes run.

        run = dppo_redis.train("CartPole-v1", actors=2, total_steps=100_000, ppo={"learning_rate": 3e-4})

    The fleet ends when this program ends. It does not change this program's signals, threads and output.

    Args:
        env: environment id of gymnasium, or "module:EnvId"; the module must be importable in this program.
        config: a `RunConfig` or the path of a TOML file; keyword arguments override it.
        run: name of the run; default: environment, seed and time.
        run_dir: directory of the run's files; default: runs/NAME.
        redis: URL of a Redis; default: DPPO_REDIS_URL, if set, else a server that the run starts.
        resume: True continues the run in `run_dir` or of this name; "auto" starts, continues or shows it.
        overwrite: remove an earlier run of this name, and an earlier run's files from the directory.
        event_log: directory in which each process writes a log of its events; default: none.
        settings: fields of `RunConfig`; sections as dicts: `ppo={"gamma": 0.98}`, `network={"hidden": [32]}`.

    Raises:
        ConfigurationError: a mistake in the settings or in the environment, or an environment that only this
            notebook or script can import. Nothing has been started or removed.
        EnvironmentBrokenError: the environment raised in all attempts, or hangs.
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
    """Load a policy from a run's directory, a checkpoint, `best_policy.msgpack` or an export.

        policy = dppo_redis.load("runs/NAME")
        action = policy.act(observation)

    In a run's directory it takes the policy with the best evaluation; without evaluations, the newest
    checkpoint. The environment need not be installed. Checkpoints, custom networks, and networks with images
    or a memory import torch.

    Args:
        path: the directory or file.
        seed: with the same seed, `act(..., greedy=False)` draws the same actions.

    Raises:
        ConfigurationError: there is no policy, or it is damaged, or a checkpoint is outside of its run.
    """
    return load_from(path, seed)
