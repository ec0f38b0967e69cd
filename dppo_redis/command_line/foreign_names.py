"""The table of foreign names: those of other libraries and earlier releases, and what they are called here.

A foreign name with the same meaning is replaced by our name. A name with another meaning is refused, and the
message says which of our settings to use. TOML files, flags and keyword arguments use the same table.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

_SETTING = re.compile(r"\{([a-z_.]+)\}")
SB3, CLEANRL, RLLIB = "stable-baselines3", "CleanRL", "RLlib"
PREVIOUS_RELEASE = "the previous release"
COMMAND_LINE = "the command line"  # options of the commands, which are no settings
_OTHERS = "others"


@dataclass(frozen=True)
class ForeignName:
    """One foreign name, the library that uses it, and our name for it."""

    name: str  # with underscores, without a section
    library: str
    ours: str = ""  # our setting or option, for example ppo.entropy_coef; "" if the name is refused
    why: str = ""  # what to do instead of a refused name, our settings in braces; or a difference in meaning

    @property
    def section(self) -> str:
        """The section of our setting, for example "ppo."; "" if it has none."""
        return self.ours[: self.ours.rfind(".") + 1]

    def explain(self, spell: Callable[[str], str]) -> str:
        """`why`, with our settings as `spell` writes them: as flags, or as keys of a file."""
        return _SETTING.sub(lambda found: spell(found[1]), self.why)


def as_flag(setting: str) -> str:
    """`ppo.batch_steps` as a flag: `--ppo.batch-steps`."""
    return f"--{setting.replace('_', '-')}"


def as_key(setting: str) -> str:
    """`ppo.batch_steps` as messages about files and keyword arguments write it."""
    return setting


def find_foreign(name: str) -> ForeignName | None:
    """The entry of a name in any case, with hyphens or underscores; None if it is not in the table."""
    return _BY_NAME.get(name.lower().replace("-", "_"))


_SAME_MEANING = {
    PREVIOUS_RELEASE: {"env_steps": "total_steps", "history": "event_log"},
    SB3: {
        "total_timesteps": "total_steps",
        "n_timesteps": "total_steps",
        "n_steps": "rollout_steps",
        "n_epochs": "ppo.update_epochs",
        "clip_range": "ppo.clip_epsilon",
        "clip_range_vf": "ppo.value_clip",
        "ent_coef": "ppo.entropy_coef",
        "norm_obs": "ppo.normalise_observations",
        "norm_reward": "ppo.normalise_returns",
        "n_stack": "frame_stack",
        "n_eval_episodes": "evaluation.episodes",
    },
    CLEANRL: {
        "num_steps": "rollout_steps",
        "clip_coef": "ppo.clip_epsilon",
        "anneal_lr": "ppo.anneal_learning_rate",
    },
    RLLIB: {
        "lr": "ppo.learning_rate",
        "train_batch_size": "ppo.batch_steps",
        "sgd_minibatch_size": "ppo.minibatch_size",
        "num_sgd_iter": "ppo.update_epochs",
        "num_epochs": "ppo.update_epochs",
        "clip_param": "ppo.clip_epsilon",
        "entropy_coeff": "ppo.entropy_coef",
        "grad_clip": "ppo.max_grad_norm",
        "lambda": "ppo.gae_lambda",
        "lambda_": "ppo.gae_lambda",
        "num_workers": "actors",
        "num_env_runners": "actors",
        "num_envs_per_worker": "envs_per_actor",
        "num_envs_per_env_runner": "envs_per_actor",
        "rollout_fragment_length": "rollout_steps",
    },
    _OTHERS: {
        "num_actors": "actors",
        "n_actors": "actors",
        "normalize_observations": "ppo.normalise_observations",
        "normalize_returns": "ppo.normalise_returns",
    },
}
_ENVIRONMENTS = "environments are counted for each actor here: {envs_per_actor}, times {actors}"
_ADVANTAGES = "advantages are always normalised, over each minibatch: leave it out"
_FIGURES = "numbers and TensorBoard files are always written, into the directory of the run: leave it out"
_OTHER_MEANING = {
    SB3: {
        "batch_size": (
            "in stable-baselines3 it is the rows of one gradient step, here {ppo.minibatch_size}; in CleanRL "
            "all rows of one update, here {ppo.batch_steps}"
        ),
        "n_envs": _ENVIRONMENTS,
        "normalize_advantage": _ADVANTAGES,
        "tensorboard_log": _FIGURES,
        "policy": "the network follows from the observations: see {network.hidden} and {network.custom}",
        "policy_kwargs": "the network has settings of its own: {network.hidden}, {network.activation}",
        "net_arch": "policy and value networks have one shape here: {network.hidden}",
        "use_sde": "there is no state-dependent exploration here: leave it out",
        "eval_freq": "evaluations are timed here, and never delay training: {evaluation.interval_s}",
        "verbose": "there is one view for people, and --json for scripts: leave it out",
    },
    CLEANRL: {
        "num_envs": _ENVIRONMENTS,
        "num_minibatches": (
            "a minibatch has a size here: {ppo.minibatch_size}, which is {ppo.batch_steps} / num_minibatches"
        ),
        "norm_adv": _ADVANTAGES,
        "clip_vloss": "value clipping has a range of its own here, and is off without it: {ppo.value_clip}",
        "exp_name": "a run has one whole name here: --run NAME on the command line",
        "cuda": "the learner computes where {device} says: auto (the default), cpu or cuda",
        "torch_deterministic": "a run is reproducible in lock-step mode: {lock_step}",
        "capture_video": "a video is made afterwards: dppo-redis enjoy RUN_DIR --video FILE.mp4",
        "track": _FIGURES,
        "wandb_project_name": _FIGURES,
        "wandb_entity": _FIGURES,
        "save_model": "checkpoints and the best policy are always kept, in the directory of the run",
    },
    RLLIB: {
        "kl_coeff": "there is no KL penalty here; {ppo.target_kl} ends an update early",
        "vf_clip_param": "there the squared error is clipped, here the value's change: {ppo.value_clip}",
        "vf_loss_coeff": "there the squared error is not halved: {ppo.value_coef} is twice that number",
    },
    _OTHERS: {
        "no_eval": "evaluation is left out with {evaluation.enabled} false",
        "no_evaluation": "evaluation is left out with {evaluation.enabled} false",
        "max_episode_steps": "a wrapper does this: {wrappers} 'TimeLimit(max_episode_steps=N)'",
    },
    COMMAND_LINE: {
        name: f"it is an option of the command, not a setting: {as_flag(name)}"
        for name in ("run", "run_dir", "redis", "resume", "overwrite", "json", "event_log", "age", "config")
    },
}
FOREIGN_NAMES = (
    *(
        ForeignName(name, library, ours)
        for library, names in _SAME_MEANING.items()
        for name, ours in names.items()
    ),
    ForeignName(
        "vf_coef",
        CLEANRL,
        "ppo.value_coef",
        "stable-baselines3 does not halve the squared error: its 0.5 is 1.0",
    ),
    ForeignName("env", SB3, "env_id"),
    *(
        ForeignName(name, library, why=why)
        for library, names in _OTHER_MEANING.items()
        for name, why in names.items()
    ),
)
_BY_NAME = {foreign.name: foreign for foreign in FOREIGN_NAMES}
