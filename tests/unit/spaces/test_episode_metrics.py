"""Numbers that environments report: valid ones, refused ones, and their means."""

from typing import Any

import numpy as np
import pytest

from dppo_redis.spaces.episode_metrics import (
    NOTHING,
    means,
    read_episode,
    read_vector,
    to_arrays,
    to_episodes,
)
from dppo_redis.spaces.metric_names import MAX_NAME, MAX_NAMES, is_name
from tests.envs.reporting import HOSTILE, HOSTILE_KEPT


def test_success_and_metrics_are_read_as_finite_numbers() -> None:
    info = {"is_success": np.True_, "score": 3.0, "metrics": {"laps": 2, "speed": np.float32(0.5)}}
    assert read_episode(info).numbers == (("is_success", 1.0), ("laps", 2.0), ("speed", 0.5))


@pytest.mark.parametrize("info", [{}, None, {"score": 1}, {"metrics": None}, {"metrics": [1, 2]}, "metrics"])
def test_an_info_without_numbers_reports_none(info: Any) -> None:
    assert read_episode(info) == NOTHING


def test_hostile_names_and_values_are_left_out_one_by_one() -> None:
    metrics = read_episode({"metrics": HOSTILE})
    assert dict(metrics.numbers) == HOSTILE_KEPT
    assert len(metrics.refused) == 6
    assert all(name.isprintable() and len(name) < 100 for name in metrics.refused)


class _NoFloat(float):
    def __float__(self) -> float:
        raise KeyError("evil")


class _NoItems(dict[str, float]):
    def items(self) -> Any:
        raise RuntimeError("items")


def test_a_value_that_raises_while_it_is_read_is_left_out_and_the_others_stay() -> None:
    metrics = {
        "before": 1.0,
        "raises": _NoFloat(3.0),
        "as_item": np.array([_NoFloat(3.0)], object),
        "after": 2.0,
    }
    assert read_episode({"metrics": metrics}).numbers == (("before", 1.0), ("after", 2.0))


def test_metrics_that_raise_while_they_are_read_report_nothing() -> None:
    assert read_episode({"metrics": _NoItems(a=1.0)}) == NOTHING


def test_the_first_of_two_names_that_become_equal_counts() -> None:
    metrics = read_episode({"is_success": 1, "metrics": {"is-success": 0, "a b": 1, "a_b": 2}})
    assert metrics == ((("is_success", 1.0), ("a_b", 1.0)), ("'is-success'", "'a_b'"))


def test_an_episode_has_at_most_32_numbers() -> None:
    metrics = read_episode({"metrics": {f"n{k}": k for k in range(100_000)}})
    assert [name for name, _ in metrics.numbers] == [f"n{k}" for k in range(MAX_NAMES)]
    assert metrics.refused[0] == "'n32'"


@pytest.mark.parametrize(
    ("name", "is_one"), [("a" * MAX_NAME, True), ("a" * (MAX_NAME + 1), False), ("1a", False), ("é", False)]
)
def test_a_name_is_a_short_ascii_identifier(name: str, is_one: bool) -> None:
    assert is_name(name) == is_one


class TestVectors:
    def test_gymnasium_stacks_numbers_with_masks(self) -> None:
        infos = {
            "is_success": np.array([True, False, False]),
            "_is_success": np.array([True, True, False]),
            "metrics": {"x": np.array([1.0, 0.0, 3.0]), "_x": np.array([True, False, True])},
            "_metrics": np.array([True, False, True]),
        }
        first, second, third = read_vector(infos, [0, 1, 2], is_reset=False)
        assert first.numbers == (("is_success", 1.0), ("x", 1.0))
        assert second.numbers == (("is_success", 0.0),)
        assert third.numbers == (("x", 3.0),)

    def test_a_native_vector_needs_no_masks(self) -> None:
        infos = {"is_success": np.array([0, 1]), "metrics": {"x": [4, 5]}}
        (second,) = read_vector(infos, [1], is_reset=False)
        assert second.numbers == (("is_success", 1.0), ("x", 5.0))

    @pytest.mark.parametrize("kind", [list, tuple, lambda of: np.array(of, dtype=object)])
    def test_each_environment_may_have_a_mapping_of_its_own(self, kind: Any) -> None:
        final = kind([{"is_success": True}, {"metrics": {"x": 2}}])
        first, second = read_vector({"final_info": final}, [0, 1], is_reset=True)
        assert (first.numbers, second.numbers) == ((("is_success", 1.0),), (("x", 2.0),))

    def test_the_infos_of_the_next_episode_are_not_taken_for_the_last_one(self) -> None:
        infos = {"is_success": np.array([1]), "final_info": {"is_success": np.array([0])}}
        (only,) = read_vector(infos, [0], is_reset=True)
        assert only.numbers == (("is_success", 0.0),)

    @pytest.mark.parametrize(
        "infos",
        [
            {"is_success": 1.0},
            {"is_success": np.array([1.0])},
            {"metrics": 5},
            {"metrics": {"x": 7}},
            {"dppo_episode": "text"},
            {"dppo_episode": [None, "text"]},
            {"final_info": None},
        ],
    )
    def test_metrics_stacked_in_an_unknown_way_are_ignored(self, infos: dict[str, Any]) -> None:
        assert read_vector(infos, [1], is_reset=False) == (NOTHING,)
        assert read_vector({"final_info": infos}, [1], is_reset=True) == (NOTHING,)


def test_arrays_and_episodes_are_each_others_inverse() -> None:
    episodes = [read_episode({"metrics": {"a": 1.5}}), NOTHING, read_episode({"metrics": {"b": 2, "c": 3}})]
    arrays = to_arrays(episodes, ["a", "b", "unused"])
    assert list(arrays) == ["a", "b"]
    assert to_episodes(arrays, 3) == [{"a": 1.5}, {}, {"b": 2.0}]


def test_a_mean_is_over_the_episodes_that_have_the_number() -> None:
    assert means([{"a": 1.0}, {}, {"a": 2.0, "b": 5.0}]) == {"a": 1.5, "b": 5.0}
    assert means([{"a": 1.0, "b": 5.0}], ["b", "c"]) == {"b": 5.0}
