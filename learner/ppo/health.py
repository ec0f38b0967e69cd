"""The rules that detect unhealthy updates, as one table, for learner and serial baseline. Pure.

A rule reads the reports of the last updates, newest last, and returns a text with the problem and its remedy,
or None. No recipe in ops/runs ever reaches the limits: see docs/decisions.md.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dppo_redis.protocol.spec import Spec
from learner.ppo.update import UpdateReport

Reports = Sequence[UpdateReport]

RATIO_TOLERANCE = 1e-3
LONGEST_WINDOW = 20  # updates
_KL_LIMIT = 0.5
_BLIND_EXPLAINED_VARIANCE = 0.01
_LARGE_VALUE_LOSS = 1e6
_COLLAPSED_SHARE = 0.01  # of the entropy of choosing evenly
_COLLAPSED_STD = 0.01
_SHORT_HORIZON = 5.0  # steps, 1 / (1 - gamma); published recipes go down to a gamma of 0.8
_HORIZONS_OF_AN_EPISODE = 5  # the reward five horizons ahead counts less than 1 %


@dataclass(frozen=True)
class HealthRule:
    """A rule for one sign of an unhealthy update."""

    kind: str
    window: int  # updates in a row that must show it
    shows: Callable[[UpdateReport, Spec], bool]
    text: Callable[[Reports], str]  # of the updates of the window
    is_grave: bool = False  # the training cannot learn: an alarm while it lasts
    is_lasting: bool = False  # follows from a setting, so that one line in the log is enough

    def judge(self, reports: Reports, spec: Spec) -> str | None:
        """The problem as text, or None; `reports` are those of the last updates, newest last."""
        last = reports[-self.window :]
        if len(last) < self.window or not all(self.shows(report, spec) for report in last):
            return None
        return self.text(last)


def _has_no_effect(report: UpdateReport, _spec: Spec) -> bool:
    return report.gradient_steps == 0


def _no_effect(last: Reports) -> str:
    return (
        f"nothing is learnt: all gradient steps of {len(last)} updates in a row were skipped, as they were "
        "not finite. Rewards or observations are too large, or the weights are no numbers any more: scale "
        "rewards (--ppo.normalise-returns) and observations (--ppo.normalise-observations), and start a new "
        "run or resume from an earlier checkpoint"
    )


def _skips(report: UpdateReport, _spec: Spec) -> bool:
    return report.skipped_steps > 0


def _skipped(last: Reports) -> str:
    report = last[-1]
    steps = report.skipped_steps + report.gradient_steps
    return (
        f"{report.skipped_steps} of {steps} gradient steps were skipped: not finite, or without a valid row"
    )


def _has_ratio_error(report: UpdateReport, _spec: Spec) -> bool:
    return report.ratio_error is not None and report.ratio_error > RATIO_TOLERANCE


def _ratio_error(last: Reports) -> str:
    return (
        "actors and learner disagree about the probabilities of fresh actions by a factor of "
        f"up to {1 + (last[-1].ratio_error or 0.0):.4f}: are all machines on one release?"
    )


def _has_large_kl(report: UpdateReport, _spec: Spec) -> bool:
    return report.approx_kl > _KL_LIMIT


def _large_kl(last: Reports) -> str:
    return (
        f"one update moved the policy by a KL divergence of {last[-1].approx_kl:.3g} (usual are 0.001 to "
        f"0.05): lower --ppo.learning-rate ({last[-1].learning_rate:.3g}), take fewer --ppo.update-epochs, "
        "or set --ppo.target-kl 0.05"
    )


def _explains_nothing(report: UpdateReport, _spec: Spec) -> bool:
    explains = report.explained_variance > _BLIND_EXPLAINED_VARIANCE
    return not explains and report.gradient_steps > 0 and report.value_loss > _LARGE_VALUE_LOSS


def _blind_critic(last: Reports) -> str:
    return (
        f"the critic has explained nothing of the returns for {len(last)} updates, and its loss of "
        f"{last[-1].value_loss:.2g} leaves the policy no share of the gradient: the rewards are too large: "
        "scale them (--ppo.normalise-returns)"
    )


def _has_collapsed(report: UpdateReport, spec: Spec) -> bool:
    """Whether the entropy is far below even choice. False with a mask or both kinds of actions."""
    action = spec.action
    if report.gradient_steps == 0 or any(field.kind == "mask" for field in spec.observation.fields):
        return False
    if not action.dimensions:
        return report.entropy < _COLLAPSED_SHARE * sum(map(math.log, action.categories))
    narrow = math.log(_COLLAPSED_STD) + 0.5 * math.log(2 * math.pi * math.e)  # of a normal distribution
    return not action.categories and report.entropy < action.dimensions * narrow


def _collapsed(last: Reports) -> str:
    return (
        f"the policy has explored next to nothing for {len(last)} updates (entropy {last[-1].entropy:.2g}): "
        "unless its return cannot get better, start a new run with a higher --ppo.entropy-coef (0.01), a "
        "lower --ppo.learning-rate, or a --ppo.gamma nearer to 1"
    )


def _horizon(report: UpdateReport) -> float:
    """The horizon of the discount in steps, 1 / (1 - gamma); infinite without a discount."""
    return 1 / (1 - report.gamma) if report.gamma < 1 else math.inf


def _is_short_sighted(report: UpdateReport, _spec: Spec) -> bool:
    horizon = _horizon(report)
    return horizon < _SHORT_HORIZON and report.episode_steps > _HORIZONS_OF_AN_EPISODE * horizon


def _short_sighted(last: Reports) -> str:
    steps = sum(report.episode_steps for report in last) / len(last)
    return (
        f"a --ppo.gamma of {last[-1].gamma:g} looks {_horizon(last[-1]):.2g} steps ahead, and episodes take "
        f"about {steps:.0f}: unless each step's reward depends mostly on that step, start a new run with a "
        "gamma nearer to 1 (0.99 looks 100 steps ahead)"
    )


_FAR_OUT = "of an update were more than 100 standard deviations"
_CHECK_ENVIRONMENT = "look at the environment if it should not do that"


def _has_far_observations(report: UpdateReport, _spec: Spec) -> bool:
    return report.outlier_observations > 0


def _far_observations(last: Reports) -> str:
    count = last[-1].outlier_observations
    return f"{count} observations {_FAR_OUT} out, and held back from the normaliser: {_CHECK_ENVIRONMENT}"


def _has_far_rewards(report: UpdateReport, _spec: Spec) -> bool:
    return report.outlier_rewards > 0


def _far_rewards(last: Reports) -> str:
    count = last[-1].outlier_rewards
    return (
        f"{count} rewards {_FAR_OUT} of the return, and held back from its statistics: {_CHECK_ENVIRONMENT}"
    )


RULES = (
    HealthRule("no_effect", 10, _has_no_effect, _no_effect, is_grave=True),
    HealthRule("skipped", 1, _skips, _skipped),
    HealthRule("ratio", 1, _has_ratio_error, _ratio_error),
    HealthRule("kl", 1, _has_large_kl, _large_kl),
    HealthRule("blind_critic", 10, _explains_nothing, _blind_critic),
    HealthRule("collapsed", LONGEST_WINDOW, _has_collapsed, _collapsed),
    HealthRule("short_sighted", 10, _is_short_sighted, _short_sighted, is_lasting=True),
    HealthRule("far_observations", 1, _has_far_observations, _far_observations),
    HealthRule("far_rewards", 1, _has_far_rewards, _far_rewards),
)
