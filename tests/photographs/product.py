"""The only module of the photographs that imports the product, so that moved code changes only this file."""

import importlib.resources
import io
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import RenderableType

from dppo_redis.artefacts.exports import load_export
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.ledger import Ledger
from dppo_redis.protocol.report_fields import from_whole_fields
from dppo_redis.protocol.reports import Control, Evaluation, LedgerSummary, RunSummary, StalenessSummary
from dppo_redis.protocol.run_plan import plan
from dppo_redis.store.run_status import RunStatus
from ops.fleet.broker import find_server
from ops.screens.start_table import derived_table
from ops.screens.tables import make_console, summary_table
from ops.screens.view import plain_line, render
from tests.conftest import RedisServer, wait_until
from tests.factories import GOLDEN, describe, spaces_of
from tests.golden_values import golden_payloads

__all__ = ["GOLDEN", "RedisServer", "find_server", "golden_payloads", "wait_until"]
WIDTH = 100


def spec_of(settings: Mapping[str, Any]) -> tuple[str, str]:
    """The digest of a configuration's spec, and the text of its spec key."""
    description = describe(RunConfig.model_validate(settings))
    return description.digest, description.to_text()


def scripts() -> dict[str, str]:
    """SHA-256 of each Lua file, by its name."""
    folder = importlib.resources.files("dppo_redis.store.scripts")
    files = [file for file in folder.iterdir() if file.name.endswith(".lua")]
    return {file.name: sha256(file.read_bytes()).hexdigest() for file in files}


def outputs_of_export(directory: Path, rows: npt.NDArray[np.float32]) -> list[list[float]]:
    """Logits of an exported policy for rows of observations."""
    result: list[list[float]] = load_export(directory).outputs(rows).tolist()
    return result


def start_table(settings: Mapping[str, Any], *, serial: bool) -> str:
    """The table that `train` or `serial` shows at its start."""
    config = RunConfig.model_validate(settings)
    derived = plan(config, spaces_of(config), serial=serial).derived
    return _printed(derived_table(config, derived, serial=serial))


def summary_screen(summary: Mapping[str, Any]) -> str:
    """The table that `train` or `serial` shows at its end."""
    values = dict(summary)
    if "staleness" in values:
        values |= {
            "staleness": StalenessSummary(**values["staleness"]),
            "ledger": LedgerSummary(**values["ledger"]),
        }
    return _printed(summary_table(RunSummary(**values)))


def run_screens(fields: Mapping[str, str], **other: Any) -> tuple[str, str]:
    """(panel, plain line) of a run with these fields in its status hash."""
    status = RunStatus(
        run="swift",
        fields=fields,
        control=Control(*other["control"]),
        ledger=Ledger(other["ledger"]),
        evaluation=from_whole_fields(Evaluation, other["evaluation"]),
        actor_fields=other["actors"],
        age_s=other["age_s"],
    )
    return _printed(render(status)), plain_line(status)


def _printed(renderable: RenderableType) -> str:
    stream = io.StringIO()
    console = make_console(stream)
    console.width = WIDTH
    console.print(renderable)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())
