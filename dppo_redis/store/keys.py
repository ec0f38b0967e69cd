"""The names of all Redis keys. No other module contains the text `dppo:`.

The run name is a hash tag, so that all keys of one run share a slot.
"""

import re
from dataclasses import dataclass

from dppo_redis.errors import ConfigurationError

_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

GROUP = "learners"
CONSUMER = "learner"  # one stable name: a restarted learner finds its own pending entries again


def check_run_name(run: str) -> str:
    """Return `run` if it can name keys and directories.

    Raises:
        ConfigurationError: the name has other characters, or the wrong length.
    """
    if not _RUN_NAME.fullmatch(run):
        raise ConfigurationError(
            f"run name {run!r}: use 1 to 100 of letters, digits, '.', '_' and '-', "
            "beginning with a letter or digit"
        )
    return run


def is_run_name(text: str) -> bool:
    """Whether `text` can name keys and directories."""
    return _RUN_NAME.fullmatch(text) is not None


@dataclass(frozen=True)
class RunKeys:
    """The keys of one run."""

    run: str

    def __post_init__(self) -> None:
        check_run_name(self.run)

    def _key(self, name: str) -> str:
        return f"dppo:{{{self.run}}}:{name}"

    @property
    def spec(self) -> str:
        return self._key("spec")

    @property
    def weights(self) -> str:
        return self._key("weights")

    @property
    def rollouts(self) -> str:
        return self._key("rollouts")

    @property
    def lease(self) -> str:
        return self._key("lease")

    @property
    def epoch(self) -> str:
        return self._key("epoch")

    @property
    def ledger(self) -> str:
        return self._key("ledger")

    @property
    def boots(self) -> str:
        return self._key("boots")

    @property
    def actors(self) -> str:
        return self._key("actors")

    def actor(self, slot: int) -> str:
        return self._key(f"actor:{slot}")

    def expires_by_itself(self, key: str) -> bool:
        """Whether a key lives only as long as its owner renews it; no other process may prolong it."""
        return key == self.lease or key.startswith(self._key("actor:"))

    @property
    def every_actor(self) -> str:
        """Glob of the actors' own hashes."""
        return self._key("actor:*")

    @property
    def status(self) -> str:
        return self._key("status")

    @property
    def evaluation(self) -> str:
        return self._key("evaluation")

    @property
    def metrics(self) -> str:
        return self._key("metrics")

    @property
    def quarantine(self) -> str:
        return self._key("quarantine")

    @property
    def errors(self) -> str:
        return self._key("errors")

    @property
    def control(self) -> str:
        return self._key("control")

    def types(self) -> dict[str, str]:
        """The Redis type of each key, except the actors' own hashes."""
        return {
            self.spec: "string",
            self.weights: "hash",
            self.rollouts: "stream",
            self.lease: "string",
            self.epoch: "string",
            self.ledger: "hash",
            self.boots: "hash",
            self.actors: "zset",
            self.status: "hash",
            self.evaluation: "hash",
            self.metrics: "stream",
            self.quarantine: "stream",
            self.errors: "stream",
            self.control: "hash",
        }

    @property
    def pattern(self) -> str:
        """Glob that SCAN matches against every key of this run."""
        return self._key("*")


SPEC_PATTERN = "dppo:{*}:spec"
RUNS = "dppo:runs"  # sorted set: run name -> when its learner last listed it, in seconds since 1970


def in_every_run(key: str) -> str:
    """Glob of this key in all runs; no run name can hold a glob's characters."""
    return SPEC_PATTERN.removesuffix("spec") + key.partition("}:")[2]


def run_of(spec_key: str) -> str:
    """The run name inside a key that matches SPEC_PATTERN."""
    return spec_key.split("{", 1)[1].rsplit("}", 1)[0]
