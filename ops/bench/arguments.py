"""The command line of a benchmark: a mistake is one line and status 78, as with all commands."""

import argparse
from typing import NoReturn

from dppo_redis.errors import ConfigurationError


class BenchmarkParser(argparse.ArgumentParser):
    """argparse's parser, whose errors are those of the other commands."""

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(f"{self.prog.removeprefix('dppo-redis ')}: {message} (see --help)")
