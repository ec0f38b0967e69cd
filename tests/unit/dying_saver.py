"""A learner that saves without a pause and is killed with 9 at random moments, again and again.

python -m tests.unit.dying_saver DIRECTORY KILLS: each update is a number that all weights have. Fails where
what can be restored is not the last save that ended, or the one after it.
"""

import os
import sys
import time
from itertools import count
from pathlib import Path

import torch

from learner.ppo.update import PpoUpdate
from tests.lives import lives
from tests.unit.learner.test_checkpoint import make_checkpoints, make_snapshot, make_trainer


def restored(directory: Path, trainer: PpoUpdate) -> int:
    """The update from which a learner continues; 0 without a checkpoint."""
    snapshot = make_checkpoints(directory, keep=1).restore(trainer)
    if snapshot is None:
        return 0
    assert all((weights == snapshot.progress.update).all() for weights in trainer.model.parameters())
    return snapshot.progress.update


def main() -> None:
    """Run the processes; each continues from the files of the process before it."""
    torch.set_num_threads(1)
    directory, kills, trainer = Path(sys.argv[1]), int(sys.argv[2]), make_trainer()

    def save(update: int) -> None:
        for weights in trainer.model.parameters():
            weights.data.fill_(update)
        make_checkpoints(directory, keep=1).save(trainer, make_snapshot(update))

    def live(_life: int, tell: int) -> None:
        begun = restored(directory, trainer)
        os.write(tell, b"%d\n" % begun)
        for update in count(begun + 1):
            save(update)
            os.write(tell, b"%d\n" % update)

    started = time.monotonic()
    save(0)
    longest_s = 5 * (time.monotonic() - started)  # on a busy machine saving takes longer
    last = 0
    for told in lives(live, kills, longest_s):
        begun, *saved = map(int, told.split())
        assert last <= begun <= last + 1, (last, begun)
        last = saved[-1] if saved else begun
    assert last <= restored(directory, trainer) <= last + 1
    sys.stdout.write(str(last))


if __name__ == "__main__":
    main()
