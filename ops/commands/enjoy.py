"""`dppo-redis enjoy`: shows a run's policy playing, in a window or as a video."""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import numpy as np
import tyro
from gymnasium.vector import SyncVectorEnv

from dppo_redis.environments.copy_number import CopyNumber
from dppo_redis.environments.make import close_quietly, closing_quietly, make_single, make_vector
from dppo_redis.errors import ConfigurationError, EnvironmentBrokenError, StoppedError
from dppo_redis.policy.player import Player
from dppo_redis.protocol.spec import EnvironmentSource, Spec
from dppo_redis.service.arguments import parse_arguments
from dppo_redis.service.logs import answer, configure
from dppo_redis.service.plugins import first_line
from dppo_redis.service.shutdown import StopRequest
from ops.policies.limits import under_limit
from ops.policies.load_policy import LoadedPolicy, check_playing, load_policy
from ops.policies.video import Video, check_video
from ops.policies.which_run import find_run_directory
from workers.seeding import NO_VERSION, evaluation_seeds
from workers.watchdog import CallClock

_USUAL_FPS = 30.0


@dataclass(frozen=True)
class EnjoyOptions:
    """Watch episodes that a trained policy plays."""

    run_dir: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")] = None
    """Directory of a run or export, or the name of a run in runs/"""
    run: str | None = None
    """Name of a run in runs/, instead of RUN_DIR"""
    episodes: int = 3
    """Episodes to play"""
    checkpoint: str = "best"
    """Which policy: best (of the evaluations), last (checkpoint), a checkpoint file, or an export"""
    stochastic: bool = False
    """Draw actions from the policy instead of taking the most likely one"""
    seed: int = 0
    """Seed of the episodes"""
    fps: Annotated[float | None, tyro.conf.arg(metavar="FPS")] = None
    """Steps shown per second; default: the environment's own rate"""
    video: Path | None = None
    """Write a video file (.mp4 or .gif) instead of opening a window"""


class WindowClosedError(Exception):
    """The user closed the window."""


class Clock:
    """Limits a window to a number of steps per second."""

    def __init__(self, fps: float, stop: StopRequest) -> None:
        self._period_s = 1.0 / fps
        self._stop = stop
        self._next = time.monotonic()

    def tick(self) -> None:
        """Wait until the next step is due. A late step does not shorten later waits."""
        self._next = max(self._next + self._period_s, time.monotonic() - self._period_s)
        self._stop.sleep(self._next - time.monotonic())


