"""`dppo-redis bench article` with a server: every way delivers every rollout, and what is printed."""

import json

import pytest

from ops.bench.article import packing, streams
from ops.bench.article.command import main


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ACTORS", (3,)), ("PUSHED", 12), ("PACED", 6), ("RATE", 400.0)):
        monkeypatch.setattr(streams, name, value)
    monkeypatch.setattr(packing, "TASKS", {"vectors": "CartPole-v1"})
    monkeypatch.setattr(packing, "_LEAST_S", 0.0)


@pytest.mark.usefixtures("_small")
def test_claims_are_measured_and_printed_as_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--claim", "streams", "packing", "--repeats", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {"ratio", "samples", "spread", "cores", "claims"}
    assert found["claims"] == ["streams", "packing"]
    assert found["ratio"].keys() == found["spread"].keys()
    assert all(low <= found["ratio"][name] <= high for name, (low, high) in found["spread"].items())
    ways = found["samples"]["streams"]
    assert list(ways) == [f"3 actors, {way}" for way in streams.WAYS]
    for samples in ways.values():
        assert len(samples) == 2
        assert all(sample["per_s"] > 0 and 0 <= sample["fairness"] <= 1 for sample in samples)
        assert all(0 < sample["p50_ms"] <= sample["p99_ms"] for sample in samples)
    assert list(found["samples"]["packing"]) == [f"vectors, {form}" for form in packing.FORMS]


@pytest.mark.usefixtures("_small")
def test_a_claim_is_a_table_with_its_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--claim", "packing", "--repeats", "1"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("packing: whole rollouts as packed arrays, not an object for each step\n\n|")
    assert printed.count("\n| vectors, ") == len(packing.FORMS)
    assert "vectors: computing time of a pickle a step by packed: " in printed
