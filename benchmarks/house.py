"""The house as it stands, read from the code: rooms, imports between them, and what the house rules count.

    python benchmarks/house.py [FOLDER]        (make house)

FOLDER is a package, src/lmd by default; a room is a package in it, or a module at its top. The order of the rooms is
that of the table in docs/architecture.md, and rooms that it does not name come last. The standard library is enough.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import textwrap
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
BASES = ("Problem", "Family", "Solver", "Mirror")
"""Who derives from one of these is concrete; they themselves are not."""

FACES = ("nn", "optim", "info", "__init__", "cli", "__main__")
"""The modules at the top that see all rooms; the others lie beneath all of them."""

LONG, SHOWN = 60, 10
"""How many lines a function may have, and how many of the longest are shown."""


@dataclass(frozen=True)
class Finding:
    """A place in the code, and what is there."""

    room: str
    place: str
    """The file within the package, and the line."""

    what: str
    size: int = 1


@dataclass(frozen=True)
class Module:
    """A file of the package."""

    path: Path
    file: str
    room: str

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Everything in the file, by lines."""
        return sorted(ast.walk(self.tree), key=lambda node: getattr(node, "lineno", 0))

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def public(self) -> list[str]:
        """Classes and functions at the top of the file whose names have no underscore in front."""
        found = [node.name for node in self.tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
        return [name for name in found if not name.startswith("_")]

    def finding(self, line: int, what: str, size: int = 1) -> Finding:
        return Finding(self.room, f"{self.file}:{line}", what, size)


class House:
    """A package, its rooms in their order, and what can be counted in it."""

    def __init__(self, package: Path, order: Sequence[str]) -> None:
        self.name = package.name
        self.modules = [
            Module(path, str(path.relative_to(package)), _room(path.relative_to(package)))
            for path in sorted(package.rglob("*.py"))
        ]
        there = dict.fromkeys(module.room for module in self.modules)
        top = [module.room for module in self.modules if module.file == f"{module.room}.py"]
        self.beneath = [room for room in top if room not in FACES]
        known = [room for room in order if room in there and room not in FACES]
        faces = [room for room in FACES if room in there]
        others = [room for room in there if room not in {*self.beneath, *known, *faces}]
        self.rooms = [*self.beneath, *known, *others, *faces]

    def of(self, room: str) -> list[Module]:
        return [module for module in self.modules if module.room == room]

    @property
    def lines(self) -> int:
        return sum(module.lines for module in self.modules)

    def shared(self) -> dict[str, list[str]]:
        """Public names that more than one module defines at its top, and these modules."""
        found: dict[str, list[str]] = {}
        for module in self.modules:
            for name in module.public:
                found.setdefault(name, []).append(module.file)
        return {name: files for name, files in sorted(found.items()) if len(files) > 1}

    def imports(self) -> list[Finding]:
        """Every import of another room, `what` being that room."""
        return [
            module.finding(node.lineno, room)
            for module in self.modules
            for node in module.nodes
            for room in sorted(_imported(node, self.name) & set(self.rooms) - {module.room})
        ]

    def upwards(self) -> list[Finding]:
        """Imports of a room that comes later in the order.

        The package's own face is open to all, and what lies beneath the rooms is of one height.
        """
        place = {room: at for at, room in enumerate(self.rooms)} | dict.fromkeys(self.beneath, 0)
        found = [each for each in self.imports() if each.what != "__init__"]
        return [each for each in found if place[each.what] > place[each.room]]

    def concrete(self) -> set[str]:
        """The names of the classes that derive from `BASES`, however far."""
        parents: dict[str, set[str]] = {}
        for node in (node for module in self.modules for node in module.nodes if isinstance(node, ast.ClassDef)):
            parents.setdefault(node.name, set()).update(map(_last_name, node.bases))
        found = set(BASES)
        while more := {name for name, bases in parents.items() if bases & found} - found:
            found |= more
        return found - set(BASES)

    def asked_for_class(self) -> list[Finding]:
        """`isinstance` and `issubclass` on concrete problems, families, solvers and mirrors."""
        concrete = self.concrete()
        return [
            module.finding(node.lineno, ", ".join(asked))
            for module in self.modules
            for node in module.nodes
            if _is_question(node) and (asked := sorted(_names(node.args[1]) & concrete))
        ]

    def narrowing(self) -> list[Finding]:
        """Asserts that are there for a type alone: `is not None`, `isinstance`."""
        return [
            module.finding(node.lineno, ast.unparse(node.test))
            for module in self.modules
            for node in module.nodes
            if isinstance(node, ast.Assert) and any(map(_narrows, ast.walk(node.test)))
        ]

    def ignored(self) -> list[Finding]:
        """Comments that silence the type checker."""
        return [
            module.finding(token.start[0], token.string)
            for module in self.modules
            for token in tokenize.generate_tokens(io.StringIO(module.text).readline)
            if token.type == tokenize.COMMENT and re.match(r"#\s*type:\s*ignore", token.string)
        ]

    def lazy(self) -> list[Finding]:
        """Imports inside functions."""
        found = {
            (module.room, f"{module.file}:{inner.lineno}"): ast.unparse(inner)
            for module in self.modules
            for node in module.nodes
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            for inner in ast.walk(node)
            if isinstance(inner, (ast.Import, ast.ImportFrom))
        }
        return [Finding(room, place, what) for (room, place), what in found.items()]

    def functions(self) -> list[Finding]:
        """Every function with its lines, the longest first."""
        found = [
            module.finding(node.lineno, node.name, (node.end_lineno or node.lineno) - node.lineno + 1)
            for module in self.modules
            for node in module.nodes
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        ]
        return sorted(found, key=lambda each: (-each.size, each.place))


def _room(file: Path) -> str:
    return file.parts[0] if len(file.parts) > 1 else file.stem


def _imported(node: ast.AST, package: str) -> set[str]:
    """The rooms that a statement imports from; `__init__` where it is a name of the package's own."""
    names: list[str] = []
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    elif isinstance(node, ast.Import):
        names = [f"{alias.name}.__init__" for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith(f"{package}.")}


def _is_question(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _last_name(node.func) in ("isinstance", "issubclass") and len(node.args) == 2


def _narrows(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        last = node.comparators[-1]
        return isinstance(node.ops[-1], ast.IsNot) and isinstance(last, ast.Constant) and last.value is None
    return _is_question(node)


def _last_name(node: ast.AST) -> str:
    """`Solver` of `Solver`, `base.Solver` and `Solver[State]`."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _names(node: ast.AST) -> set[str]:
    return {_last_name(each) for each in ast.walk(node)}


def documented_order(text: str) -> list[str]:
    """The rooms of a table whose lines begin with "| `room/` |"."""
    return re.findall(r"^\| `(\w+)/` \|", text, flags=re.MULTILINE)


def report(house: House) -> Iterator[str]:
    """What there is to say, line by line."""
    imports = house.imports()
    yield f"{house.lines} lines of Python in {len(house.modules)} files"
    yield f"\n{'room':14}{'files':>6}{'lines':>7}{'public':>8}  imports from"
    for room in house.rooms:
        modules = house.of(room)
        counts = Counter(each.what for each in imports if each.room == room)
        told = ", ".join(f"{other} {counts[other]}" for other in house.rooms if counts[other])
        lines, names = sum(module.lines for module in modules), sum(len(module.public) for module in modules)
        yield f"{room:14}{len(modules):6}{lines:7}{names:8}  {told}"
    yield from _by_room(house, "imports upwards", house.upwards(), told=True)
    yield f"\npublic names that several modules define: {len(house.shared())}"
    yield from (f"  {name:20}  {', '.join(files)}" for name, files in house.shared().items())
    yield from _by_room(house, "isinstance on concrete classes", house.asked_for_class(), told=True)
    yield from _by_room(house, "asserts that narrow a type", house.narrowing())
    yield from _by_room(house, "type: ignore", house.ignored())
    yield from _by_room(house, "imports inside functions", house.lazy())
    functions = house.functions()
    yield f"\nfunctions over {LONG} lines: {sum(each.size > LONG for each in functions)}; the longest:"
    yield from (f"  {each.size:4}  {each.what}  {each.place}" for each in functions[:SHOWN])


def _by_room(house: House, title: str, found: Sequence[Finding], told: bool = False) -> Iterator[str]:
    yield f"\n{title}: {len(found)}"
    for room in house.rooms:
        here = [each for each in found if each.room == room]
        if here:
            places = ", ".join(f"{each.place} ({each.what})" if told else each.place for each in here)
            label = f"  {room:14}{len(here):4}  "
            yield textwrap.fill(places, 118, initial_indent=label, subsequent_indent=" " * len(label))


def main(arguments: Sequence[str]) -> None:
    package = Path(arguments[0]) if arguments else ROOT / "src" / "lmd"
    order = documented_order((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    print("\n".join(report(House(package, order))))


if __name__ == "__main__":
    main(sys.argv[1:])
