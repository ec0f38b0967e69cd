"""The help's layout for `train` and `serial`: the most important flags, three examples, the rest by group."""

from dppo_redis.command_line.help_text import Group, Layout

_NOTES = (
    "All settings may stand in a TOML file, too: --ppo.gamma 0.9 is gamma = 0.9 below [ppo]. On the command "
    "line ppo. and network. may be left out. Names of stable-baselines3 and CleanRL are understood "
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
        "Fleet (who samples, and how old data may be)",
        (
            *("actors", "envs_per_actor", "vectorization", "rollout_steps", "publish_every"),
            *("max_staleness", "lock_step", "segment_updates"),
        ),
    ),
    Group("Algorithm (PPO, arXiv:1707.06347, and its optimiser)", ("ppo.",)),
    Group("Network (of policy and value; with images or a memory they share layers)", ("network.",)),
    Group("Evaluation (greedy episodes, in environments of their own)", ("evaluation.",)),
    Group("Checkpoints (of the whole learner)", ("checkpoint.",)),
)
TRAIN_LAYOUT = Layout(
    first=Group(
        "What matters most",
        ("env_id", "actors", "total_steps", "target_return", "resume", "run_dir", "redis", "config"),
    ),
    examples=(
        ("two actors, until the return is 475", "dppo-redis train CartPole-v1 --target-return 475"),
        (
            "on a machine that may be taken away: the same line begins and goes on",
            "dppo-redis train CartPole-v1 --run-dir runs/mine --resume auto",
        ),
        (
            "a slow environment (0.1 s a step): many actors, one copy each, small batches",
            "dppo-redis train my_module:Robot-v0 --actors 16 --envs-per-actor 1 \\\n"
            "      --ppo.batch-steps 512 --ppo.minibatch-size 128 --total-steps 5e4",
        ),
    ),
    groups=_GROUPS,
    notes=_NOTES,
)
SERIAL_LAYOUT = Layout(
    first=Group(
        "What matters most",
        ("env_id", "total_steps", "target_return", "envs_per_actor", "seed", "resume", "run_dir", "config"),
    ),
    examples=(
        ("until the return is 475", "dppo-redis serial CartPole-v1 --target-return 475"),
        (
            "on a machine that may be taken away: the same line begins and goes on",
            "dppo-redis serial CartPole-v1 --run-dir runs/mine --resume auto",
        ),
        (
            "a slow environment (0.1 s a step): copies that step at once, small batches",
            "dppo-redis serial my_module:Robot-v0 --envs-per-actor 8 \\\n"
            "      --vectorization async --ppo.batch-steps 512 --total-steps 5e4",
        ),
    ),
    groups=_GROUPS,
    notes=_NOTES,
)
