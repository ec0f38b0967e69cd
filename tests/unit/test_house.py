"""Where things live: the size of folders, files and classes, no cycles, and the names that documents give."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("dppo_redis", "workers", "learner", "ops")
MOST_MODULES = {"dppo_redis/store": 16}
USUALLY_MOST_MODULES = 14
MOST_LINES = 300
MOST_ATTRIBUTES = 15
_NAMED = re.compile(r"`((?:dppo_redis|workers|learner|ops)/[\w/]+\.py)(?::([\w.]+))?`")


def sources() -> list[Path]:
    return sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))


def product() -> list[Path]:
    """All but the benchmarks."""
    return [file for file in sources() if "bench" not in file.parts]


def shown(file: Path) -> str:
    return str(file.relative_to(ROOT))


def test_no_folder_holds_more_modules_than_a_reader_can_keep_in_mind() -> None:
    counts: dict[str, int] = {}
    for file in product():
        if file.name != "__init__.py":
            counts[shown(file.parent)] = counts.get(shown(file.parent), 0) + 1
    limits = {folder: MOST_MODULES.get(folder, USUALLY_MOST_MODULES) for folder in counts}
    assert {f: n for f, n in counts.items() if n > limits[f] and f != "ops/commands"} == {}


def test_no_file_is_longer_than_three_hundred_lines() -> None:
    lengths = {shown(file): len(file.read_text().splitlines()) for file in sources()}
    assert {file: lines for file, lines in lengths.items() if lines > MOST_LINES} == {}


def attributes_of(owner: ast.ClassDef) -> set[str]:
    """Names that a class with behaviour keeps in its instances; nothing for frozen values."""
    decorators = [ast.unparse(one) for one in owner.decorator_list]
    if any("frozen=True" in one for one in decorators):
        return set()
    stored = {
        node.attr
        for node in ast.walk(owner)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    declared = {
        node.target.id
        for node in owner.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return stored | (declared if any("dataclass" in one for one in decorators) else set())


def test_no_class_with_behaviour_keeps_more_than_fifteen_attributes() -> None:
    classes = [
        (shown(file), node)
        for file in product()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    counts = {f"{file}:{node.name}": len(attributes_of(node)) for file, node in classes}
    assert len(counts) > 100
    assert {name: n for name, n in counts.items() if n > MOST_ATTRIBUTES} == {}


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports_of(file: Path, modules: set[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in modules else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def cycle_in(arrows: dict[str, set[str]]) -> list[str]:
    """Nodes left once all without an arrow to the rest are taken away, again and again."""
    left = {node: set(targets) for node, targets in arrows.items()}
    while ends := {node for node, targets in left.items() if not targets & left.keys()}:
        left = {node: targets for node, targets in left.items() if node not in ends}
    return sorted(left)


def test_a_cycle_is_found_where_there_is_one() -> None:
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": set()}) == []


def room_of(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[:2]) if len(parts) > 2 else module


@pytest.mark.parametrize("unit", [lambda module: module, room_of], ids=["modules", "rooms"])
def test_neither_modules_nor_rooms_import_each_other_in_a_circle(unit: type[str]) -> None:
    modules = {module_of(file) for file in sources()}
    arrows: dict[str, set[str]] = {}
    for file in sources():
        source = module_of(file)
        for target in imports_of(file, modules):
            if target in modules and unit(source) != unit(target):
                arrows.setdefault(unit(source), set()).add(unit(target))
                arrows.setdefault(unit(target), set())
    assert len(arrows) > 20
    assert cycle_in(arrows) == []


def test_every_folder_says_what_lives_there_and_what_must_not() -> None:
    silent = [
        shown(folder)
        for package in PACKAGES
        for folder in [ROOT / package, *(ROOT / package).rglob("*")]
        if folder.is_dir()
        and list(folder.glob("*.py"))
        and not ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    ]
    assert silent == []


def test_environments_are_made_in_one_file_only() -> None:
    found = {shown(file) for file in sources() if re.search(r"\bgymnasium\.make(_vec)?\(", file.read_text())}
    assert found == {"dppo_redis/environments/make.py"}


def named_in(document: str) -> list[tuple[str, str]]:
    return sorted(set(_NAMED.findall((ROOT / document).read_text())))


def defined_in(file: Path) -> set[str]:
    """Functions, classes and methods as `Class.method`."""
    names = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
    return names


def test_the_files_and_functions_that_documents_name_exist() -> None:
    documents = ("ARCHITECTURE.md", "README.md", "ops/README.md", "CONTRIBUTING.md")
    named = [(doc, file, name) for doc in documents for file, name in named_in(doc)]
    assert len([name for _, _, name in named if name]) > 30
    missing = [
        (doc, file, name)
        for doc, file, name in named
        if not (ROOT / file).exists() or (name and name not in defined_in(ROOT / file))
    ]
    assert missing == []


def test_each_walk_takes_at_most_twenty_five_lines() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    section = text.split("## Two walks")[1].split("\n## ")[0]
    walks = re.split(r"\n\*\*A [\w ]+\*\*\n", section)[1:]
    assert len(walks) == 2
    assert [len(walk.strip().splitlines()) <= 25 for walk in walks] == [True, True]


@pytest.mark.parametrize(
    ("module", "name"), [("dppo_redis.exports", "load_export"), ("dppo_redis.playing", "Player")]
)
def test_public_import_paths_still_work(module: str, name: str) -> None:
    assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.parametrize(
    "program",
    ["ops", "workers", "learner", "workers.evaluate", "ops.bench", "ops.bench.scores", "ops.bench.staleness"],
)
def test_programs_are_started_by_the_same_module_names(program: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", program, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (answer.returncode, "usage" in answer.stdout) == (0, True), answer.stderr
