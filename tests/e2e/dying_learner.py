"""`python -m tests.e2e.dying_learner`: a learner that one payload kills, like a crash in native code."""

import os
import signal
import struct
import sys
from unittest.mock import patch

from dppo_redis.protocol.rollout import Rollout
from learner.__main__ import main
from learner.intake.decoder import RolloutDecoder

DEADLY_REWARD = 666.0


class DeadlyDecoder(RolloutDecoder):
    """Kills its process when a payload holds the deadly reward."""

    def decode(self, payload: bytes) -> Rollout:
        if struct.pack("<f", DEADLY_REWARD) in payload:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().decode(payload)


if __name__ == "__main__":
    with patch("learner.intake.intake.RolloutDecoder", DeadlyDecoder):
        sys.exit(main())
