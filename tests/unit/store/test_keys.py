"""The names of all Redis keys."""

import inspect
import re
from pathlib import Path

import pytest

from dppo_redis.errors import ConfigurationError
from dppo_redis.store.keys import SPEC_PATTERN, RunKeys, check_run_name, run_of

ROOT = Path(__file__).parents[3]
KEYS = RunKeys("lander-7")


def all_keys(keys: RunKeys) -> list[str]:
    names = [name for name, _ in inspect.getmembers(RunKeys, lambda member: isinstance(member, property))]
    return [getattr(keys, name) for name in names if name != "pattern"] + [keys.actor(0), keys.actor(12)]


def test_only_keys_py_contains_the_prefix_of_the_keys() -> None:
    holders = {
        file.relative_to(ROOT).as_posix()
        for folder in ("dppo_redis", "workers", "learner", "ops")
        for suffix in ("*.py", "*.lua")
        for file in (ROOT / folder).rglob(suffix)
        if "dppo:" in file.read_text(encoding="utf-8")
    }
    assert holders == {"dppo_redis/store/keys.py"}


def test_all_keys_of_a_run_share_one_hash_tag() -> None:
    """Redis hashes what stands between the first brace and the next closing one."""
    tags = {re.findall(r"\{(.*?)\}", key)[0] for key in all_keys(KEYS)}
    assert tags == {"lander-7"}


def test_no_two_keys_are_the_same() -> None:
    keys = all_keys(KEYS)
    assert len(set(keys)) == len(keys) >= 15


def test_a_key_is_the_prefix_the_run_and_its_name() -> None:
    assert KEYS.weights == "dppo:{lander-7}:weights"
    assert KEYS.actor(12) == "dppo:{lander-7}:actor:12"


def test_runs_never_share_keys() -> None:
    """Not even when one name begins with the other."""
    assert not set(all_keys(KEYS)) & set(all_keys(RunKeys("lander-77")))
    assert not any(key.startswith(KEYS.pattern.removesuffix("*")) for key in all_keys(RunKeys("lander-77")))


def test_the_pattern_of_a_run_matches_all_its_keys() -> None:
    assert all(key.startswith(KEYS.pattern.removesuffix("*")) for key in all_keys(KEYS))


@pytest.mark.parametrize("run", ["a", "7", "A-b_c.d", "x" * 100])
def test_the_run_is_found_again_in_its_spec_key(run: str) -> None:
    prefix, suffix = SPEC_PATTERN.split("*")
    spec_key = RunKeys(run).spec
    assert spec_key.startswith(prefix)
    assert spec_key.endswith(suffix)
    assert run_of(spec_key) == run
    assert check_run_name(run) == run


@pytest.mark.parametrize(
    "run",
    ["", " ", "a b", "a:b", "{a}", "a}", "a/b", "../a", ".a", "-a", "_a", "a\n", "a*", "a?", "ü", "x" * 101],
    ids=repr,
)
def test_a_run_name_that_could_mean_another_key_or_directory_is_refused(run: str) -> None:
    with pytest.raises(ConfigurationError, match="run name") as caught:
        RunKeys(run)
    assert repr(run) in str(caught.value)
    with pytest.raises(ConfigurationError):
        check_run_name(run)
