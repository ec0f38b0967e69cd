"""The options that are declared are those that the parser takes."""

import contextlib
import io
import re
from typing import Any

import pytest
import tyro

from dppo_redis.command_line.declared import options_of
from dppo_redis.command_line.values import KINDS
from learner.__main__ import LearnerOptions
from ops.commands.enjoy import EnjoyOptions
from ops.commands.export import ExportOptions
from ops.commands.plot import PlotOptions
from ops.commands.quarantine import QuarantineOptions
from ops.commands.status import StatusOptions
from ops.options import SerialOptions, TrainOptions
from workers.__main__ import ActorOptions
from workers.evaluate import EvaluatorOptions

KINDS_OF_COMMANDS = (
    TrainOptions,
    SerialOptions,
    EnjoyOptions,
    ExportOptions,
    PlotOptions,
    StatusOptions,
    QuarantineOptions,
    ActorOptions,
    LearnerOptions,
    EvaluatorOptions,
)


def flags_of_the_parser(kind: type[Any]) -> set[str]:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        tyro.cli(kind, args=["--help"], config=(tyro.conf.FlagCreatePairsOff,), registry=KINDS)
    return set(re.findall(r"^\W*(--[a-z][\w.-]*)", shown.getvalue(), re.MULTILINE))


@pytest.mark.parametrize("kind", KINDS_OF_COMMANDS, ids=lambda kind: kind.__name__)
def test_declared_flags_are_the_flags_of_the_parser(kind: type[Any]) -> None:
    declared = {option.flag for option in options_of(kind) if not option.is_positional}
    assert declared == flags_of_the_parser(kind)


@pytest.mark.parametrize("kind", KINDS_OF_COMMANDS, ids=lambda kind: kind.__name__)
def test_each_option_has_a_text(kind: type[Any]) -> None:
    assert [option.name for option in options_of(kind) if not option.help] == []
