"""Public docstrings say the facts: shapes of arrays, errors of ours that are raised, units of numbers."""

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dppo_redis import errors

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("dppo_redis", "workers", "learner", "ops")
ARRAYS = re.compile(r"\b(FloatArray|BoolArray|IntArray|Array|NDArray|ndarray|Tensor)\b")
SHAPE = re.compile(r"\[[A-Za-z.*0-9][\w.,*+ |/-]*\]|\bscalars?\b|\bany shape\b")
OURS = {
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, BaseException)
}
UNITS = re.compile(r"^(timeout|interval|delay|duration|period|deadline|elapsed|waited|size_limit)$")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One source file: its name in messages, its lines and its tree."""

    name: str
    lines: list[str]
    tree: ast.Module

    @classmethod
    def of(cls, text: str, name: str = "planted.py") -> "Module":
        source = textwrap.dedent(text)
        return cls(name, source.splitlines(), ast.parse(source))

    def functions(self) -> dict[str, Function]:
        """Functions and methods by qualified name, without those inside functions."""
        found: dict[str, Function] = {}
        for node in self.tree.body:
            if isinstance(node, Function):
                found[node.name] = node
            elif isinstance(node, ast.ClassDef):
                found |= {f"{node.name}.{m.name}": m for m in node.body if isinstance(m, Function)}
        return found

    def classes(self) -> list[ast.ClassDef]:
        return [node for node in self.tree.body if isinstance(node, ast.ClassDef)]


def product() -> Iterator[Module]:
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            if "bench" not in file.parts:
                yield Module.of(file.read_text(), str(file.relative_to(ROOT)))


def is_public(qualified: str) -> bool:
    return not any(part.startswith("_") for part in qualified.split("."))


def parameters(function: Function) -> list[ast.arg]:
    every = function.args
    return [*every.posonlyargs, *every.args, *every.kwonlyargs]


def annotations(function: Function) -> str:
    every = [argument.annotation for argument in parameters(function)] + [function.returns]
    return " ".join(ast.unparse(one) for one in every if one is not None)


def comment_beside(module: Module, field: ast.AnnAssign) -> str:
    """The field's own lines and the comment lines directly above it."""
    first = field.lineno - 1
    while first > 0 and module.lines[first - 1].strip().startswith("#"):
        first -= 1
    return "\n".join(module.lines[first : field.end_lineno])


def shapeless(module: Module) -> list[str]:
    """Public functions and fields with arrays of which no shape is said."""
    found = [
        f"{module.name}:{name}"
        for name, function in module.functions().items()
        if is_public(name) and ARRAYS.search(annotations(function))
        if not SHAPE.search(ast.get_docstring(function) or "")
    ]
    for owner in filter(lambda one: is_public(one.name), module.classes()):
        for field in owner.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                texts = comment_beside(module, field) + (ast.get_docstring(owner) or "")
                if ARRAYS.search(ast.unparse(field.annotation)) and not SHAPE.search(texts):
                    found.append(f"{module.name}:{owner.name}.{field.target.id}")
    return found


def names_of(expression: ast.expr | None) -> set[str]:
    """Names of the errors that an `except` clause catches, with those that derive from them."""
    if expression is None:
        return set(OURS)
    named = {
        n.attr if isinstance(n, ast.Attribute) else n.id
        for n in ast.walk(expression)
        if isinstance(n, ast.Name | ast.Attribute)
    }
    caught = tuple(getattr(errors, name) for name in named & OURS)
    if named & {"Exception", "BaseException"}:
        return set(OURS)
    return {name for name in OURS if caught and issubclass(getattr(errors, name), caught)}


