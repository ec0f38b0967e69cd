"""The layout of an export describes the network's inputs, so that no part is mistaken for another."""

import json
import math
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from dppo_redis.artefacts.exports import (
    DESCRIPTION,
    Export,
    is_replaceable,
    load_export,
    read_export,
    write_export,
)
from dppo_redis.artefacts.layout import check_layout, layout_of
from dppo_redis.errors import ConfigurationError
from dppo_redis.policy.player import Player
from dppo_redis.protocol.spec import Spec
from dppo_redis.spaces.environment_spaces import shapes_of
from dppo_redis.spaces.gymnasium_spaces import describe_actions, describe_observations
from tests.documented import DOCS, documented
from tests.documents import blocks
from tests.envs.observations import Everything, Masked, Parts
from tests.factories import make_spec
from tests.unit.artefacts.test_exports import LSTM, MASKED, NAMED, SPECS, loaded, write

Space = gymnasium.Space[Any]
ROBOT = Dict(
    {
        "position": Box(-5, 5, (2,), np.float32),
        "target": Box(-5, 5, (2,), np.float32),
        "mode": Discrete(3, start=1),
    }
)
SPACES: dict[str, tuple[Space, Space, dict[str, Any]]] = {
    "mode, position, target": (ROBOT, Discrete(4), {}),
    "the same, normalised": (ROBOT, Discrete(4, start=2), {"normalise_observations": True}),
    "the same, three frames": (
        ROBOT,
        Discrete(4),
        {"frame_stack": 3, "normalise_observations": True, "activation": "relu"},
    ),
    "number to number": (Discrete(5, start=-2), Discrete(3, start=-1), {}),
    "wide box": (
        Box(-3, 3, (2, 3), np.float64),
        Box(np.array([[-1, -np.inf]]), np.array([[0.5, np.inf]]), dtype=np.float64),
        {"normalise_observations": True},
    ),
    "bytes": (Box(0, 255, (6,), np.uint8), Box(-1, 1, (2,), np.float32), {}),
    "tuple": (
        Tuple((MultiBinary((2, 2)), Box(-5, 5, (), np.float32), MultiDiscrete([2, 3], start=[0, 7]))),
        MultiDiscrete(np.array([[2, 3], [4, 2]]), start=np.array([[0, 1], [2, 3]])),
        {"normalise_observations": True, "frame_stack": 2},
    ),
    "actions of every kind": (ROBOT, Parts.action_space, {}),
    "tuple of actions": (ROBOT, Tuple((Box(-1, 1, (2,), np.float32), MultiBinary(3))), {}),
}
EVERY_SPACE = pytest.mark.parametrize(("observation", "action", "other"), SPACES.values(), ids=SPACES)


def spec_of(observation: Space, action: Space, other: dict[str, Any]) -> Spec:
    return make_spec(observation=describe_observations(observation), action=describe_actions(action), **other)


