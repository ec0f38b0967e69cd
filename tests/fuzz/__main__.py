"""`python -m tests.fuzz DIRECTORY ...`: guided fuzzing of the decoders with atheris (`pip install atheris`).

It starts from the inputs in all directories, keeps what it finds in the first, and ends with a status
other than 0 at the first input that is neither decoded nor refused.
"""

import sys

import atheris

with atheris.instrument_imports(
    include=["dppo_redis.protocol.wire", "dppo_redis.protocol.rollout", "msgpack"]
):
    from tests.fuzz.wire import try_payload

if __name__ == "__main__":
    atheris.Setup(sys.argv, try_payload)
    atheris.Fuzz()
