"""Count what the house rules limit: lines, files, exported names, imports upwards, long functions.

    python benchmarks/house.py [--limits] [FOLDER]        (make house)

FOLDER is a package, src/lmd by default; a room is a package in it, or a module at its top. The order of the rooms is
that of the table in docs/architecture.md, and rooms that it does not name come last. `--limits` prints only the table
of limits. The exit code is 1 if a limit is exceeded. Only the standard library is needed.

- Lines are physical lines, comments and blank lines included; files are those of Python.
- Exported names are the entries of every `__all__` in the package, `__version__` excepted; a name that two rooms
  export counts twice.
- A part's name is the class name of a term or operator, or one of `SHORT_NAMES`. It counts as compared where it stands
  in a comparison or a `case`, or together with another one in a tuple or set that something is looked up in.
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

MAX_FUNCTION_LINES = 60
LONGEST_SHOWN = 10

TOP_FLOOR = "reproduction"
ENGINE = "tv"
"""The room that may know parts by their names."""

PART_ROOMS = ("terms", "operators")
SHORT_NAMES = frozenset({"squares", "l1", "lengths", "differences"})
NAME_ATTRIBUTES = frozenset({"parts", "name", "__name__"})
NAME_PREFIX = re.compile(r"^(?:boxed |kept |masked )+")


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


@dataclass(frozen=True)
class Limit:
    """A count, the most that it may be, and the places it comes from, if they are few."""

    what: str
    count: int
    most: int
    places: Sequence[Finding] = ()

    def __str__(self) -> str:
        over = f"  {self.count - self.most} over" if self.count > self.most else ""
        return f"  {self.what:42}{self.count:7} of at most {self.most:6}{over}"


class House:
    """A package, its rooms in their order, and what can be counted in it."""

    def __init__(self, package: Path, order: Sequence[str]) -> None:
        self.package, self.name = package, package.name
        self.sources = [path for ending in ("c", "h") for path in sorted(package.rglob(f"*.{ending}"))]
        self.modules = [
            Module(path, str(path.relative_to(package)), _room(path.relative_to(package)))
            for path in sorted(package.rglob("*.py"))
        ]
        there = dict.fromkeys(module.room for module in self.modules)
        top = [module.room for module in self.modules if module.file == f"{module.room}.py"]
        self.beneath = [room for room in top if room not in FACES]
        known = [room for room in order if room in there and not (room in FACES and room in top)]
        faces = [room for room in FACES if room in there and room not in known]
        others = [room for room in there if room not in {*self.beneath, *known, *faces}]
        self.rooms = [*self.beneath, *known, *others, *faces]

    def of(self, room: str) -> list[Module]:
        return [module for module in self.modules if module.room == room]

    @property
    def lines(self) -> int:
        return sum(module.lines for module in self.modules)

    @property
    def lines_of_c(self) -> int:
        return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in self.sources)

    def exported(self) -> list[str]:
        """The entries of every `__all__`."""
        lists = (
            node.value.elts
            for module in self.modules
            for node in module.tree.body
            if isinstance(node, ast.Assign) and "__all__" in _names(node.targets[0])
            if isinstance(node.value, (ast.List, ast.Tuple))
        )
        return [
            str(ast.literal_eval(name)) for names in lists for name in names if ast.unparse(name) != "'__version__'"
        ]

    def part_names(self) -> set[str]:
        """The names of the classes of terms and operators, and their short names."""
        return SHORT_NAMES | {
            node.name
            for room in PART_ROOMS
            for module in self.of(room)
            for node in module.tree.body
            if isinstance(node, ast.ClassDef)
        }

    def compared_parts(self) -> list[Finding]:
        """Strings that are names of parts and are compared outside the engine."""
        parts = self.part_names()
        return [
            module.finding(node.lineno, ", ".join(names))
            for module in self.modules
            if module.room != ENGINE
            for node in module.nodes
            if (names := _compared(node, parts))
        ]

    def limits(self) -> list[Limit]:
        """What may not be exceeded."""
        top = sum(module.lines for module in self.of(TOP_FLOOR))
        long = [each for each in self.functions() if each.size > MAX_FUNCTION_LINES]
        upwards, compared = self.upwards(), self.compared_parts()
        return [
            Limit("lines of Python in the library", self.lines - top, 24_000),
            Limit(f"lines of Python in {TOP_FLOOR}/", top, 8_000),
            Limit("lines of C", self.lines_of_c, 3_800),
            Limit("files of Python", len(self.modules), 200),
            Limit("exported names", len(self.exported()), 170),
            Limit("imports upwards", len(upwards), 0, upwards),
            Limit(f"functions over {MAX_FUNCTION_LINES} lines", len(long), 0, long),
            Limit(f"names of parts compared outside {ENGINE}/", len(compared), 0, compared),
        ]

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


def _compared(node: ast.AST, parts: set[str]) -> list[str]:
    """The names of parts that a node compares, or holds for a look-up."""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        asked = {each.attr for side in sides for each in ast.walk(side) if isinstance(each, ast.Attribute)}
        found = [word for side in sides for word in _strings(side) if NAME_PREFIX.sub("", word) in parts]
        return [word for word in found if asked & NAME_ATTRIBUTES or word not in SHORT_NAMES]
    if isinstance(node, ast.MatchValue):
        return [word for word in _strings(node.value) if NAME_PREFIX.sub("", word) in parts]
    if isinstance(node, (ast.Tuple, ast.Set)):
        words = [each.value for each in node.elts if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        found = [word for word in words if NAME_PREFIX.sub("", word) in parts]
        return found if len(found) > 1 else []
    return []


def _strings(node: ast.AST) -> list[str]:
    return [each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)]


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
    yield f"\npublic names that several modules define: {len(house.shared())}"
    yield from (f"  {name:20}  {', '.join(files)}" for name, files in house.shared().items())
    yield from _by_room(house, "isinstance on concrete classes", house.asked_for_class(), told=True)
    yield from _by_room(house, "asserts that narrow a type", house.narrowing())
    yield from _by_room(house, "type: ignore", house.ignored())
    yield from _by_room(house, "imports inside functions", house.lazy())
    functions = house.functions()
    yield "\nlongest functions:"
    yield from (f"  {each.size:4}  {each.what}  {each.place}" for each in functions[:LONGEST_SHOWN])


def limits_report(house: House) -> Iterator[str]:
    """The table of limits, and the places where one that allows few is exceeded."""
    yield "limits:"
    for limit in house.limits():
        yield str(limit)
        yield from (f"      {each.place} ({each.what})" for each in limit.places)


def _by_room(house: House, title: str, found: Sequence[Finding], told: bool = False) -> Iterator[str]:
    yield f"\n{title}: {len(found)}"
    for room in house.rooms:
        here = [each for each in found if each.room == room]
        if here:
            places = ", ".join(f"{each.place} ({each.what})" if told else each.place for each in here)
            label = f"  {room:14}{len(here):4}  "
            yield textwrap.fill(places, 118, initial_indent=label, subsequent_indent=" " * len(label))


def main(arguments: Sequence[str]) -> int:
    folders = [each for each in arguments if each != "--limits"]
    package = Path(folders[0]) if folders else ROOT / "src" / "lmd"
    house = House(package, documented_order((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")))
    if "--limits" not in arguments:
        print("\n".join(report(house)), end="\n\n")
    print("\n".join(limits_report(house)))
    return int(any(limit.count > limit.most for limit in house.limits()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
