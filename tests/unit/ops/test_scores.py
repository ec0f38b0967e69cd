"""The scores: aggregation over seeds, the verdict, and a page that is made from the records alone."""

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from dppo_redis.artefacts.config_file import load_toml
from ops.bench.scores.command import RECIPES, make_page
from ops.bench.scores.page import ROWS, build, verdict
from ops.bench.scores.records import Greedy, Mode, Record, relative, results_in, score, thin

PNG = b"\x89PNG"
ACROBOT, CARTPOLE = (next(row for row in ROWS if row.recipe == name) for name in ("acrobot", "cartpole"))


def make_record(mode: Mode = "distributed", seed: int = 1, train_return: float = -80.0) -> Record:
    return Record(
        recipe="acrobot",
        env_id="Acrobot-v1",
        mode=mode,
        actors=4 if mode == "distributed" else 0,
        seed=seed,
        commit="0123456789ab",
        command=f"dppo-redis {'train' if mode == 'distributed' else mode} --config X.toml --seed {seed}",
        trained_steps=500_000,
        train_return=train_return,
        best=Greedy(-79.0, 100, 400_000),
        last=Greedy(-81.0, 100, 500_000),
        train_s=50.0,
        wall_s=60.0,
        staleness_mean=1.25,
        staleness_max=2,
        stale_share=0.0,
        versions={"python": "3.11.7", "gymnasium": "1.4.0"},
        finished="2026-11-29",
        curve=((2048, -500.0), (500_000, train_return)),
    )


def line_of(page: str, start: str) -> str:
    (line,) = (line for line in page.splitlines() if line.startswith(start) and ">=" in line)
    return line


@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*.toml")), ids=lambda file: file.stem)
def test_every_recipe_loads_and_has_its_row_on_the_page(recipe: Path) -> None:
    config = load_toml(recipe)
    (row,) = (row for row in ROWS if row.recipe == recipe.stem)
    assert config.env_id == row.env_id
    assert config.actors == 4
    assert config.ppo.update_epochs is not None  # else serial and distributed would play different recipes


def test_the_interval_is_students_t_of_five_seeds() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    found = score(values)
    assert (found.mean, found.seeds, found.lowest) == (3.0, 5, 1.0)
    # t(0.975, 4 degrees of freedom) = 2.776; s = sqrt(2.5); 2.776 * sqrt(2.5 / 5) = 1.963
    assert found.half == pytest.approx(1.963, abs=5e-4)
    assert statistics.stdev(values) == pytest.approx(2.5**0.5)


def test_a_single_seed_has_no_interval() -> None:
    assert str(score([490.0])) == "490.0"


@pytest.mark.parametrize(
    ("distributed", "serial", "share"), [(95.0, 100.0, 0.95), (-100.0, -95.0, 0.95), (-76.0, -80.0, 80 / 76)]
)
def test_the_share_of_serial_falls_when_distributed_is_worse_also_for_negative_returns(
    distributed: float, serial: float, share: float
) -> None:
    assert relative(distributed, serial) == pytest.approx(share)


def test_a_thinned_curve_keeps_its_ends() -> None:
    curve = [(100 * i, i / 3) for i in range(1000)]
    thinned = thin(curve)
    assert len(thinned) <= 60
    assert (thinned[0], thinned[-1]) == ((0, 0.0), (99_900, 333.0))
    assert thin(curve[:2]) == ((0, 0.0), (100, 0.33))


def test_a_record_is_read_back_unchanged_from_its_line(tmp_path: Path) -> None:
    records = [make_record(seed=1), make_record("serial", seed=2)]
    for record in records:
        results_in(tmp_path / "some" / "scores.jsonl").append(record)
    assert results_in(tmp_path / "some" / "scores.jsonl").read() == records
    assert results_in(tmp_path / "none.jsonl").read() == []


def test_the_page_shows_mean_interval_seeds_and_share_of_serial() -> None:
    distributed = [make_record(seed=seed, train_return=-80.0 - seed) for seed in range(1, 6)]
    serial = [make_record("serial", seed=seed, train_return=-81.0) for seed in range(1, 6)]
    line = line_of(build([*distributed, *serial], Path("scores.png"), ""), "| Acrobot-v1")
    assert "| -81.0 ± 0.0 | 5 | -83.0 ± 2.0 | 5 | 0.98 | yes |" in line


def test_environments_that_were_not_run_are_named_and_never_counted_as_reached() -> None:
    page = build([make_record()], Path("scores.png"), "")
    assert "| not run | 0 | not run | 0 |  |  |" in line_of(page, "| CartPole-v1")
    assert "| so far (1 of 5 seeds) |" in line_of(page, "| Acrobot-v1")


def test_a_greedy_row_is_reached_only_with_every_seed() -> None:
    serial = score([500.0] * 5)
    assert verdict(CARTPOLE, serial, score([500.0, 500.0, 500.0, 500.0, 489.0])) == "no"
    assert verdict(CARTPOLE, serial, score([500.0] * 4 + [490.0])) == "yes"


def test_a_score_below_its_own_baseline_says_so() -> None:
    assert verdict(ACROBOT, score([-70.0] * 5), score([-84.0] * 5)) == "yes, below 0.95 of serial"
    assert verdict(ACROBOT, score([-70.0] * 5), score([-90.0] * 5)) == "no, below 0.95 of serial"


def test_page_and_figure_are_rebuilt_from_the_lines_alone(tmp_path: Path) -> None:
    results, page, figure = (tmp_path / name for name in ("scores.jsonl", "RESULTS.md", "figures/scores.png"))
    for record in (make_record(), make_record("serial"), replace(make_record(seed=2), commit="fedcba987654")):
        results_in(results).append(record)
    make_page(results, page, figure)
    text = page.read_text()
    assert figure.read_bytes().startswith(PNG)
    assert "](figures/scores.png)" in text
    for expected in (
        "dppo-redis train --config X.toml --seed SEED",
        "fedcba987654",
        "gymnasium 1.4.0",
        "1.25",
    ):
        assert expected in text
