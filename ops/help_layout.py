"""The layout of the help of `train` and `serial`: important options, three examples, the rest by group."""

from dppo_redis.command_line.help_text import Group, Layout

_NOTES = (
    "A TOML file may hold all settings: --ppo.gamma 0.9 is gamma = 0.9 below [ppo]. On the command line you "
    "may leave out ppo. and network. Names of stable-baselines3 and CleanRL are understood, too "
    "(--n-steps, --ent-coef, --total-timesteps).",
)
_GROUPS = (
    Group(
        "Run",
        (
            *("help", "run", "run_dir", "config", "redis", "resume", "overwrite", "json", "event_log"),
            *("total_steps", "target_return", "target_on", "seed", "init_from", "device", "age"),
        ),
    ),
    Group(
        "Environment",
        ("env_kwargs", "wrappers", "frame_stack", "use_action_mask", "env_timeout_s", "env_retry_s"),
    ),
    Group(
        "Fleet (number of actors, and limits for old data)",
        (
            *("actors", "envs_per_actor", "vectorization", "open_rollouts", "rollout_steps"),
            *("publish_every", "max_staleness", "lock_step", "segment_updates"),
        ),
    ),
    Group("Algorithm (PPO, arXiv:1707.06347, and its optimiser)", ("ppo.",)),
    Group("Network (of policy and value; with images or a memory they share layers)", ("network.",)),
    Group("Evaluation (greedy episodes, in environments of their own)", ("evaluation.",)),
    Group("Checkpoints (of the whole learner)", ("checkpoint.",)),
)


def _layout(command: str, important: tuple[str, ...], slow_example: tuple[str, str]) -> Layout:
    """`important` are the options of the first group; `slow_example` is a purpose and the words after ENV."""
    purpose, words = slow_example
    return Layout(
        first=Group("Most important options", important),
        examples=(
            ("train until the return is 475", f"dppo-redis {command} CartPole-v1 --target-return 475"),
            (
                "on a machine that may go away: the same line starts and continues it",
                f"dppo-redis {command} CartPole-v1 --run-dir runs/mine --resume auto",
            ),
            (purpose, f"dppo-redis {command} my_module:Robot-v0 {words}"),
        ),
        groups=_GROUPS,
        notes=_NOTES,
    )


TRAIN_LAYOUT = _layout(
    "train",
    ("env_id", "actors", "total_steps", "target_return", "resume", "run_dir", "redis", "config"),
    (
        "a slow environment (0.1 s a step): many actors, one copy each, small batches",
        "--actors 16 --envs-per-actor 1 \\\n"
        "      --ppo.batch-steps 512 --ppo.minibatch-size 128 --total-steps 5e4",
    ),
)
SERIAL_LAYOUT = _layout(
    "serial",
    ("env_id", "total_steps", "target_return", "envs_per_actor", "seed", "resume", "run_dir", "config"),
    (
        "a slow environment (0.1 s a step): parallel copies, small batches",
        "--envs-per-actor 8 \\\n      --vectorization async --ppo.batch-steps 512 --total-steps 5e4",
    ),
)
