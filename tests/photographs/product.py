"""All that the photographs take from the product's own modules: a move changes this file alone."""

import importlib.resources
import io
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import RenderableType

from dppo_redis.config import RunConfig
from dppo_redis.environments import inspect
from dppo_redis.exports import load_export
from dppo_redis.ledger import Ledger
from dppo_redis.pacing import derive
from dppo_redis.run_files import describe
from dppo_redis.run_store import Control, Evaluation
from dppo_redis.spec import source_of
from ops.broker import find_server
from ops.status import RunStatus
from ops.view import derived_table, make_console, plain_line, render, summary_table
from tests.conftest import RedisServer, wait_until
from tests.factories import GOLDEN
from tests.golden_values import golden_payloads

__all__ = ["GOLDEN", "RedisServer", "find_server", "golden_payloads", "wait_until"]
WIDTH = 100


def spec_of(settings: Mapping[str, Any]) -> tuple[str, str]:
    """The digest of a configuration's spec, and the text of its spec key."""
    description = describe(RunConfig.model_validate(settings))
    return description.digest, description.to_text()


def scripts() -> dict[str, str]:
    """SHA-256 of each Lua file, by its name."""
    folder = importlib.resources.files("dppo_redis.scripts")
    files = [file for file in folder.iterdir() if file.name.endswith(".lua")]
    return {file.name: sha256(file.read_bytes()).hexdigest() for file in files}


def outputs_of_export(directory: Path, rows: npt.NDArray[np.float32]) -> list[list[float]]:
    """Logits of an exported policy for rows of observations."""
    result: list[list[float]] = load_export(directory).outputs(rows).tolist()
    return result


def start_table(settings: Mapping[str, Any], *, serial: bool) -> str:
    """What `train` or `serial` shows at its start."""
    config = RunConfig.model_validate(settings)
    spaces = inspect(source_of(config), use_mask=config.use_action_mask)
    derived = derive(config, spaces.observation, spaces.action, serial=serial)
    return _printed(derived_table(config, derived, serial=serial))


def summary_screen(summary: Mapping[str, Any]) -> str:
    """What `train` or `serial` shows in the end."""
    return _printed(summary_table(dict(summary)))


def run_screens(fields: Mapping[str, str], **other: Any) -> tuple[str, str]:
    """(panel, plain line) of a run with these fields in its status hash."""
    status = RunStatus(
        run="swift",
        fields=fields,
        control=Control(*other["control"]),
        ledger=Ledger(other["ledger"]),
        evaluation=Evaluation.from_fields(other["evaluation"]),
        actors=other["actors"],
        age_s=other["age_s"],
    )
    return _printed(render(status)), plain_line(status)


def _printed(renderable: RenderableType) -> str:
    stream = io.StringIO()
    console = make_console(stream)
    console.width = WIDTH
    console.print(renderable)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())
