"""What went wrong in a training and did not end it, for status and summary. Pure."""


class RunWarnings:
    """The newest text of each kind, in the order in which the kinds were first seen."""

    def __init__(self) -> None:
        self._by_kind: dict[str, str] = {}

    def add(self, kind: str, text: str) -> None:
        """Say `text`; it replaces an earlier one of the same kind."""
        self._by_kind[kind] = text

    def withdraw(self, kind: str) -> None:
        """What was said of this kind is no longer so."""
        self._by_kind.pop(kind, None)

    @property
    def texts(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(self._by_kind.values())
