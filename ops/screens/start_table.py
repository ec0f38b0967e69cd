"""Builds the table at the start of a run, for `train` and `serial`: what follows from the configuration."""

from rich.table import Table

from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.pacing import Derived
from ops.screens.start_advice import start_advice


def derived_table(config: RunConfig, derived: Derived, *, serial: bool = False) -> Table:
    """The table of numbers that follow from the configuration, with advice."""
    table = Table(title=f"{config.env_id}, seed {config.seed}", show_header=False, title_justify="left")
    rows: list[tuple[str, str]] = [
        ("samples per update", f"{derived.samples_per_update:,}"),
        (
            "gradient steps per update",
            f"{derived.gradient_steps_per_update} ({derived.update_epochs} passes)",
        ),
        ("memory of the learner, about", f"{derived.learner_bytes / 2**20:,.0f} MiB"),
        ("rollout", f"{derived.sampled_steps} steps x {config.envs_per_actor} environments"),
    ]
    if config.lock_step:
        rows.append(("lock-step", f"{config.actors} actors, segments of {config.segment_updates} updates"))
    if not serial:
        rows += [
            ("rollouts per update", f"{derived.rollouts_per_update} from {config.actors} actors"),
            ("bytes per rollout", f"{derived.rollout_bytes:,}"),
            (
                "expected staleness",
                f"{derived.expected_staleness:.1f} updates (limit {config.staleness_limit})",
            ),
            ("actors wait at a backlog of", _backlog_limits(derived)),
            (
                "most rollouts in Redis",
                f"{derived.valve_bytes / 2**20:,.0f} MiB, then the oldest are dropped",
            ),
        ]
    rows += [("advice", text) for text in start_advice(config, derived, serial=serial)]
    for name, value in rows:
        table.add_row(name, value)
    return table


def _backlog_limits(derived: Derived) -> str:
    if derived.backlog_fresh == derived.backlog_high:
        return f"{derived.backlog_high} rollouts"
    return f"{derived.backlog_fresh} rollouts, {derived.backlog_high} when the learner waits"
