"""Rewrites messages of the `train` command for Python programs: keywords instead of flags. Pure."""

import re
from functools import cache

from dppo_redis.command_line.declared import options_of
from dppo_redis.command_line.our_flags import off_flag, on_flag
from ops.options import TrainOptions

_HELP = "help(dppo_redis.train)"
_SEE_HELP = re.compile(r" \(see dppo-redis train --help\)")
_HELP_COMMAND = re.compile(r"`?dppo-redis train --help`?")
_EXAMPLE = re.compile(r"dppo-redis train ([\w:./-]+)")
_FLAG = re.compile(r"(?<![\w-])(--[a-z][\w.-]*[\w])(?: ([A-Z]+\b|auto\b))?")


def with_keywords(message: str) -> str:
    """The message with keywords of `dppo_redis.train` instead of flags. Flags of other commands stay."""
    text = _HELP_COMMAND.sub(_HELP, _SEE_HELP.sub("", message))
    text = _EXAMPLE.sub(lambda found: f'dppo_redis.train("{found[1]}")', text)
    return _FLAG.sub(_keyword, text)


def _keyword(found: re.Match[str]) -> str:
    flag, value = found.groups()
    keyword = _keywords().get(flag)
    if keyword is None:
        return found[0]
    return f'{keyword.partition("=")[0]}="auto"' if value == "auto" else keyword


@cache
def _keywords() -> dict[str, str]:
    """The keyword for each flag of `train`; for a switch with its value."""
    keywords = {}
    for option in options_of(TrainOptions):
        if option.name == "json":  # an option of the command alone
            continue
        is_switch = option.is_switch or option.name == "resume"
        keywords[on_flag(option)] = f"{option.name}=True" if is_switch else option.name
        if option.is_switch:
            keywords[off_flag(option)] = f"{option.name}=False"
    return keywords
