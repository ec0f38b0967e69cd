"""The reports of processes, as frozen values. Pure.

A field's name is its name in Redis, in metrics.csv and in JSON. The comment beside it says its meaning,
because equal names in two reports may mean different things. Nothing outside this file reads a field by its
name as text: `report_fields.py` writes and reads them all, `run_status.py` finds them in Redis.
"""

from dataclasses import dataclass, field
from typing import Annotated

from dppo_redis.protocol.ledger import Ledger, Outcome
from dppo_redis.protocol.report_fields import Unit


@dataclass(frozen=True)
class LearnerStatus:
    """The learner's part of `:status`. The learner's loop replaces it at every change of a field."""

    state: str  # waiting (for the first rollout), training, paused or finished
    alarm: str  # a text that an operator must read at once; empty while rollouts are trained on
    warnings: tuple[str, ...]  # problems of this run that did not end it, one text for each kind
    dropped_by_actor: str  # whose rollouts were dropped most often, and why, since this learner started
    update: int  # updates made, over all learners of the run
    trained_steps: Annotated[int, Unit("steps")]  # trained on, over all learners of the run
    budget_steps: Annotated[int, Unit("steps")]  # the run ends after this many trained steps
    target_return: float | None  # the run ends with this return; empty: no target
    train_s: Annotated[float, Unit("s", digits=3)]  # since the first rollout began; of all learners
    steps_per_s: Annotated[float, Unit("steps/s", digits=1)]  # trained_steps by train_s
    steps_per_s_recent: Annotated[float, Unit("steps/s", digits=1)]  # the same over the last minute
    return_mean: Annotated[float | None, Unit(digits=3)]  # of the last 100 training episodes, or empty
    episodes: int  # finished in trained rollouts
    staleness_mean: Annotated[float, Unit("updates", digits=4)]  # of all rollouts ever trained on
    staleness_recent: Annotated[float | None, Unit("updates", digits=4)]  # mean of the last minute, or empty
    staleness_max: Annotated[int, Unit("updates")]  # of all rollouts ever trained on
    stale_share: Annotated[float, Unit("share", digits=4)]  # too old to train on, of those of the last minute
    staleness_limit: Annotated[int, Unit("updates")]  # older rollouts are dropped
    learner_wait_share: Annotated[float, Unit("share", digits=3)]  # of the last minute, waiting for rollouts
    checkpoint_update: int  # update of the last checkpoint; -1 before this learner's first
    checkpoint_time: Annotated[float, Unit("s since 1970", digits=1)]  # when it was saved, or 0.0
    save_failures: int  # checkpoints that could not be saved since this learner started
    save_error: str  # why the last one could not be saved; empty when it was
    device: str  # where the network is trained
    first_update_time: Annotated[float, Unit("s since 1970", digits=3)]  # end of this process's first update
    metrics: dict[str, float] = field(default_factory=dict)  # environment's, over the same 100 episodes; JSON


@dataclass(frozen=True)
class KeeperStatus:
    """The keeper's part of `:status`: the ledger at one moment, the leader and the actors."""

    trained: Annotated[int, Unit("rollouts")]  # settled with this outcome, as the next four
    stale: Annotated[int, Unit("rollouts")]  # older than the limit when they were judged
    duplicate: Annotated[int, Unit("rollouts")]  # delivered, or settled, before
    refused: Annotated[int, Unit("rollouts")]  # broken, or not of this run
    lost: Annotated[int, Unit("rollouts")]  # removed by an outsider, a failover or the valve
    settled_steps: Annotated[int, Unit("steps", formerly="env_steps")]  # valid ones of all settled rollouts
    epoch: int  # number of the learner's lease
    version: int  # of the weights published last
    learner: str  # who leads: host, process and a random number
    actors: int  # that live
    planned_actors: int  # the run was planned for
    missing: tuple[str, ...]  # who is gone or dies again and again, one text each
    actor_wait_share: Annotated[float, Unit("share", digits=4)]  # of the actors' time, waiting for room
    backlog_high: Annotated[int, Unit("rollouts")]  # backlog at which actors wait
    rollout_steps: Annotated[int, Unit("steps")]  # of the rollouts that this fleet samples
    entries_added: Annotated[int, Unit("rollouts")]  # ever, those of deleted streams included
    backlog: Annotated[int, Unit("rollouts")]  # in the stream and not settled
    imbalance: Annotated[int, Unit("rollouts")]  # added, neither settled nor in the backlog, at this moment
    stream_bytes: Annotated[int, Unit("bytes")]  # of the stream, in the server's memory
    valve_bytes: Annotated[int, Unit("bytes")]  # of a stream; in a larger one the oldest rollouts are dropped
    time: Annotated[float, Unit("s since 1970", digits=1)]  # when this was written, by the learner's clock
    server_time: Annotated[float | None, Unit("s since 1970", left_out=True)] = None  # by the server's clock


