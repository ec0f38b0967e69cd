"""`python -m tests.e2e.other_release MODULE ...`: a service of a release with the next wire schema."""

import importlib.util
import re
import runpy
import sys
from pathlib import Path

import dppo_redis


def _raise_schema() -> None:
    """Load dppo_redis.protocol.spec from its source, with the next schema number."""
    found = importlib.util.find_spec("dppo_redis.protocol.spec")
    assert found is not None
    assert found.origin is not None
    text = Path(found.origin).read_text()
    changed, count = re.subn(
        r"^WIRE_SCHEMA = (\d+)", lambda m: f"WIRE_SCHEMA = {int(m[1]) + 1}", text, flags=re.MULTILINE
    )
    assert count == 1
    module = importlib.util.module_from_spec(found)
    sys.modules["dppo_redis.protocol.spec"] = module
    exec(compile(changed, found.origin, "exec"), vars(module))
    setattr(dppo_redis, "spec", module)  # noqa: B010


if __name__ == "__main__":
    _raise_schema()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
