"""The user's code runs in our processes: what it changes there for its own purposes is put back.

Around each call that imports, builds, resets or closes an environment, or a network of the user's. A
step is left alone: it has to be fast.
"""

import contextlib
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from dppo_redis.service import user_code

_OURS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


@contextlib.contextmanager
def keeping_manners() -> Iterator[None]:
    """Put back signal handlers, working directory, logging, warning filters and torch's defaults.

    New entries of `sys.path` stay, since the user's module may need them later. So do the global random
    states of `random`, numpy and torch: they are the user's, this product has generators of its own.
    """
    nested = user_code.is_inside()
    if not nested:
        user_code.enter()
    handlers = _handlers()
    directory = _working_directory()
    root = logging.getLogger()
    level, root_handlers, disabled = root.level, list(root.handlers), logging.root.manager.disable
    own = logging.getLogger("dppo")
    own_level, own_handlers, own_disabled = own.level, list(own.handlers), own.disabled
    own_propagates = own.propagate
    filters = list(warnings.filters)
    errors = np.geterr()
    torch_state = _torch_state()
    try:
        yield
    finally:
        _put_back_handlers(handlers)
        if directory is not None and _working_directory() != directory:
            with contextlib.suppress(OSError):
                os.chdir(directory)
        root.setLevel(level)
        root.handlers[:] = root_handlers
        logging.disable(disabled)
        own.setLevel(own_level)
        own.handlers[:] = own_handlers
        own.disabled, own.propagate = own_disabled, own_propagates
        warnings.filters[:] = filters  # type: ignore[index]
        np.seterr(**errors)
        _put_back_torch(torch_state)
        if not nested:
            user_code.leave()


def _handlers() -> dict[signal.Signals, Any]:
    try:
        return {number: signal.getsignal(number) for number in _OURS}
    except ValueError:
        return {}


def _put_back_handlers(handlers: dict[signal.Signals, Any]) -> None:
    """Only the main thread may; elsewhere the user's code could not change them either."""
    for number, handler in handlers.items():
        if handler is not None and signal.getsignal(number) is not handler:
            with contextlib.suppress(ValueError):
                signal.signal(number, handler)
    with contextlib.suppress(ValueError):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _OURS)


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


def _torch_state() -> tuple[Any, ...] | None:
    """Of a torch that is imported already; None: it is not."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_default_dtype"):
        return None
    return torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()


def _put_back_torch(state: tuple[Any, ...] | None) -> None:
    """Where the user's code imported torch itself, to what it is at first."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "set_default_dtype"):
        return
    dtype, threads, grad = state or (torch.float32, None, True)
    if torch.get_default_dtype() is not dtype:
        torch.set_default_dtype(dtype)
    if torch.get_default_device().type != "cpu":
        torch.set_default_device("cpu")
    if threads is not None and torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    if torch.is_grad_enabled() != grad:
        torch.set_grad_enabled(grad)
