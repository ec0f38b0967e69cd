"""A mistake on the command line of a benchmark is refused as by the other commands."""

import pytest

from dppo_redis.errors import ConfigurationError
from ops.bench.menu import BENCHMARKS, main


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_wrong_option_of_a_benchmark_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"--typo|bench {name}: ") as caught:
        main([name, "--typo=1"])
    assert "\n" not in str(caught.value)
