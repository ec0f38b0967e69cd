"""Python imports this at its start where the folder is on its path: then every network has autograd.

A commit from before gradients were computed by hand can be compared to the bit only with a side that does
as it did.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

_BY_HAND = "learner.ppo.plain.steps"


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        module.__dict__["plain_networks"] = lambda *_: None


class _Finder:
    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The usual one, but for the module that decides."""
        spec = PathFinder.find_spec(name, path, target) if name == _BY_HAND else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(name, spec.origin)
        return spec


sys.meta_path.insert(0, _Finder)
