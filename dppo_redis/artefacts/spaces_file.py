"""The spaces of a run's environment, stored in the run's directory for hosts without the environment.

The command that inspects the environment writes it; the learner and `export` read it.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dppo_redis.artefacts.run_files import RunFiles
from dppo_redis.protocol.config import RunConfig
from dppo_redis.protocol.run_plan import describe_started
from dppo_redis.protocol.spec import RunDescription, source_of
from dppo_redis.service.files import write_atomically
from dppo_redis.spaces.actions import ActionSpec
from dppo_redis.spaces.environment_spaces import EnvironmentSpaces, shapes_of, with_shapes
from dppo_redis.spaces.observations import ObservationSpec


def write_spaces(run_dir: Path, config: RunConfig, spaces: EnvironmentSpaces) -> None:
    """Write the spaces of the environment of `config`.

    Raises:
        OSError: the disk refuses.
    """
    values = {
        **_asked_for(config),
        "observation": spaces.observation.to_json(),
        "observation_shapes": shapes_of(spaces.observation),
        "action": spaces.action.to_json(),
    }
    write_atomically(RunFiles(run_dir).spaces, (json.dumps(values, indent=2) + "\n").encode())


def read_spaces(run_dir: Path, config: RunConfig) -> EnvironmentSpaces | None:
    """The stored spaces of the environment of `config`; None if there are none, or of another environment."""
    try:
        values = json.loads(RunFiles(run_dir).spaces.read_text(encoding="utf-8"))
        asked_for = _asked_for(config)
        if {name: values[name] for name in asked_for} != json.loads(json.dumps(asked_for)):
            return None
        observation = ObservationSpec.from_json(values["observation"])
        if "observation_shapes" in values:  # an earlier release wrote none
            observation = with_shapes(observation, values["observation_shapes"])
        return EnvironmentSpaces(observation, ActionSpec.from_json(values["action"]))
    except (OSError, ValueError, KeyError, TypeError):  # an earlier release wrote none
        return None


def describe_stored(
    run_dir: Path, config: RunConfig, look: Callable[[RunConfig], EnvironmentSpaces]
) -> RunDescription:
    """The description of the run in a directory; `look` finds its spaces if they are not stored there."""
    return describe_started(config, read_spaces(run_dir, config) or look(config))


def _asked_for(config: RunConfig) -> dict[str, Any]:
    return {"environment": asdict(source_of(config)), "use_action_mask": config.use_action_mask}
