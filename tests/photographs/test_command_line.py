"""Texts of the commands: help, refusals with their exit statuses, and users for Redis."""

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from tests.e2e.support import tree
from tests.photographs.camera import masked, photograph
from tests.photographs.product import RedisServer, find_server
from tests.photographs.scenes import REFUSED, STATES, furnish
from tests.photographs.stage import COMMANDS, ROOT, Act, Ending, perform

_NOBODY = "redis://127.0.0.1:1/0"  # a port that nothing listens on
_FILES = {
    "file": "not a directory\n",
    "foreign/thesis.txt": "years of work\n",
    "other/run.json": '{"run": "other"}\n',
    "other/config.toml": 'env_id = "CartPole-v1"\n',
    "breaks.py": "raise RuntimeError('no licence for the simulator')\n",
    "broken.toml": "actors = = 2\n",
    "typo.toml": "actorz = 2\n",
    "deep.toml": 'env_id = "CartPole-v1"\n[ppo]\nclip_epsilom = 0.1\n',
    "range.toml": 'env_id = "CartPole-v1"\n[ppo]\ngamma = 1.5\n',
    "kind.toml": 'env_id = "CartPole-v1"\nactors = "two"\n',
}
_MISTAKES = (
    "trian CartPole-v1",
    "train",
    "train NoSuchEnv-v7",
    "train CartPole-v9",
    "train no_such_module:Walk-v0",
    "train tests.envs:Nope-v0",
    "train breaks:Walk-v0",
    "train CartPole-v1 --env-kwargs colour 3",
    "train CartPole-v1 --actors 0",
    "train CartPole-v1 --actors two",
    "train CartPole-v1 --actor 3",
    "train CartPole-v1 --ppo.clip-epsilon 3",
    "train CartPole-v1 --ppo.correction magic",
    "train CartPole-v1 --network.hidden 8 0",
    "train CartPole-v1 --env-steps 0",
    "train CartPole-v1 --device tpu",
    "train CartPole-v1 --resume=true",
    "train CartPole-v1 --run ../up",
    "train CartPole-v1 --config gone.toml",
    "train CartPole-v1 --config broken.toml",
    "train CartPole-v1 --config typo.toml",
    "train CartPole-v1 --config range.toml",
    "train CartPole-v1 --config kind.toml",
    "train --config deep.toml",
    "train CartPole-v1 --max-staleness 2 --publish-every 4",
    "train CartPole-v1 --lock-step --publish-every 2",
    "train CartPole-v1 --network.memory lstm --ppo.minibatch-size 100",
    "train CartPole-v1 --network.memory gru --network.custom tests.networks:Linear",
    "train CartPole-v1 --network.custom gone:Net",
    "train CartPole-v1 --network.custom tests.networks:TooManyOutputs",
    "train CartPole-v1 --wrappers NoSuch(x=1)",
    "train CartPole-v1 --wrappers NormalizeReward",
    "train tests.envs:WholeActions-v0",
    "train tests.envs:Spoken-v0",
    "train tests.envs:WronglyMasked-v0",
    "train tests.envs:OldApi-v0",
    "train tests.envs:RaisesInReset-v0 --env-retry-s 0 --env-kwargs at 1",
    "train CartPole-v1 --redis http://127.0.0.1:6379",
    f"train CartPole-v1 --redis {_NOBODY}",
    "train CartPole-v1 --run-dir file/run",
    "train CartPole-v1 --run-dir other",
    "train CartPole-v1 --run-dir foreign",
    "train CartPole-v1 --run-dir foreign --overwrite",
    "train --resume",
    "train --resume --run-dir foreign",
    "train --resume --run-dir other",
    "train --resume --run mine --run-dir other",
    "train --resume --overwrite --run-dir other",
    "train --resume --run-dir released/fleet --rollout-steps 8",
    "train --resume --run-dir released/fleet --network.hidden 9",
    "train --resume --run-dir released/fleet --lock-step",
    "train --resume --run-dir released/lock_step --actors 3",
    "train --resume --run-dir released/fleet --init-from released/export",
    "train CartPole-v1 --init-from nowhere",
    "train CartPole-v1 --init-from released/fleet",
    "serial CartPole-v1 --age -1",
    "serial CartPole-v1 --age 1 --lock-step",
    "serial CartPole-v1 --run-dir foreign --overwrite",
    "evaluate nowhere",
    "evaluate released/fleet --episodes 0",
    "evaluate released/fleet --checkpoint gone.pt",
    "evaluate released/fleet --checkpoint released/export",
    "evaluate released/export --checkpoint last",
    "export released/fleet --to foreign",
    "export released/fleet --to file",
    "export released/serial --to released/export",
    "plot",
    "plot foreign",
    "plot released/fleet --output curves.txt",
    "enjoy released/fleet --video film.txt",
    "bench stalenes",
    "status",
    "status --redis ftp://127.0.0.1",
    "actor --run x",
    "actor --run x --slot -1 --redis redis://127.0.0.1:1",
    "evaluator --run x/y --redis redis://127.0.0.1:1",
    "learner --run x --run-dir nowhere --redis redis://127.0.0.1:1",
    "learner --run x --run-dir other --threads 0 --redis redis://127.0.0.1:1",
    "quarantine --show 1-1 --clear",
    "acl --directory file",
    "acl --directory users --run ../up",
)
# With a server that holds the runs of `scenes.py`.
_MISTAKES_WITH_REDIS = (
    "status",
    "status --run gone",
    "quarantine --run gone",
    "quarantine --run released --show 1-1",
    "train CartPole-v1 --run released",
    "train --resume --run-dir released/fleet --run released",
    "evaluator --run schema",
    *(f"actor --run {run}" for run in REFUSED),
)
_SCREENS = (
    *(f"status --run {run}" for run in STATES),
    "status --run training --json",
    "quarantine training",
    "quarantine training --show 1700000000000-0",
    "quarantine training --json",
)
_PASSWORD_FILE = Act(
    ("train", "CartPole-v1", "--redis", _NOBODY), environment={"DPPO_REDIS_PASSWORD_FILE": "gone.txt"}
)
_ACL = ("acl --directory every-run", "acl --directory one-run --run mine")


