"""`python -m tests.e2e.dying_learner`: a learner that one payload kills, as a crash in native code would."""

import os
import signal
import struct
import sys
from typing import Any

from dppo_redis.rollout import Rollout
from dppo_redis.wire import decode_rollout
from learner import intake
from learner.__main__ import main

DEADLY_REWARD = 666.0


def _deadly_decode(payload: bytes, *spec: Any) -> Rollout:
    if struct.pack("<f", DEADLY_REWARD) in payload:
        os.kill(os.getpid(), signal.SIGKILL)
    return decode_rollout(payload, *spec)


if __name__ == "__main__":
    setattr(intake, "decode_rollout", _deadly_decode)  # noqa: B010 not its own name
    sys.exit(main())
