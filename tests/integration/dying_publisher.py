"""A learner that publishes without a pause and is killed with 9 at random moments, again and again.

python -m tests.integration.dying_publisher URL RUN KILLS: each publication has a number of its own, in its
update and in every weight.
"""

import os
import random
import signal
import sys
import time
from itertools import count

import numpy as np

from dppo_redis.keys import RunKeys
from dppo_redis.redis_client import connect
from dppo_redis.run_store import RunStore
from dppo_redis.shutdown import StopRequest
from dppo_redis.spec import RunDescription
from learner import authority

_WEIGHTS = 2**16  # so many bytes that a kill often falls into their sending
_MOST_OF_ONE_LIFE = 100_000
_LONGEST_LIFE_S = 0.1


def publish(url: str, keys: RunKeys, description: RunDescription, first: int, ready: int) -> None:
    """Lead without any checkpoint, say so through the pipe, and publish until killed."""
    leader = authority.Authority(
        connect(url, "publisher"), keys, description, str(os.getpid()), StopRequest()
    )
    leader.acquire(known_epoch=0, update=0)
    os.write(ready, b"!")
    for number in count(first):
        arrays = {"policy.weight": np.full(_WEIGHTS, number, np.float32)}
        leader.publish(arrays, number, trained_steps=0, env_steps=0)


def main() -> None:
    """Let one live after the other, each until some moment after it has begun to publish."""
    url, keys, kills = sys.argv[1], RunKeys(sys.argv[2]), int(sys.argv[3])
    authority.LEASE_TTL_S, authority._POLL_S = 0.05, 0.01  # its successor need not wait long
    client = connect(url, "killer")
    description = RunStore(client, keys).description()
    client.connection_pool.disconnect()
    assert description is not None
    rng = random.Random(8)
    begun, ready = os.pipe()
    for life in range(1, kills + 1):
        pid = os.fork()
        if pid == 0:
            publish(url, keys, description, life * _MOST_OF_ONE_LIFE, ready)
        os.read(begun, 1)
        time.sleep(rng.uniform(0, _LONGEST_LIFE_S))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