SERVER_TIME = "server_time"  # field of a KeeperStatus that the server fills in


@dataclass(frozen=True)
class ActorReport:
    """`:actor:SLOT`, which an actor writes each second. None: the actor wrote no value, or no valid one."""

    boot: int | None = None  # how often its slot has started
    version: int | None = None  # of the weights it holds; 0 before the first
    epoch: int | None = None  # of the same weights
    pushes: Annotated[int | None, Unit("rollouts")] = None  # sent since this boot
    last_push: Annotated[float | None, Unit("s since 1970", digits=1)] = None  # 0.0 before the first
    steps: Annotated[int | None, Unit("steps")] = None  # valid ones of the rollouts sent since this boot
    fps: Annotated[float | None, Unit("steps/s", digits=1)] = None  # steps by the time since this boot
    wait_share: Annotated[float | None, Unit("share", digits=4)] = None  # of the same time, waiting for room
    refused: Annotated[int | None, Unit("rollouts")] = None  # that did not pass this actor's own check
    ambiguous: Annotated[int | None, Unit("rollouts")] = None  # sent again, as the reply to a push was lost
    refused_full: Annotated[int | None, Unit("pushes")] = None  # that the server refused for want of memory
    last_error: str = ""  # of its environment, its rollouts or the weights it fetched
    deaths: int | None = None  # ends of its slot's processes by their own fault, since the fleet began
    killed: int | None = None  # ends of its slot's processes by a signal from outside, likewise
    last_death: str = ""  # how the process before this one ended, if it ended by a fault or a signal
    vectorization: str = ""  # how it steps its environments: sync, async (processes), threads or native
    step_ms: Annotated[float | None, Unit("ms", digits=3)] = None  # one environment's step; native: of all
    rollout_steps: Annotated[int | None, Unit("steps")] = None  # length of the rollout it samples now
    rollout_steps_done: Annotated[int | None, Unit("steps")] = None  # of these
    rollout_s: Annotated[float | None, Unit("s", digits=3)] = None  # it takes so far; the last one took
    refused_metrics: int | None = None  # numbers of its environments that were left out for their names
    host: str = ""  # where it runs; the registry adds this and the next three
    pid: int | None = None  # of its process
    place: str = ""  # where that pid is unique: boot id of the machine, namespace of processes
    time: Annotated[float | None, Unit("s since 1970", digits=3)] = None  # of this report, by its clock


HOLDER = ("host", "pid", "time", "place")  # fields of an ActorReport by which a slot's holder is known
BOOT = "boot"


