"""The screens in a terminal of width 100, from fixed values."""

from typing import Any

from tests.photographs.camera import photograph
from tests.photographs.product import run_screens, start_table, summary_screen
from tests.photographs.scenes import ACTORS, EVALUATION, LEDGER, STATUS

_COUNTS = {name: int(count) for name, count in LEDGER.items()}
_SUMMARY: dict[str, Any] = {
    "reason": "target",
    "settled_steps": 260000,
    "trained_steps": 258048,
    "wall_s": 101.25,
    "train_s": 90.5,
    "steps_per_s": 2851.4,
    "updates": 126,
    "version": 127,
    "return_mean": 480.25,
    "return_episodes": 20,
    "target_step": 256000,
    "train_return_mean": 401.5,
    "staleness": {"mean": 0.95, "max": 3, "limit": 4},
    "ledger": {"entries_added": 1020, "trained": 1008, "stale": 1, "duplicate": 2, "refused": 3, "lost": 0,
               "backlog": 6, "imbalance": 0},
    "actors": 2,
    "actor_wait_share": 0.25,
    "run_dir": "/runs/[one]",
}  # fmt: skip
_SERIAL = {
    **{
        name: _SUMMARY[name]
        for name in ("settled_steps", "trained_steps", "wall_s", "train_s", "steps_per_s")
    },
    **{name: _SUMMARY[name] for name in ("updates", "return_episodes", "run_dir")},
    **dict.fromkeys(("target_step", "return_mean", "train_return_mean")),
    "refused": 2,
    "reason": "stopped",
}
_SETTINGS: dict[str, dict[str, Any]] = {
    "elastic": {"env_id": "CartPole-v1"},
    "lock step": {"env_id": "CartPole-v1", "lock_step": True, "actors": 3},
    "memory": {"env_id": "Pendulum-v1", "network": {"memory": "gru"}, "max_staleness": 2},
}


def test_the_panel_and_the_plain_line_of_a_run() -> None:
    screens = []
    for state, changes in {
        "trains": {},
        "is alarmed": {"alarm": "all 20 rollouts of the last 5 s were dropped: 20 stale"},
        "is young": {"return_mean": "", "target_return": "", "trained_steps": "0", "steps_per_s": "0.0"},
    }.items():
        for evaluation, actors in ((EVALUATION, ACTORS), ({}, {})):
            panel, line = run_screens(
                {**STATUS, **changes},
                control=("run", "", None),
                ledger=_COUNTS,
                evaluation=evaluation,
                actors=actors,
                age_s=0.0,
            )
            screens += [state, panel, line, ""]
    photograph("panels.txt", "\n".join(screens))


def test_the_tables_at_the_start_and_end_of_a_run() -> None:
    screens = [
        f"{name}, serial {serial}\n{start_table(settings, serial=serial)}"
        for name, settings in _SETTINGS.items()
        for serial in (False, True)
    ]
    screens += [summary_screen(_SUMMARY), summary_screen(_SERIAL)]
    photograph("tables.txt", "\n\n".join(screens))