@dataclass
class Show:
    """One environment, its player, and the window or video that shows it."""

    env: gymnasium.Env[Any, Any]
    player: Player
    clock: Clock | None  # for a window only
    video: Video | None
    stop: StopRequest
    calls: CallClock

    def play(self, seed: int) -> tuple[float, int] | None:
        """Play one episode; returns its return and length, or None if a stop was requested meanwhile.

        Raises:
            EnvironmentBrokenError: the environment raised.
            WindowClosedError: the user closed the window.
            ConfigurationError: the environment cannot render, because a package or a display is missing.
        """
        self.player.begin()
        with _user_errors("reset", self.calls):
            observation, _ = self.env.reset(seed=seed)
        self._show()
        total, length, ended = 0.0, 0, False
        while not ended:
            if self.stop.requested:
                return None
            action = self.player.act(observation)
            with _user_errors("step", self.calls):
                observation, reward, terminated, truncated, _ = self.env.step(action)
            self._show()
            total, length, ended = total + float(reward), length + 1, bool(terminated or truncated)
        return total, length

    def _show(self) -> None:
        """Add a picture to the video, or wait for the window's next step. The environment draws the window
        itself."""
        if self.video is not None:
            with _user_errors("render", self.calls):
                frame = self.env.render()
            self.video.add(frame)
        if self.clock is not None:
            _check_window(self.env)
            self.clock.tick()


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point.

    Raises:
        ConfigurationError: an option or the directory cannot be used.
    """
    configure("enjoy")
    stop = StopRequest().install()
    options = parse_arguments(EnjoyOptions, argv, "dppo-redis enjoy")
    _check_options(options)
    directory = find_run_directory(options.run_dir, options.run)
    try:
        loaded = load_policy(directory, options.checkpoint, stop)
    except StoppedError:
        return stop.exit_status
    if stop.requested:
        return stop.exit_status
    with under_limit(loaded.description.join, stop) as calls:
        video = _show(loaded, options, stop, calls)
    if video is not None:
        answer(f"wrote {options.video}: {video.frames} frames, {video.fps:.3g} per second")
    return stop.exit_status


def _show(loaded: LoadedPolicy, options: EnjoyOptions, stop: StopRequest, calls: CallClock) -> Video | None:
    """Play in a window, or write a video; returns the video."""
    description = loaded.description
    spec = replace(description.spec, environment=description.evaluated)
    file = options.video and options.video.absolute()
    with _timed(calls):
        fps = options.fps or _check_rendering(spec.environment, filming=file is not None)
    sampling = np.random.default_rng(options.seed) if options.stochastic else None
    player = Player(loaded.policy(), sampling)
    with _timed(calls):
        vector = _make(spec, fps, filming=file is not None)
    env = vector.envs[0]
    try:
        if file is None:
            _play_all(Show(env, player, Clock(fps, stop), None, stop, calls), options)
            return None
        with closing(Video(file, fps)) as video:
            _play_all(Show(env, player, None, video, stop, calls), options)
        return video
    finally:
        with _timed(calls):
            close_quietly(vector)


def _play_all(show: Show, options: EnjoyOptions) -> None:
    """Play the episodes and print the result of each."""
    for number, seed in enumerate(evaluation_seeds(options.seed, NO_VERSION, options.episodes), start=1):
        try:
            played = show.play(seed)
        except WindowClosedError:
            return
        if played is None:
            return
        answer(f"episode {number}: return {played[0]:.2f}, {played[1]} steps")


def _check_options(options: EnjoyOptions) -> None:
    check_playing(options.episodes, options.seed)
    if options.fps is not None and not 0 < options.fps <= 1000:
        raise ConfigurationError(f"--fps: must be above 0 and at most 1000 (got {options.fps:g})")
    if options.video is not None:
        check_video(options.video)
    elif sys.platform == "linux" and not any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    ):
        raise ConfigurationError(
            "there is no display for a window: pass --video FILE.mp4 or --video FILE.gif"
        )


def _check_rendering(source: EnvironmentSource, *, filming: bool) -> float:
    """Check that the environment can render; returns its steps per second.

    Raises:
        ConfigurationError: the environment lacks the needed render mode.
    """
    with closing_quietly(make_single(source)) as env:
        modes = env.metadata.get("render_modes") or []
        fps = env.metadata.get("render_fps") or _USUAL_FPS
    needed = (
        ["rgb_array"] if filming else ["human", "rgb_array"]
    )  # gymnasium can show an rgb_array in a window
    if not any(mode in modes for mode in needed):
        raise ConfigurationError(
            f"environment {source.env_id!r} cannot be {'filmed' if filming else 'watched'}: it has no render "
            f"mode {' or '.join(needed)} (its render_modes are {list(modes)})"
        )
    return float(fps)


def _make(spec: Spec, fps: float, *, filming: bool) -> SyncVectorEnv:
    """One copy of the run's environment in a vector, with wrappers, action mask and render mode.

    Raises:
        ConfigurationError: the environment cannot be made, or a package for rendering is missing.
    """
    mode = "rgb_array" if filming else "human"
    if filming and not os.environ.get("SDL_VIDEODRIVER"):
        os.environ["SDL_VIDEODRIVER"] = "dummy"  # lets pygame render without a display
    source = replace(spec.environment, env_kwargs={**spec.environment.env_kwargs, "render_mode": mode})
    number = CopyNumber("enjoy")
    vector = make_vector(source, 1, "sync", masked=spec.observation.masked, number=number)
    assert isinstance(vector, SyncVectorEnv)
    env = vector.envs[0].unwrapped
    env.metadata = {**env.metadata, "render_fps": fps}  # environments that wait between frames read this rate
    return vector


@contextmanager
def _timed(calls: CallClock) -> Iterator[None]:
    """Time a call of the environment, which may hang."""
    calls.start()
    try:
        yield
    finally:
        calls.stop()


@contextmanager
def _user_errors(method: str, calls: CallClock) -> Iterator[None]:
    """Raise any error of the environment as an error of this package."""
    try:
        with _timed(calls):
            yield
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigurationError(f"the environment cannot render: {first_line(error)}") from error
    except Exception as error:  # the user's code may raise anything
        raise EnvironmentBrokenError(
            f"{method} raised {type(error).__name__}: {first_line(error)}"
        ) from error


def _check_window(env: gymnasium.Env[Any, Any]) -> None:
    """Check whether the user closed the window. pygame environments do not check it, MuJoCo's check it too
    late.

    Raises:
        WindowClosedError: the user closed the window.
    """
    pygame, glfw = sys.modules.get("pygame"), sys.modules.get("glfw")
    is_closed = pygame is not None and pygame.display.get_init() and bool(pygame.event.get(pygame.QUIT))
    if glfw is not None:
        viewer = getattr(getattr(env.unwrapped, "mujoco_renderer", None), "viewer", None)
        window = getattr(viewer, "window", None)
        is_closed = is_closed or (window is not None and bool(glfw.window_should_close(window)))
    if is_closed:
        raise WindowClosedError
