"""The table of runs that are photographed. Pure values: words of a command line."""

from dataclasses import dataclass

UPDATES = 6
_BATCH = 256
_ENVIRONMENTS = 4
_SMALL = (
    *("--vectorization", "sync", "--envs-per-actor", str(_ENVIRONMENTS), "--network.hidden", "16", "16"),
    *("--ppo.batch-steps", str(_BATCH), "--ppo.minibatch-size", "64", "--ppo.update-epochs", "3"),
    *("--evaluation.interval-s", "86400", "--evaluation.episodes", "1"),
)
LOCK_STEP = ("--lock-step", "--actors", "2", "--segment-updates", "4")


@dataclass(frozen=True)
class Case:
    """A configuration, as words behind `train` or `serial`."""

    name: str
    words: tuple[str, ...]

    def arguments(self, updates: int = UPDATES) -> tuple[str, ...]:
        """The words without the mode, with a budget of this many updates."""
        return (*self.words, *_SMALL, "--env-steps", str(updates * _BATCH))


CARTPOLE = Case("cartpole", ("CartPole-v1",))
# All state of a learner beside weights and optimiser, for resuming from a checkpoint. Nothing is
# annealed, because annealing depends on the budget, which a resumed run changes.
RICH = Case(
    "rich",
    (
        *("Pendulum-v1", "--ppo.normalise-observations", "--ppo.normalise-returns", "--frame-stack", "2"),
        *("--network.memory", "gru", "--network.memory-size", "16"),
        *("--ppo.entropy-coef", "0.01"),
    ),
)
CASES = (
    CARTPOLE,
    Case("pendulum", ("Pendulum-v1", "--ppo.initial-std", "0.4")),
    Case("pixels", ("ops.bench.pixel_catch:PixelCatch-v0",)),
    Case("gru", ("CartPole-v1", "--network.memory", "gru", "--network.memory-size", "16")),
    Case("masks", ("photographed:Masked-v0",)),
    Case("normalised", ("Pendulum-v1", "--ppo.normalise-observations", "--ppo.normalise-returns")),
    Case("frames", ("CartPole-v1", "--frame-stack", "3")),
    Case("custom", ("CartPole-v1", "--network.custom", "photographed:Network")),
    Case("vtrace", ("CartPole-v1", "--ppo.correction", "vtrace")),
)
