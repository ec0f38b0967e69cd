"""The outputs of a living fleet: keys with their types and fields, `--json`, exit statuses."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import redis

from dppo_redis.errors import ExitStatus
from tests.conftest import wait_until
from tests.e2e.support import ROOT, SLOW, Command
from tests.photographs.camera import kinds, photograph, shape


def _keys(client: Any, run: str) -> str:
    """Each key of the run with its type, and the fields of hashes."""
    lines = []
    for key in sorted(client.scan_iter(match="dppo:*", count=1000)):
        name, kind = key.replace(run, "RUN"), client.type(key)
        lines.append(f"{name}: {kind}{', expires' if client.pttl(key) > 0 else ''}")
        if kind == "hash":
            stored = client.hgetall(key)
            plain = {field: text for field, text in stored.items() if field != "blob"}
            lines += [f"    {line}" for line in kinds(plain)]
    return "\n".join(line for line in lines if not line.startswith("     0:"))  # boots by slot


def test_keys_status_and_summary_of_a_fleet(tmp_path: Path) -> None:
    with Command("train", *SLOW, "--run", "live", "--json", cwd=tmp_path) as fleet:
        url, run = fleet.how_to_join()
        with redis.Redis.from_url(url, decode_responses=True, encoding_errors="replace") as client:
            wait_until(lambda: int(client.hget(f"dppo:{{{run}}}:status", "update") or 0) > 3, 60, "it trains")
            wait_until(
                lambda: bool(client.hexists(f"dppo:{{{run}}}:evaluation", "version")), 60, "it is evaluated"
            )
            keys = _keys(client, run)
        words = [sys.executable, "-m", "ops", "status", "--redis", url, "--run", run, "--json"]
        status = json.loads(
            subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        )
        assert fleet.stop() == ExitStatus.TERMINATED
        summary = fleet.summary()
    photograph("live_fleet.txt", f"{keys}\n\nstatus\n{shape(status)}\n\nsummary\n{shape(summary)}")