def by_name(action: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """The parts of an action of the environment, as the documented readers name them."""
    if isinstance(action, dict | tuple):
        parts = action.items() if isinstance(action, dict) else enumerate(action)
        return {k: x for key, part in parts for k, x in by_name(part, (*path, str(key))).items()}
    return {".".join(path) or "action": np.asarray(action)}


def assert_same_action(found: Any, expected: Any) -> None:
    """Compare two actions: numbers up to rounding, types and shapes exactly."""
    ours = by_name(expected)
    theirs = found if isinstance(found, dict) else {"action": np.asarray(found)}
    assert theirs.keys() == ours.keys()
    for name, part in ours.items():
        assert (theirs[name].shape, theirs[name].dtype) == (part.shape, part.dtype), name
        np.testing.assert_allclose(theirs[name], part, rtol=1e-4, atol=1e-5, err_msg=name)


@EVERY_SPACE
def test_the_documented_reader_acts_as_the_policy_does(
    observation: Space, action: Space, other: dict[str, Any], tmp_path: Path
) -> None:
    write(tmp_path, spec_of(observation, action, other))
    reader = documented("read_export.py")
    layout, arrays = reader["load"](tmp_path)
    player = Player(load_export(tmp_path))
    frames = layout["frame_stack"]
    observation.seed(3)
    seen: list[Any] = []
    actions = []
    for _ in range(30):
        newest = observation.sample()
        seen = ([newest] * frames if not seen else [*seen, newest])[-frames:]
        actions.append(player.act(newest))
        found = reader["act"](layout, arrays, seen)
        assert_same_action(found, actions[-1])
    assert len({str(one) for one in actions}) > 1


BOXES = Dict({"there": Box(-5, 5, (2,), np.float32), "here": Box(-5, 5, (3,), np.float64)})


@pytest.mark.parametrize("observation", [Box(-5, 5, (2, 2), np.float32), BOXES], ids=["a Box", "Boxes"])
@pytest.mark.parametrize(
    "other", [{"normalise_observations": True}, {"activation": "relu"}], ids=["normalised", "relu"]
)
def test_the_ten_lines_act_as_the_policy_does(
    observation: Space, other: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "policy"
    write(directory, spec_of(observation, Discrete(5, start=2), other))
    (script,) = (block for block in blocks(DOCS / "exports.md") if block.file_name == "ten_lines.py")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(script.text, names)
    player = Player(load_export(directory))
    observation.seed(3)
    seen = [observation.sample() for _ in range(50)]
    actions = [player.act(one) for one in seen]
    assert [names["act"](one) for one in seen] == actions
    assert len(set(actions)) > 1


def test_the_documented_reader_applies_the_mask(tmp_path: Path) -> None:
    write(tmp_path, make_spec(observation=MASKED, action=describe_actions(Masked.action_space)))
    reader = documented("read_export.py")
    layout, arrays = reader["load"](tmp_path)
    player = Player(load_export(tmp_path))
    rng = np.random.default_rng(0)
    chosen = set()
    for place in range(20):
        flags = np.eye(4, dtype=np.int8)[place % 4]
        observation = {"observation": rng.standard_normal(3), "action_mask": flags}
        chosen.add(int(reader["act"](layout, arrays, [observation])))
        assert reader["act"](layout, arrays, [observation]) == player.act(observation) == place % 4 + 1
    assert chosen == {1, 2, 3, 4}


def test_the_documented_reader_needs_nothing_of_this_package(tmp_path: Path) -> None:
    write(tmp_path, SPECS["vector"])
    script = (
        "import sys, runpy; reader = runpy.run_path(sys.argv[1]); loaded = reader['load'](sys.argv[2]); "
        "print(reader['act'](*loaded, [[1, 2, 3, 4]]), [x for x in sys.modules if 'dppo_redis.' in x])"
    )
    command = subprocess.run(
        [sys.executable, "-I", "-c", script, str(DOCS / "read_export.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert re.fullmatch(r"-?\d \[\]\n", command.stdout), command.stdout


def test_the_order_of_the_layout_is_the_networks_and_that_of_the_spec_plays_another_game(
    tmp_path: Path,
) -> None:
    write(tmp_path, spec_of(*SPACES["mode, position, target"]))
    values = json.loads((tmp_path / DESCRIPTION).read_text())
    listed = [".".join(field["path"]) for field in values["spec"]["observation"]]
    assert listed == ["mode", "position", "target"]
    assert [part["name"] for part in values["layout"]["input"]] == ["position", "target", "mode"]
    assert [(part["offset"], part["length"]) for part in values["layout"]["input"]] == [
        (0, 2),
        (2, 2),
        (4, 3),
    ]
    reader = documented("read_export.py")
    layout, arrays = reader["load"](tmp_path)
    wrong = {**layout, "input": sorted(layout["input"], key=lambda part: listed.index(part["name"]))}
    ROBOT.seed(5)
    seen = [ROBOT.sample() for _ in range(50)]
    right, mistaken = ([int(reader["act"](one, arrays, [x])) for x in seen] for one in (layout, wrong))
    assert right != mistaken
    values["layout"] = wrong
    (tmp_path / DESCRIPTION).write_text(json.dumps(values))
    with pytest.raises(ConfigurationError, match="mode begins at 4, the parts before it end at 0"):
        load_export(tmp_path)


def _at(values: Any, path: Sequence[Any]) -> Any:
    for key in path:
        values = values[key]
    return values


def _changed(values: Any, path: Sequence[Any], new: Any) -> None:
    _at(values, path[:-1])[path[-1]] = new


@pytest.mark.parametrize(
    ("path", "new", "named"),
    [
        (["layout", "input", 1, "length"], 3, "mode begins at 4, the parts before it end at 5"),
        (["layout", "input", 2, "length"], 4, "adds up to 8 numbers, layout.input_width is 7"),
        (["layout", "input_width"], 8, "adds up to 7 numbers, layout.input_width is 8"),
        (["layout", "frame_stack"], 2, "adds up to 14 numbers"),
        (["layout", "input", 0, "normaliser", "clip"], 5.0, r"layout\.input is not the one"),
        (["layout", "input", 2, "start"], [0], r"layout\.input is not the one"),
        (["layout", "input", 0, "shape"], [3], "position has 2 numbers, not the shape"),
        (["layout", "output", 0, "start"], [0], r"layout\.output is not the one"),
        (["layout", "network", "layers", 0, "activation"], "relu", r"layout\.network is not the one"),
        (["layout", "more"], 1, r"layout\.more is not the one"),
        (["layout"], [], "damaged export"),
        (["layout", "input"], {}, "damaged export"),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, list) else "",
)
def test_a_layout_that_does_not_follow_from_the_spec_is_refused_by_name(
    path: list[Any], new: Any, named: str, tmp_path: Path
) -> None:
    write(tmp_path, spec_of(*SPACES["the same, normalised"]))
    values = json.loads((tmp_path / DESCRIPTION).read_text())
    _changed(values, path, new)
    (tmp_path / DESCRIPTION).write_text(json.dumps(values))
    with pytest.raises(ConfigurationError, match=named):
        read_export(tmp_path)


def _leaves(values: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all values of a description, containers included."""
    entries = values.items() if isinstance(values, dict) else enumerate(values)
    found = [(*path, key) for key, _ in entries]
    entries = values.items() if isinstance(values, dict) else enumerate(values)
    for key, value in entries:
        if isinstance(value, dict | list):
            found += _leaves(value, (*path, key))
    return found


_WRONG: tuple[Any, ...] = (None, -1, math.inf, "x", [], {}, [["y"]])


def test_no_wrong_value_anywhere_in_a_description_ends_in_another_error_or_another_policy(
    tmp_path: Path,
) -> None:
    spec = spec_of(*SPACES["the same, normalised"])
    write(tmp_path, spec)
    text = (tmp_path / DESCRIPTION).read_text()
    rows = np.array([spec.observation.pack(ROBOT.sample()) for _ in range(5)])
    expected = load_export(tmp_path).outputs(rows).tolist()
    accepted = set()
    for path in _leaves(json.loads(text)):
        for wrong in _WRONG:
            values = json.loads(text)
            if _at(values, path) == wrong or not (_at(values, path) or wrong):  # an empty list is as good
                continue
            _changed(values, path, wrong)
            (tmp_path / DESCRIPTION).write_text(json.dumps(values))
            try:
                found = load_export(tmp_path).outputs(rows).tolist()
            except ConfigurationError:
                continue
            assert found == expected, (path, wrong)
            accepted.add(".".join(map(str, path[:2])))
    # What says where a policy comes from, and the words.
    assert {name for name in accepted if not name.startswith("how_to_act")} <= {
        *("run", "epoch", "version", "update", "trained_steps", "env_steps", "arrays.file"),
        "spec.wire_schema",
    }


@pytest.mark.parametrize(
    "text",
    ["[]", "3", "null", '{"name": "a package"}', "{}", '{"format": 2}', "[" * 100_000, "\udcff", ""],
    ids=lambda text: text[:10] or "empty",
)
def test_a_foreign_description_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    write(tmp_path, SPECS["vector"])
    (tmp_path / DESCRIPTION).write_bytes(text.encode(errors="surrogateescape"))
    assert not is_replaceable(tmp_path)
    with pytest.raises(
        ConfigurationError, match=r"not the description of an export|damaged export"
    ) as raised:
        load_export(tmp_path)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("name", SPECS)
def test_the_layers_of_a_layout_are_the_arrays_of_the_policy(name: str, tmp_path: Path) -> None:
    weights = write(tmp_path, SPECS[name])
    network = layout_of(SPECS[name])["network"]
    layers = [*network["layers"], *(network.get("vector") or [])]
    layers += [layer for encoder in network.get("encoders", []) for layer in encoder["layers"]]
    named = set()
    for layer in layers:
        assert weights.arrays[layer["weight"]].shape[:2] == (layer["outputs"], layer["inputs"])
        assert weights.arrays[layer["bias"]].shape == (layer["outputs"],)
        named |= {layer["weight"], layer["bias"]}
    cell = "memory.cell."
    if network.get("cell"):
        assert weights.arrays["memory.cell.weight_ih_l0"].shape[1] == network["cell"]["inputs"]
    rest = {x for x in weights.network_arrays() if not x.startswith(cell)} - named
    assert rest <= {"log_std"}


def test_images_and_memories_are_described() -> None:
    layout = layout_of(make_spec(observation=NAMED, network=LSTM, frame_stack=2))
    camera = next(part for part in layout["input"] if part["encoding"] == "image")
    assert camera["name"] == "camera"
    assert (camera["tensor"], camera["shape"], camera["channels"]) == ("image_0", [8, 9, 3], "last")
    assert (camera["divide_by"], camera["tensor_shape"]) == (255.0, [6, 8, 9])
    assert layout["memory"] == {"kind": "lstm", "size": 12, "initial": 0.0}
    assert layout["input_width"] == sum(x["length"] for x in layout["input"] if x["tensor"] == "vector") * 2


def test_shapes_are_the_environments_own_and_come_back_from_an_export(tmp_path: Path) -> None:
    observation, action, other = SPACES["tuple"]
    spec = spec_of(observation, action, other)
    write_export(tmp_path, Export("a run", spec, loaded(spec)))
    assert [part["shape"] for part in layout_of(spec)["input"]] == [[], [2, 2], [2]]
    again = read_export(tmp_path).spec
    assert shapes_of(again.observation) == [[2, 2], [], [2]]
    assert again.digest() == spec.digest()


def test_the_layout_of_a_custom_network_is_checked_by_its_sum() -> None:
    spec = make_spec(observation=describe_observations(Everything.observation_space))
    custom = spec.network.model_copy(update={"custom": "tests.networks:Linear"})
    spec = make_spec(observation=spec.observation, network=custom)
    layout = json.loads(json.dumps(layout_of(spec)))
    check_layout(layout, spec, {})
    layout["input"][0]["length"] += 1
    with pytest.raises(ValueError, match="begins at"):
        check_layout(layout, spec, {})
