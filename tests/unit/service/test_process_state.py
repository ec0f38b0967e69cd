"""Changes of the process by the user's code are restored after it."""

import gc
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dppo_redis.service.process_state import (
    TookTooLongError,
    interrupted_after,
    keeping_process_state,
    keeping_signals,
)

OURS = logging.getLogger("dppo")


def state() -> dict[str, Any]:
    handlers = [one for logger in (logging.getLogger(), OURS) for one in logger.handlers]
    mask = os.umask(0o022)
    os.umask(mask)
    return {
        "signals": [
            signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)
        ],
        "blocked": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "directory": Path.cwd(),
        "umask": mask,
        "streams": (sys.stdout, sys.stderr, sys.excepthook),
        "timeout": socket.getdefaulttimeout(),
        "logging": (
            logging.getLogger().level,
            [(one, one.level, list(one.filters)) for one in handlers],
            OURS.level,
            OURS.disabled,
            OURS.propagate,
            logging.root.manager.disable,
        ),
        "warnings": list(warnings.filters),
        "numpy": np.geterr(),
        "collects": gc.isenabled(),
        "torch": (
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.get_num_threads(),
            torch.is_grad_enabled(),
            torch.is_anomaly_enabled(),
            torch.are_deterministic_algorithms_enabled(),
        ),
    }


def leave(*_: object) -> None:
    raise SystemExit(1)


def close_streams() -> None:
    sys.stdout = sys.stderr = None


def raise_levels() -> None:
    for handler in logging.getLogger().handlers:
        handler.setLevel(99)


def mute(logger: logging.Logger) -> None:
    logger.handlers.clear()
    logger.setLevel(logging.CRITICAL)
    logger.disabled, logger.propagate = True, False


CHANGES: dict[str, Callable[[], object]] = {
    "signals ignored": lambda: [signal.signal(n, signal.SIG_IGN) for n in (signal.SIGTERM, signal.SIGINT)],
    "signals by default": lambda: [
        signal.signal(n, signal.SIG_DFL) for n in (signal.SIGTERM, signal.SIGPIPE)
    ],
    "signals that leave": lambda: signal.signal(signal.SIGINT, leave),
    "signals blocked": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]),
    "directory": lambda: os.chdir("/"),
    "umask": lambda: os.umask(0o077),
    "streams": close_streams,
    "hook": lambda: setattr(sys, "excepthook", leave),
    "socket timeout": lambda: socket.setdefaulttimeout(0.001),
    "logging configured": lambda: logging.basicConfig(force=True, level=logging.ERROR),
    "logging off": lambda: logging.disable(logging.CRITICAL),
    "our logger muted": lambda: mute(OURS),
    "the handlers' levels": raise_levels,
    "warnings as errors": lambda: warnings.simplefilter("error"),
    "numpy raises": lambda: np.seterr(all="raise"),
    "no collection": gc.disable,
    "double precision": lambda: torch.set_default_dtype(torch.float64),
    "another device": lambda: torch.set_default_device("meta"),
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "no gradients": lambda: torch.set_grad_enabled(False),
    "anomalies": lambda: torch.autograd.set_detect_anomaly(True),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
}


@pytest.fixture
def _handler() -> Any:
    """As `configure` adds one."""
    handler = logging.StreamHandler()
    logging.getLogger().addHandler(handler)
    yield
    logging.getLogger().removeHandler(handler)


@pytest.mark.usefixtures("_handler")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
def test_changed_process_state_is_restored(change: str, fails: bool) -> None:
    before = state()
    try:
        with keeping_process_state():
            CHANGES[change]()
            if fails:
                raise RuntimeError("and raised")
    except RuntimeError:
        pass
    assert state() == before


def test_a_handler_that_a_c_library_replaced_is_put_back() -> None:
    """Python's own view of it does not change then."""
    import ctypes

    caught = []
    before = signal.signal(signal.SIGHUP, lambda *_: caught.append("ours"))
    try:
        with keeping_process_state():
            libc = ctypes.CDLL(None)
            libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
            libc.signal(signal.SIGHUP, ctypes.c_void_p(1))  # SIG_IGN
        signal.raise_signal(signal.SIGHUP)
        assert caught == ["ours"]
    finally:
        signal.signal(signal.SIGHUP, before)


_CLOSES_ITS_STREAMS = """
import logging, sys
from dppo_redis.service.process_state import keeping_process_state
logging.basicConfig(format="%(message)s")
for number in range(2):
    with keeping_process_state():
        sys.stdout.close(), sys.stderr.close()
        logging.getLogger().handlers.clear()
    print("said", number)
    logging.error("logged %d", number)
"""


def test_streams_that_were_closed_are_opened_again_for_us_and_for_the_log() -> None:
    code = [sys.executable, "-c", _CLOSES_ITS_STREAMS]
    it = subprocess.run(code, capture_output=True, text=True, timeout=60, check=False)
    assert (it.stdout, it.stderr) == ("said 0\nsaid 1\n", "logged 0\nlogged 1\n")


def test_a_thread_may_build_too() -> None:
    """It cannot set handlers, and neither can what it calls."""
    done = []

    def build() -> None:
        with keeping_process_state(), keeping_signals():
            os.chdir("/")
        done.append(Path.cwd())

    thread = threading.Thread(target=build)
    thread.start()
    thread.join()
    assert done == [Path.cwd()]


def test_a_reset_in_a_step_keeps_handlers_and_directory() -> None:
    before = state()
    with keeping_signals():
        CHANGES["signals ignored"]()
        os.chdir("/")
    assert state() == before


def test_a_directory_that_is_gone_stays_so(tmp_path: Path) -> None:
    here = Path.cwd()
    gone = tmp_path / "gone"
    gone.mkdir()
    try:
        os.chdir(gone)
        with keeping_process_state():
            gone.rmdir()
            os.chdir("/")
    finally:
        os.chdir(here)


def test_a_call_that_does_not_return_in_time_is_interrupted() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TookTooLongError, match="did not return"), interrupted_after(0.1):
        time.sleep(60)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_call_that_returns_in_time_is_not_interrupted_nor_is_later_code() -> None:
    with interrupted_after(0.05):
        pass
    time.sleep(0.1)
