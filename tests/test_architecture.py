"""The rooms: data flows one way, and the documentation lists what there is."""

import ast
import subprocess
import sys
from pathlib import Path

import lmd

PACKAGE = Path(lmd.__file__).parent
ROOMS = ["kernels", "problems", "mirrors", "solvers", "guarantees", "training", "data", "zoo", "report", "experiments"]
BENEATH = ["errors", "checks", "config", "files"]


def imported_rooms(file: Path) -> set[str]:
    """The second part of every `lmd.X` that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("lmd.")}
    return found


def test_a_module_imports_only_from_the_rooms_above_it() -> None:
    wrong = []
    for place, room in enumerate(ROOMS):
        for file in (PACKAGE / room).rglob("*.py"):
            below = imported_rooms(file) & set(ROOMS[place + 1 :])
            wrong += [f"{file.relative_to(PACKAGE)} imports {name}" for name in sorted(below)]
    for name in BENEATH:
        wrong += [f"{name}.py imports {room}" for room in imported_rooms(PACKAGE / f"{name}.py") & set(ROOMS)]
    assert wrong == []


def test_every_room_is_in_the_list_and_in_the_documentation() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms <= set(ROOMS)
    text = (PACKAGE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert [room for room in rooms if f"`{room}/`" not in text] == []


def test_import_lmd_loads_neither_torch_nor_matplotlib() -> None:
    code = "import sys, lmd; print([m for m in ('torch', 'numpy', 'matplotlib', 'rich', 'click') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_everything_that_is_exported_exists() -> None:
    assert [name for name in lmd.__all__ if not hasattr(lmd, name)] == []
    assert set(lmd.__all__) <= set(dir(lmd))
    assert not hasattr(lmd, "no_such_name")