class Raised(ast.NodeVisitor):
    """Errors of ours that leave a function: raised in its body, or in a private helper of its module."""

    def __init__(self, module: Module, qualified: str, seen: frozenset[str] = frozenset()) -> None:
        self.module, self.qualified, self.seen = module, qualified, seen | {qualified}
        self.found: set[str] = set()
        self.caught: list[set[str]] = []
        for statement in module.functions()[qualified].body:
            self.visit(statement)

    def add(self, names: set[str]) -> None:
        self.found |= names.difference(*self.caught)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """A function inside a function raises when it is called, which may be elsewhere."""

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """As for functions."""

    def visit_Try(self, node: ast.Try) -> None:
        self.caught.append(set().union(*(names_of(handler.type) for handler in node.handlers)))
        for statement in node.body:
            self.visit(statement)
        self.caught.pop()
        outside: list[ast.AST] = [*node.handlers, *node.orelse, *node.finalbody]
        for part in outside:
            self.visit(part)

    def visit_Raise(self, node: ast.Raise) -> None:
        error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        if isinstance(error, ast.Name) and error.id in OURS:
            self.add({error.id})
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = ast.unparse(node.func)
        owner = self.qualified.rpartition(".")[0]
        target = f"{owner}.{called.split('.')[1]}" if re.fullmatch(r"(self|cls)\._\w+", called) else called
        is_private = target.split(".")[-1].startswith("_")
        if is_private and target in self.module.functions() and target not in self.seen:
            self.add(Raised(self.module, target, self.seen).found)
        self.generic_visit(node)


def silent_errors(module: Module) -> list[str]:
    """Public functions that raise an error of ours without naming it under `Raises:`."""
    found = []
    for name, function in module.functions().items():
        if is_public(name):
            section = (ast.get_docstring(function) or "").partition("Raises:")[2]
            missing = sorted(e for e in Raised(module, name).found if not re.search(rf"\b{e}\b", section))
            found += [f"{module.name}:{name} raises {error}" for error in missing]
    return found


def unitless(module: Module) -> list[str]:
    """Public numeric parameters that count something whose unit neither name nor docstring says."""
    return [
        f"{module.name}:{name}({argument.arg})"
        for name, function in module.functions().items()
        if is_public(name.removesuffix(".__init__"))
        for argument in parameters(function)
        if argument.annotation is not None
        and re.match(r"(float|int)\b", ast.unparse(argument.annotation))
        and UNITS.match(argument.arg)
        and not re.search(r"\b(seconds?|bytes|steps|milliseconds)\b", ast.get_docstring(function) or "")
    ]


def test_arrays_have_a_shape_in_words() -> None:
    assert [one for module in product() for one in shapeless(module)] == []


def test_errors_that_leave_a_public_function_are_named_by_it() -> None:
    assert [one for module in product() for one in silent_errors(module)] == []


def test_numbers_that_measure_time_or_size_say_their_unit() -> None:
    assert [one for module in product() for one in unitless(module)] == []


def test_an_array_without_a_shape_is_found() -> None:
    planted = Module.of('''
        def scale(rewards: FloatArray) -> float:
            """Say a factor."""
        def shaped(rewards: FloatArray) -> FloatArray:
            """Scale `rewards` [T, N]."""
        class Batch:
            rewards: FloatArray  # [T, N]
            # [T, N, A], as sampled
            actions: Tensor
            values: Tensor  # the critic's
    ''')
    assert shapeless(planted) == ["planted.py:scale", "planted.py:Batch.values"]


def test_an_error_that_is_not_named_is_found_also_behind_a_private_helper() -> None:
    planted = Module.of('''
        def read(path: str) -> str:
            """Read it."""
            return Reader()._open(path) + _parse(path)
        def named(path: str) -> str:
            """Read it.

            Raises:
                WireError: for bytes that are no message.
            """
            return _parse(path)
        def catches(path: str) -> str:
            """Read it or say none."""
            try:
                return _parse(path)
            except DppoError:
                return ""
        def _parse(path: str) -> str:
            raise WireError("format", path)
        class Store:
            def load(self) -> str:
                """Load it."""
                return self._load()
            def _load(self) -> str:
                raise CheckpointError("damaged")
    ''')
    assert silent_errors(planted) == [
        "planted.py:read raises WireError",
        "planted.py:Store.load raises CheckpointError",
    ]


def test_a_time_without_a_unit_is_found() -> None:
    planted = Module.of('''
        def wait(timeout: float) -> None:
            """Wait."""
        def wait_longer(timeout_s: float, interval: float) -> None:
            """Wait; `interval` is in seconds."""
    ''')
    assert unitless(planted) == ["planted.py:wait(timeout)"]