@dataclass(frozen=True)
class Played:
    """The endings of all command lines by title, and the texts that differ between machines."""

    endings: Mapping[str, Ending]
    places: Mapping[str, str]
    directory: Path
    before: Mapping[str, bytes]  # the files in it

    def says(self, title: str) -> str:
        """A command line, its exit status and what it printed."""
        ending = self.endings[title]
        printed = "".join(
            f"{name}:\n{_trimmed(text)}" for name, text in (("out", ending.out), ("err", ending.err)) if text
        )
        return masked(f"$ {title}\nexit status {ending.status}\n{printed}", self.places)


def _trimmed(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Run all command lines together."""
    directory = tmp_path_factory.mktemp("stage")
    for name, text in _FILES.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)
    shutil.copytree(Path(__file__).parent / "released", directory / "released")
    cwd = str(directory)
    before = tree(directory)
    server = RedisServer(find_server())
    try:
        server.start()
        client = redis.Redis.from_url(server.url)
        furnish(client)
        client.close()
        with_redis = {"DPPO_REDIS_URL": server.url}
        acts = [
            Act((), cwd),
            Act(("--help",), cwd),
            *(Act((name, "--help"), cwd) for name in COMMANDS),
            *(Act(tuple(line.split()), cwd) for line in _MISTAKES),
            Act(_PASSWORD_FILE.arguments, cwd, _PASSWORD_FILE.environment),
            *(Act(tuple(line.split()), cwd, with_redis) for line in (*_MISTAKES_WITH_REDIS, *_SCREENS)),
            *(Act(tuple(line.split()), cwd) for line in _ACL),
        ]
        endings = perform(acts)
    finally:
        server.close()
    places = {
        f"DPPO_REDIS_URL={server.url} ": "",
        server.url: "URL",
        str(directory): "DIRECTORY",
        str(ROOT): "ROOT",
    }
    named = {act.title: ending for act, ending in zip(acts, endings, strict=True)}
    assert len(named) == len(acts)
    return Played(named, places, directory, before)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command(name: str, played: Played) -> None:
    photograph(f"help/{name}.txt", played.says(f"dppo-redis {name} --help"))


def test_the_help_without_a_command(played: Played) -> None:
    texts = [played.says(title) for title in ("dppo-redis --help", "dppo-redis")]
    photograph("help/dppo-redis.txt", "\n".join(texts))


def test_mistakes_are_refused_with_the_recorded_status_and_words(played: Played) -> None:
    titles = [f"dppo-redis {line}".rstrip() for line in _MISTAKES]
    photograph("mistakes.txt", "\n".join(map(played.says, [*titles, _PASSWORD_FILE.title])))


def test_mistakes_with_a_server_are_refused_with_the_recorded_status_and_words(played: Played) -> None:
    photograph("mistakes_with_redis.txt", "\n".join(map(played.says, _titles(played, _MISTAKES_WITH_REDIS))))


def test_no_mistake_ends_with_success_or_a_traceback(played: Played) -> None:
    titles = [f"dppo-redis {line}".rstrip() for line in _MISTAKES]
    statuses = {played.endings[title].status for title in [*titles, *_titles(played, _MISTAKES_WITH_REDIS)]}
    assert statuses == {69, 70, 78}


def test_no_mistake_changes_or_leaves_a_file(played: Played) -> None:
    made = tuple(f"{line.split()[2]}/" for line in _ACL)
    made += ("__pycache__/",)  # of the module that breaks
    after = {name: text for name, text in tree(played.directory).items() if not name.startswith(made)}
    assert after == played.before


def test_screens_of_runs_in_every_state(played: Played) -> None:
    said = "\n".join(map(played.says, _titles(played, _SCREENS)))
    photograph("screens.txt", re.sub(r"silent for \d+ s", "silent for N s", said))


def test_users_for_redis(played: Played) -> None:
    said = [played.says(f"dppo-redis {line}") for line in _ACL]
    for name in ("every-run", "one-run"):
        directory = played.directory / name
        secret = sorted(file for file in directory.iterdir() if file.name != "users.acl")
        said += [f"{file.name} {file.stat().st_mode:o}" for file in secret]
        said.append(re.sub(r"#[0-9a-f]{64}", "#HASH", (directory / "users.acl").read_text()))
        said.append(re.sub(r":\S{43}\n", ":PASSWORD\n", (directory / "actor").read_text()))
    photograph("acl.txt", "\n".join(said))


def _titles(played: Played, lines: tuple[str, ...]) -> list[str]:
    """The titles of the acts with a server."""
    (shown,) = (found for found, mask in played.places.items() if not mask)
    return [f"{shown}dppo-redis {line}" for line in lines]
