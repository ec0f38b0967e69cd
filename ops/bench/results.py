"""What the studies keep: a JSON line for each run. An interrupted study goes on where it was."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar


class Result(Protocol):
    """What came of one run."""

    @property
    def key(self) -> Hashable:
        """What makes two runs the same experiment."""
        ...


K = TypeVar("K", bound=Hashable)
R = TypeVar("R", bound=Result)


@dataclass(frozen=True)
class Results(Generic[R]):
    """A file of results."""

    file: Path
    encode: Callable[[R], str]
    decode: Callable[[str], R]

    def read(self) -> list[R]:
        """All of them, in the order of their lines; none where there is no file."""
        if not self.file.exists():
            return []
        return [self.decode(line) for line in self.file.read_text(encoding="utf-8").splitlines() if line]

    def append(self, result: R) -> None:
        """Keep one more."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(self.encode(result) + "\n")

    def missing(self, plan: Iterable[K]) -> list[K]:
        """What of the plan has no result yet."""
        known = {result.key for result in self.read()}
        return [key for key in plan if key not in known]


def play_missing(plan: Iterable[K], results: Results[R], play: Callable[[K], R | None]) -> Iterator[R]:
    """Play what has no result yet, one after another, until `play` is stopped and gives None.

    Each result is kept before it is handed on. Several processes may play parts of one plan.
    """
    for key in plan:
        if results.missing([key]):
            result = play(key)
            if result is None:
                return
            results.append(result)
            yield result
