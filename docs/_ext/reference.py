"""Writes the pages of the reference: every public name, with its arguments, its docstring and its methods."""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from sphinx.application import Sphinx

import lmd

ROOMS = (
    "terms", "operators", "problems", "mirrors", "solvers", "guarantees", "reference", "training", "learning",
    "tasks", "zoo", "data", "pictures", "report", "experiments", "nn", "optim", "compat.sklearn",
)  # fmt: skip
PLAIN = re.compile(r"^(?P<indent> *)>>>")


def markdown(text: str | None) -> str:
    """A docstring as Markdown: examples in fences, signs that Markdown would take for its own kept as they are."""
    lines, out, inside = inspect.cleandoc(text or "").splitlines(), [], False
    for line in lines:
        if PLAIN.match(line) and not inside:
            out, inside = [*out, "", "```pycon"], True
        elif inside and not line.strip():
            out, inside = [*out, "```"], False
        plain = inside or line.startswith("    ") or "`" in line
        out.append(
            line if plain else line.replace("*", r"\*").replace("<", r"\<").replace("_", r"\_").replace("|", r"\|")
        )
    return "\n".join([*out, "```"] if inside else out)


def signature(item: object) -> str:
    try:
        found = inspect.signature(item)
    except (TypeError, ValueError):
        return "(...)"
    arguments = [str(each).replace("'", "") for each in found.parameters.values() if each.name != "self"]
    answer = f" -> {str(found.return_annotation).strip(chr(39))}" if found.return_annotation is not found.empty else ""
    line = f"({', '.join(arguments)}){answer}"
    return line if len(line) < 90 else "(\n    " + ",\n    ".join(arguments) + f",\n){answer}"


def members(item: type) -> Iterator[tuple[str, object]]:
    """The public methods and properties that a class has a docstring of its own for."""
    for name, member in vars(item).items():
        function = member.fget if isinstance(member, property) else member
        if not name.startswith("_") and (inspect.isfunction(function)) and function.__doc__:
            yield name, member


def entry(name: str, item: object) -> Iterator[str]:
    yield f"## {name}\n"
    if not callable(item):
        return
    yield f"```text\n{name}{signature(item)}\n```\n"
    yield markdown(item.__doc__) + "\n"
    if inspect.isclass(item):
        for member, what in members(item):
            of = what.fget if isinstance(what, property) else what
            head = member if isinstance(what, property) else f"{member}{signature(of)}"
            yield f"```text\n{head}\n```\n\n{markdown(of.__doc__)}\n"


def public(module: ModuleType) -> list[str]:
    """What a room shows: its `__all__`, or what is defined in it."""
    own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__ and n[0] != "_"]
    return sorted(getattr(module, "__all__", own))


def page(name: str) -> str:
    module = importlib.import_module(f"lmd.{name}" if name else "lmd")
    about = markdown(module.__doc__)
    parts = [f"# {module.__name__}\n", about + "\n"]
    for each in public(module):
        item = getattr(module, each)
        if not inspect.ismodule(item) and each != "__version__":
            parts += entry(each, item)
    return "\n".join(parts)


def write(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "reference"
    folder.mkdir(exist_ok=True)
    names = {"lmd": "", **{room.rpartition(".")[2]: room for room in ROOMS}}
    for title, room in names.items():
        text = page(room)
        place = folder / f"{title}.md"
        if not place.exists() or place.read_text(encoding="utf-8") != text:
            place.write_text(text, encoding="utf-8")
    listed = "\n".join(names)
    head = f"# Reference\n\nEvery public name of `lmd` {lmd.__version__}, by room, from its docstring.\n\n"
    (folder / "index.md").write_text(head + f"```{{toctree}}\n:maxdepth: 2\n\n{listed}\n```\n", encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