@dataclass(frozen=True)
class UpdateRecord:
    """A row of metrics.csv, an `update` entry of `:metrics` and the curves of TensorBoard."""

    update: int  # counted over all learners of the run
    trained_steps: Annotated[int, Unit("steps")]  # trained on, this update included
    settled_steps: Annotated[int, Unit("steps", formerly="env_steps")]  # valid ones of all settled rollouts
    train_s: Annotated[float, Unit("s", digits=3)]  # since the first rollout, without pauses
    return_mean: Annotated[float | None, Unit(tag="return/training")]  # last 100 training episodes, raw
    episodes: int  # finished in trained rollouts
    evaluation_return: float | None  # newest greedy evaluation
    evaluation_steps: Annotated[int | None, Unit("steps")]  # settled_steps of the weights that played it
    staleness_mean: Annotated[float, Unit("updates", tag="staleness/mean")]  # of the rollouts of this batch
    staleness_max: Annotated[int, Unit("updates", tag="staleness/max")]  # of the rollouts of this batch
    version: int  # of the weights published last
    wait_s: Annotated[float, Unit("s", tag="time/wait_s")]  # for the rollouts of this batch
    update_s: Annotated[float, Unit("s", tag="time/update_s")]  # from the full batch until it was settled
    policy_loss: Annotated[float, Unit(tag="loss/policy")]  # mean over the gradient steps
    value_loss: Annotated[float, Unit(tag="loss/value")]  # mean, as above
    entropy: Annotated[float, Unit(tag="policy/entropy")]  # mean, as above
    approx_kl: Annotated[float, Unit(tag="policy/approx_kl")]  # mean, as above
    clip_fraction: Annotated[float, Unit("share", tag="policy/clip_fraction")]  # rows out of the clip range
    explained_variance: Annotated[float, Unit(tag="value/explained_variance")]  # before the first step
    ratio_error: Annotated[float | None, Unit(tag="policy/ratio_error")]  # fresh rows, before the first step
    learning_rate: Annotated[float, Unit(tag="optimiser/learning_rate")]  # of this update
    gradient_steps: int  # of this update
    skipped_steps: int  # minibatches whose gradient was not finite
    drift_ratio: Annotated[float, Unit(tag="drift/ratio")]  # before the first step: see `drift.py`
    drift_kl: Annotated[float, Unit(tag="drift/kl")]  # KL divergence, in the same sense
    drift_clip_fraction: Annotated[float, Unit("share", tag="drift/clip_fraction")]  # likewise
    drift_effective_share: Annotated[float, Unit("share", tag="drift/effective_share")]  # likewise
    drift_by_staleness: str  # JSON: {"1": {"rows": ..., "ratio": ..., "kl": ..., ...}, "2": ...}
    outlier_observations: Annotated[int, Unit("rows")]  # too far out for the statistics; held back
    outlier_rewards: Annotated[int, Unit("rows")]  # likewise, for the statistics of returns
    metrics: dict[str, float] = field(default_factory=dict)  # environment's, last 100 training episodes; JSON


EVALUATED = "evaluation_steps"  # the column of an UpdateRecord that tells one evaluation from the next


@dataclass(frozen=True)
class Evaluation:
    """`:evaluation`: result of greedy episodes with one publication of weights."""

    version: int  # of the weights that played
    update: int  # of the weights that played
    trained_steps: Annotated[int, Unit("steps")]  # of the weights that played
    settled_steps: Annotated[int, Unit("steps", formerly="env_steps")]  # of the weights that played
    return_mean: float  # over these episodes
    return_std: float  # over these episodes
    length_mean: Annotated[float, Unit("steps")]  # over these episodes
    episodes: int  # that were played to their end
    planned: int = 0  # episodes; 0 where an earlier release wrote it
    complete: bool = True  # whether all of these were played; else short ones are too many
    metrics: dict[str, float] = field(default_factory=dict)  # environment's, means over these episodes; JSON


@dataclass(frozen=True)
class EvaluatorReport:
    """The evaluator's own part of `:evaluation`, beside the newest complete evaluation."""

    evaluations: int = 0  # complete ones of this run
    failures: int = 0  # evaluations of this run that have no result
    error: str = ""  # why the last one has no result; empty: it has one
    unfinished: str = ""  # JSON of the last evaluation if it was cut; empty: it is complete
    playing: bool = False  # whether an evaluation is being played now
    played: int = 0  # its episodes that have ended
    to_play: int = 0  # all of its episodes
    unkept: str = ""  # why the best policy is not in the run's directory; empty: it is
    redis: str = ""  # the last error of Redis that stayed the same for long; it is kept afterwards


@dataclass(frozen=True)
class BestEvaluation:
    """The best of the run's evaluations so far, beside the last one."""

    best_return_mean: float  # highest mean return of all evaluations so far
    best_version: Annotated[int | None, Unit(left_out=True)]  # written if this evaluation is the best


