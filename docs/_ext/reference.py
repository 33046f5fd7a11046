"""Writes the pages of the reference: every public name, argument by argument, with its docstring and its methods."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

import lmd
from lmd.cli.program import cli

if TYPE_CHECKING:
    from sphinx.application import Sphinx

OPENED = {"compat": "compat.sklearn", "reproduction": "reproduction.experiments", "testing": None}
"""Rooms of which a room inside is shown instead, or none."""

ROOMS = tuple(
    OPENED.get(name, name) for name in lmd.__all__ if inspect.ismodule(getattr(lmd, name)) and OPENED.get(name, name)
)
UNIMPORTED = {
    "deepinv": ("compat.deepinv",),
    "conformance": tuple(f"testing.{room}" for room in ("terms", "operators", "mirrors", "solvers")),
}
"""Pages of modules that need packages which are not here, from their source alone."""

KEYWORDS = {"train": ("lmd.training", "TrainingSettings")}
"""Functions whose other keyword arguments are the fields of a class."""

CODE = re.compile(r"(`[^`]+`|(?<!\S)\*\w[^*\n]*\*(?=[\s,.;:]|$))")
"""What stays as it is in a line: code, and words that are emphasised."""

ARGUMENT = re.compile(r"^ {4}(\*{0,2}\w+(?:, \w+)*): (.*)$")


def escaped(text: str) -> str:
    """Prose in which signs that Markdown would take for its own are kept as they are."""
    parts = CODE.split(text)
    return "".join(part if place % 2 else re.sub(r"([*<_|])", r"\\\1", part) for place, part in enumerate(parts))


def sections(text: str | None) -> tuple[list[str], dict[str, str], str, list[str]]:
    """Of a docstring: what comes first, the arguments by name, what is returned, and what comes after."""
    first, after, described, returned, block = [], [], {}, "", ""
    kept = first
    for line in inspect.cleandoc(text or "").splitlines():
        if line in ("Args:", "Returns:"):
            block, kept = line, after
        elif block and (not line or line.startswith(" ")):
            if block == "Returns:":
                returned = f"{returned} {line.strip()}".strip()
            elif found := ARGUMENT.match(line):
                names = [name.lstrip("*") for name in found[1].split(", ")]
                described |= dict.fromkeys(names, found[2])
            elif line:
                described |= {name: f"{described[name]} {line.strip()}" for name in names}
        else:
            block = ""
            kept = after if line.startswith(">>>") else kept
            kept.append(line)
    return first, described, returned, after


def prose(lines: list[str]) -> str:
    """Lines of a docstring as Markdown, examples in fences; code that is indented and tables stay as they are."""
    out: list[str] = []
    for block in re.split(r"\n\s*\n", "\n".join(lines).strip("\n")):
        if block.startswith(">>>"):
            out.append(f"```pycon\n{block}\n```")
        else:
            out.append(block if block.startswith(("    ", "| ")) else escaped(block))
    return "\n\n".join(out)


def listed(described: dict[str, str], defaults: dict[str, str]) -> str:
    """A list of names, with their defaults and what is said about them."""
    heads = {name: f"`{name} = {defaults[name]}`" if defaults.get(name) else f"`{name}`" for name in described}
    return "\n".join(
        f"- {heads[name]}: {escaped(what)}" if what else f"- {heads[name]}" for name, what in described.items()
    )


def markdown(text: str | None, described: dict[str, str] | None = None, defaults: dict[str, str] | None = None) -> str:
    """A docstring as Markdown, with a list of its arguments, or of these, and of what is returned."""
    first, own, returned, after = sections(text)
    parts = [prose(first), listed(own if described is None else described, defaults or {})]
    parts += [f"Returns: {escaped(returned)}" if returned else "", prose(after)]
    return "\n\n".join(part for part in parts if part)


@functools.cache
def fields(module: str) -> dict[str, dict[str, str]]:
    """The descriptions of the fields of each class in a module: the strings that stand after them in its source."""
    tree, found = ast.parse(inspect.getsource(importlib.import_module(module))), {}
    for each in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        found[each.name] = own = {}
        for field, text in zip(each.body, each.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                own[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return found


def described(item: Any) -> dict[str, str]:
    """What is said about each argument and field: by a function, or by a class and those it inherits from."""
    found: dict[str, str] = {}
    for each in reversed(inspect.getmro(item)) if inspect.isclass(item) else [item]:
        if each.__module__.split(".")[0] == "lmd":
            found |= fields(each.__module__).get(each.__name__, {}) if inspect.isclass(each) else {}
            found |= sections(each.__doc__)[1]
    return found


def parameters(item: Any) -> list[inspect.Parameter]:
    try:
        return [each for each in inspect.signature(item).parameters.values() if each.name not in ("self", "cls")]
    except (TypeError, ValueError):
        return []


def default(parameter: inspect.Parameter) -> str:
    return "" if parameter.default is parameter.empty or "<" in repr(parameter.default) else repr(parameter.default)


def shown(parameter: inspect.Parameter) -> str:
    kind = getattr(parameter.annotation, "__forward_arg__", parameter.annotation)
    text = str(parameter.replace(annotation=parameter.empty, default=parameter.empty))
    text += "" if kind is parameter.empty else f": {kind if isinstance(kind, str) else inspect.formatannotation(kind)}"
    return text if parameter.default is parameter.empty else f"{text} = {default(parameter) or '...'}"


def signature(item: Any) -> str:
    try:
        answer = inspect.signature(item).return_annotation
    except (TypeError, ValueError):
        return "(...)"
    taken = parameters(item)
    arguments, kinds = [shown(each) for each in taken], [each.kind for each in taken]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        arguments.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    answer = f" -> {str(answer).strip(chr(39))}" if answer not in (inspect.Signature.empty, None, "None") else ""
    line = f"({', '.join(arguments)}){answer}"
    return line if len(line) < 90 else "(\n    " + ",\n    ".join(arguments) + f",\n){answer}"


def members(item: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class has a docstring of its own for, and how each is written."""
    for name, member in vars(item).items():
        got = getattr(member, "fget", getattr(member, "func", None))
        function = got or getattr(member, "__func__", member)
        if not name.startswith("_") and inspect.isfunction(function) and function.__doc__:
            yield name if got else f"{name}{signature(function)}", function


