"""How supervisord's process records the end of a service."""

import subprocess
import sys
from pathlib import Path

import pytest

from dppo_redis.errors import ExitStatus
from dppo_redis.service.service_deaths import DIRECTORY_VARIABLE, SERVICE_VARIABLE
from ops.fleet.last_log_line import reason_in_log
from ops.fleet.supervised import EndedServices

OURS = "from dppo_redis.service.ending import end_process; end_process(0)"
CLEARED = "from dppo_redis.service.ending import end_process; import os; os.environ.clear(); end_process(0)"
THE_USERS = "import dppo_redis.service.ending, os; os._exit(0)"


@pytest.mark.parametrize(
    ("service", "program", "status"),
    [
        ("actor_003", OURS, ExitStatus.DONE),
        ("evaluator", CLEARED, ExitStatus.DONE),
        ("actor_003", THE_USERS, ExitStatus.ENVIRONMENT_BROKEN),
        ("broker", THE_USERS, ExitStatus.DONE),
    ],
    ids=["ours", "ours, without its environment", "the user's", "no service of ours"],
)
def test_a_service_that_the_users_code_ended_with_status_0_counts_as_broken(
    service: str, program: str, status: ExitStatus, tmp_path: Path
) -> None:
    variables = {DIRECTORY_VARIABLE: str(tmp_path), SERVICE_VARIABLE: service}
    for _ in range(2):  # an announcement does not count for the next process
        subprocess.run([sys.executable, "-c", program], env=variables, check=True)
        log = tmp_path / "service.log"
        assert EndedServices(tmp_path).true_status(service, 0, log) == status << 8
        said_why = log.exists() and "the environment ended this process" in reason_in_log(log)
        assert said_why == (status != ExitStatus.DONE)
    assert EndedServices(tmp_path).true_status(service, 76 << 8, log) == 76 << 8