@dataclass(frozen=True)
class Control:
    """`:control`: the state that the operator, or the run's end, demands of the fleet."""

    state: str  # run, pause or stop
    reason: str  # why it stopped: target, total_steps, stopped, failed; empty while it runs
    target_step: int | None  # settled_steps at which the target was met


@dataclass(frozen=True)
class LedgerSummary:
    """The ledger in a run's summary; the fields are those of `KeeperStatus`."""

    entries_added: int
    trained: int
    stale: int
    duplicate: int
    refused: int
    lost: int
    backlog: int
    imbalance: int

    @staticmethod
    def of(ledger: Ledger, entries_added: int, backlog: int) -> "LedgerSummary":
        """The summary of a ledger and of the stream's counters."""
        return LedgerSummary(
            entries_added=entries_added,
            trained=ledger.of(Outcome.TRAINED),
            stale=ledger.of(Outcome.STALE),
            duplicate=ledger.of(Outcome.DUPLICATE),
            refused=ledger.of(Outcome.REFUSED),
            lost=ledger.of(Outcome.LOST),
            backlog=backlog,
            imbalance=entries_added - ledger.settled - backlog,
        )


@dataclass(frozen=True)
class StalenessSummary:
    """The staleness, in updates, of all rollouts trained on."""

    mean: float
    max: int
    limit: int


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The result of a run: the object that --json prints and summary.json keeps."""

    reason: str  # why it ended: target, total_steps, stopped, failed; unsaved: the last checkpoint is missing
    settled_steps: Annotated[int, Unit(formerly="env_steps")]  # valid ones; of a serial run, trained ones
    trained_steps: int  # that the last weights learnt from
    wall_s: Annotated[float, Unit("s", digits=3)]  # since the command started
    train_s: Annotated[float, Unit("s", digits=3)]  # since the first rollout, without pauses
    first_update_s: Annotated[float | None, Unit("s", digits=3)] = None  # from command to first update
    end_s: Annotated[float | None, Unit("s", digits=3)] = None  # from the end of training to this summary
    steps_per_s: Annotated[float, Unit("steps/s", digits=1)]  # trained_steps by train_s
    updates: int  # over all learners of the run
    version: Annotated[int | None, Unit(left_out=True)] = None  # of a fleet's weights
    return_mean: float | None  # of the last complete greedy evaluation
    return_episodes: int  # of this evaluation
    evaluation: Evaluation | None = None  # the last one as a whole; null: none was made
    evaluations: int = 0  # that are complete
    target_step: int | None  # settled_steps at which the target was met
    train_return_mean: float | None  # of the last 100 training episodes
    metrics: dict[str, float] = field(default_factory=dict)  # environment's, over the same episodes
    staleness: Annotated[StalenessSummary | None, Unit(left_out=True)] = None  # of a fleet
    ledger: Annotated[LedgerSummary | None, Unit(left_out=True)] = None  # of a fleet
    actors: Annotated[int | None, Unit(left_out=True)] = None  # that ever joined a fleet
    actor_wait_share: Annotated[float | None, Unit("share", digits=4, left_out=True)] = None  # of a fleet
    learner_wait_share: Annotated[float, Unit("share", digits=3)] = 0.0  # of the last minute, for rollouts
    refused: Annotated[int | None, Unit(left_out=True)] = None  # rollouts that a serial run did not train on
    warnings: tuple[str, ...] = ()  # problems that did not end the run, one text for each kind
    run_dir: str  # where its files are


@dataclass(frozen=True)
class PolicyScore:
    """The object that `dppo-redis evaluate --json` prints: results of episodes with a run's policy."""

    run: str  # its name
    checkpoint: str  # best, last or a file
    return_mean: float  # over these episodes
    return_std: float  # over these episodes
    interval: tuple[float, float] | None  # 95 % confidence interval of the mean return; None for one episode
    length_mean: Annotated[float, Unit("steps")]  # over these episodes
    episodes: int  # played
    update: int  # of the weights that played
    trained_steps: Annotated[int, Unit("steps")]  # of the weights that played
    metrics: dict[str, float] = field(default_factory=dict)  # environment's, means over these episodes
