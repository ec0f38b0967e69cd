"""A learner that publishes without a pause and is killed with 9 at random moments, again and again.

python -m tests.integration.dying_publisher URL RUN KILLS: each publication has a number of its own, in its
update and in every weight.
"""

import os
import sys
from itertools import count

import numpy as np

from dppo_redis.service.shutdown import StopRequest
from dppo_redis.store.client import connect
from dppo_redis.store.keys import RunKeys
from dppo_redis.store.run_store import RunStore
from learner.leadership import lease
from learner.leadership.leadership import make_leadership
from tests.lives import lives

_WEIGHTS = 2**16  # so many bytes that a kill often falls into their sending
_MOST_OF_ONE_LIFE = 100_000
_LONGEST_LIFE_S = 0.1


def main() -> None:
    """Each leads without a checkpoint, as if all files were lost."""
    url, keys, kills = sys.argv[1], RunKeys(sys.argv[2]), int(sys.argv[3])
    lease.LEASE_TTL_S, lease._POLL_S = 0.05, 0.01  # a successor need not wait long
    client = connect(url, "test")
    description = RunStore(client, keys).description()
    client.connection_pool.disconnect()  # none crosses a fork
    assert description is not None

    def publish(life: int, tell: int) -> None:
        client = connect(url, "publisher")
        leader = make_leadership(client, keys, description, str(os.getpid()), StopRequest())
        leader.lease.acquire(known_epoch=0, update=0)
        os.write(tell, b"!")
        for number in count(life * _MOST_OF_ONE_LIFE):
            arrays = {"policy.weight": np.full(_WEIGHTS, number, np.float32)}
            leader.publisher.publish(arrays, number, trained_steps=0, settled_steps=0)

    for _ in lives(publish, kills, _LONGEST_LIFE_S):
        pass


if __name__ == "__main__":
    main()