def entry(name: str, item: Any) -> Iterator[str]:
    yield f"## {name}\n"
    if not callable(item):
        yield f"```text\n{item!r}\n```\n"
        return
    known, taken = described(item), {each.name: each for each in parameters(item)}
    defaults = {each.name: default(each) for each in taken.values()}
    yield f"```text\n{name}{signature(item)}\n```\n"
    yield markdown(item.__doc__, {each: known[each] for each in taken if each in known}, defaults) + "\n"
    own = fields(item.__module__).get(name, {}) if inspect.isclass(item) else {}
    if others := {each: what for each, what in own.items() if each not in taken}:
        yield f"Fields:\n\n{listed(others, {})}\n"
    if name in KEYWORDS:
        settings = getattr(importlib.import_module(KEYWORDS[name][0]), KEYWORDS[name][1])
        said = {each.name: default(each) for each in parameters(settings)}
        yield f"The other keyword arguments are the fields of `{'.'.join(KEYWORDS[name])}`:\n"
        yield listed(described(settings), said) + "\n"
    for head, function in members(item) if inspect.isclass(item) else ():
        yield f"```text\n{head}\n```\n\n{markdown(function.__doc__)}\n"


def public(module: ModuleType) -> list[str]:
    """What a room shows: its `__all__`, or what is defined in it."""
    own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__ and n[0] != "_"]
    hidden = (ModuleType, TypeVar, ParamSpec)
    found = sorted(getattr(module, "__all__", own))
    return [name for name in found if name != "__version__" and not isinstance(getattr(module, name), hidden)]


def page(name: str) -> str:
    module = importlib.import_module(f"lmd.{name}" if name else "lmd")
    parts = [f"# {module.__name__}\n", markdown(module.__doc__) + "\n"]
    for each in public(module):
        parts += entry(each, getattr(module, each))
    return "\n".join(parts)


def source_page(title: str, modules: tuple[str, ...]) -> str:
    """A page of modules that are read and not imported: their public classes."""
    parts = [f"# {title}\n"]
    for module in modules:
        tree = ast.parse((Path(lmd.__file__).parent / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
        parts += [*([f"## lmd.{module}\n"] if len(modules) > 1 else []), markdown(ast.get_docstring(tree)) + "\n"]
        for node in (each for each in tree.body if isinstance(each, ast.ClassDef) and each.name[0] != "_"):
            made = [each.args for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
            taken = re.sub(r"^self(, )?", "", ast.unparse(made[0])) if made else ""
            head = f"{'###' if len(modules) > 1 else '##'} {node.name}\n\n```text\n{node.name}({taken})\n```\n"
            parts += [head, markdown(ast.get_docstring(node)) + "\n"]
    return "\n".join(parts)


def commands(command: Any, context: click.Context) -> Iterator[str]:
    """A command of the program, its arguments and options, and the commands below it."""
    yield f"## {context.command_path}\n\n```text\n{context.get_usage().removeprefix('Usage: ')}\n```\n"
    for block in re.split(r"\n\s*\n", inspect.cleandoc(command.help or "")):
        text = block.lstrip("\b\n")
        yield f"```text\n{text}\n```\n" if block.startswith("\b") else f"{escaped(text)}\n"
    options = [each.get_help_record(context) for each in command.params]
    yield listed({each[0]: " ".join(each[1].split()) for each in options if each}, {}) + "\n"
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        below = command.get_command(context, name)
        yield from commands(below, click.Context(below, parent=context, info_name=name))


def pages() -> dict[str, str]:
    """The text of every page, by its name."""
    rooms = {"lmd": "", **{room.rpartition(".")[2]: room for room in ROOMS}}
    found = {title: page(room) for title, room in rooms.items()}
    found |= {title: source_page(title, modules) for title, modules in UNIMPORTED.items()}
    program = commands(cli, click.Context(cli, info_name="lmd"))
    return {**found, "command-line": "\n".join(["# The command line\n", *program])}


def write(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "reference"
    folder.mkdir(exist_ok=True)
    made = pages()
    for title, text in made.items():
        place = folder / f"{title}.md"
        if not place.exists() or place.read_text(encoding="utf-8") != text:
            place.write_text(text, encoding="utf-8")
    head = f"# Reference\n\nEvery public name of `lmd` {lmd.__version__}, by room, from its docstring.\n\n"
    toctree = "```{toctree}\n:maxdepth: 2\n\n" + "\n".join(made) + "\n```\n"
    (folder / "index.md").write_text(head + toctree, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
