"""The rooms: data flows one way, and the documentation lists what there is."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import lmd

PACKAGE = Path(lmd.__file__).parent
ROOMS = [
    "core",
    "kernels",
    "terms",
    "operators",
    "problems",
    "mirrors",
    "solvers",
    "guarantees",
    "tv",
    "training",
    "zoo",
    "imaging",
    "compat",
    "testing",
    "cli",
    "reproduction",
]
BENEATH = ["errors"]


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
    assert re.findall(r"^\| `(\w+)/` \|", text, flags=re.MULTILINE) == [room for room in ROOMS if room in rooms]


def test_import_lmd_loads_neither_torch_nor_matplotlib() -> None:
    code = "import sys, lmd; print([m for m in ('torch', 'numpy', 'matplotlib', 'rich', 'click') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_everything_that_is_exported_exists() -> None:
    assert [name for name in lmd.__all__ if not hasattr(lmd, name)] == []
    assert set(lmd.__all__) <= set(dir(lmd))
    assert not hasattr(lmd, "no_such_name")


FLOATS = {"as_tensor", "empty", "eye", "full", "linspace", "logspace", "ones", "rand", "randn", "tensor", "zeros"}
"""What makes a tensor of torch's default dtype, where it is not told another."""

ALL = FLOATS | {"arange", "randint", "randperm"}
"""What makes a tensor on torch's default device, where it is not told another."""

BEGINS = "parameters begin as those of any module do, in the default dtype and place; `.to` moves them"
NUMBER = "a number `()`, which takes the dtype of what it multiplies"
NUMPY = "numpy says the dtype"
DRAWN = "drawn by a generator of the CPU, and copied to where the weights are"
DEFAULT_DTYPE = {
    "__init__": BEGINS,
    "random": BEGINS,
    "_quadratic": BEGINS,
    "_one_layer": BEGINS,
    "strong_convexity": NUMBER,
    "smoothness": NUMBER,
    "stacked": NUMPY,
}
"""Functions that may make a tensor of the default dtype, and why."""

DEFAULT_DEVICE = {
    "__init__": BEGINS,
    "random": BEGINS,
    "published": DRAWN,
    "shifted": DRAWN,
    "strong_convexity": NUMBER,
    "smoothness": NUMBER,
}
"""Functions of the rooms for every device that may make a tensor on the default one, and why."""


def calls_of_torch(tree: ast.AST, within: str = "") -> list[tuple[str, ast.Call]]:
    """Every call of a function of torch's, with the name of the function or method that it stands in."""
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("torch."):
            found.append((within, node))
        named = isinstance(node, ast.FunctionDef) and not within
        found += calls_of_torch(node, node.name if named else within)
    return found


def made_without(option: str, makers: set[str], rooms: list[str]) -> dict[str, set[str]]:
    """The functions in which a tensor is made without this option, and where they are."""
    found: dict[str, set[str]] = {}
    for file in (file for room in rooms for file in (PACKAGE / room).rglob("*.py")):
        for function, call in calls_of_torch(ast.parse(file.read_text(encoding="utf-8"))):
            options = {keyword.arg for keyword in call.keywords}
            if ast.unparse(call.func).removeprefix("torch.") in makers and not {option, None} & options:
                found.setdefault(function, set()).add(f"{file.relative_to(PACKAGE)}:{call.lineno}")
    return found


def test_no_tensor_takes_its_dtype_from_a_global_default() -> None:
    found = made_without("dtype", FLOATS, [room for room in ROOMS if room != "testing"])
    assert {place: found[place] for place in set(found) - set(DEFAULT_DTYPE)} == {}
    assert set(DEFAULT_DTYPE) - set(found) == set(), "exceptions that nothing needs"


def test_no_tensor_takes_its_device_from_a_global_default() -> None:
    found = made_without("device", ALL, [*ROOMS[: ROOMS.index("zoo")], "imaging"])
    assert {place: found[place] for place in set(found) - set(DEFAULT_DEVICE)} == {}
    assert set(DEFAULT_DEVICE) - set(found) == set(), "exceptions that nothing needs"


def test_a_tensor_without_a_dtype_would_be_found() -> None:
    source = "def f(x):\n    g = lambda: torch.zeros(3)\n    return torch.ones(2, dtype=x.dtype)"
    found = calls_of_torch(ast.parse(source))
    assert sorted((name, ast.unparse(call.func)) for name, call in found) == [("f", "torch.ones"), ("f", "torch.zeros")]
