"""One self-contained HTML page of everything that experiments wrote under a folder."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lmd.cli.common import Table
from lmd.core.extras import require
from lmd.core.files import inside, read_json, writable_folder, write_text
from lmd.errors import FileError
from lmd.reproduction.tables import CORE

MAX_INTEGER = 2**53  # whole numbers up to this one are exact in double precision


def read_metrics(path: Path) -> dict[str, Any]:
    """Return the contents of a metrics.json, with all keys checked."""
    given = read_json(path)
    if not isinstance(given, dict):
        raise _refused(path, "which is no object")
    metrics = {"title": given.get("experiment"), "paper": "", "seconds": 0, "facts": {}, "figures": [], **given}
    if missing := [key for key in _ENTRIES if key not in metrics]:
        raise _refused(path, f"without {', '.join(missing)}")
    for key, (holds, accepted) in _ENTRIES.items():
        if not holds(metrics[key]):
            raise _refused(path, f"whose {key} is not {accepted}")
    return metrics


def _refused(path: Path, reason: str) -> FileError:
    return FileError("file", f"{path}, {reason}", "a metrics.json that `lmd reproduce` or `lmd bench` wrote")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_number(value: object) -> bool:
    """Return whether `value` is a finite number, and exact in double precision if it is an integer."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) if isinstance(value, float) else abs(value) <= MAX_INTEGER


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (str, bool)) or _is_number(value)


def _is_fact(value: object) -> bool:
    return _is_plain(value) or (isinstance(value, list) and all(map(_is_plain, value)))


def _is_figure(value: object) -> bool:
    """Return whether `value` has a file and a caption; `frames` names the pictures stacked in the file, if several."""
    if not isinstance(value, dict) or not all(_is_text(value.get(key)) for key in ("file", "caption")):
        return False
    frames = value.get("frames", [])
    return isinstance(frames, list) and len(frames) != 1 and all(map(_is_text, frames))


def _is_row(value: object) -> bool:
    if not isinstance(value, dict) or not all(key in value for key in CORE) or not all(map(_is_plain, value.values())):
        return False
    iteration, number = value["iteration"], value["value"]
    placed = _is_text(iteration) or (isinstance(iteration, int) and not isinstance(iteration, bool) and iteration >= 0)
    named = _is_text(value["method"]) and _is_text(value["metric"])
    return placed and named and (number is None or _is_number(number))


def _list_of(holds: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(map(holds, value))


def _object_of(holds: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, dict) and all(map(holds, value.values()))


# a check of each entry, and the accepted values in words
_ENTRIES: dict[str, tuple[Callable[[object], bool], str]] = {
    "experiment": (_is_text, "text"),
    "title": (_is_text, "text"),
    "paper": (_is_text, "text"),
    "preset": (_is_text, "text"),
    "seed": (_is_number, "a number"),
    "seconds": (_is_number, "a number"),
    "versions": (_object_of(_is_plain), "an object of plain values"),
    "facts": (_object_of(_is_fact), "an object of plain values and lists of them"),
    "figures": (
        _list_of(_is_figure),
        "a list of a file and a caption each, and two or more frames where it has any",
    ),
    "rows": (_list_of(_is_row), f"a list of plain objects with {', '.join(CORE)}"),
}
PAGE = "index.html"
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Reading:
    """The contents of a metrics.json, prepared for the page."""

    tables: list[Table]
    headline: str = ""  # one sentence with numbers in it
    command: str = ""  # the command that wrote the metrics.json
    place: int = 0  # sections are sorted by it


Read = Callable[[dict[str, Any]], Reading]  # prepares a metrics.json for the page, such as `experiments.read`


def find_metrics(folder: str | Path) -> list[Path]:
    """Return the sorted paths of all metrics.json under a folder; raise a FileError if one leads out of the folder."""
    root = Path(folder)
    if not root.is_dir():
        raise FileError("folder", f"no folder {root}", "a folder that `lmd reproduce` wrote to")
    found = sorted(path for path in root.rglob("metrics.json") if not path.parent.name.startswith("."))
    if not found:
        raise FileError("folder", f"{root}, which has no metrics.json in it", "a folder that `lmd reproduce` wrote to")
    for path in found:
        inside("file", root, path)
    return found


def write_page(
    folder: str | Path,
    read: Read,
    title: str = "Learned mirror descent: results",
    skipped: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """Write FOLDER/index.html: headlines, figures, tables, settings and versions, all inside the one file."""
    require("jinja2")
    import jinja2

    sections = [_section(path, read) for path in find_metrics(folder)]
    sections.sort(key=lambda section: section["place"])
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string((Path(__file__).parent / "page.html").read_text(encoding="utf-8"))
    page = writable_folder("folder", folder) / PAGE
    write_text(page, template.render(title=title, experiments=sections, skipped=skipped))
    return page


def _section(path: Path, read: Read) -> dict[str, Any]:
    metrics = read_metrics(path)
    reading = read(metrics)
    facts = {**metrics["facts"], **metrics["versions"], "rows": f"{len(metrics['rows'])} in {path.name}"}
    return {
        **{key: metrics[key] for key in ("title", "paper", "preset", "seed", "seconds")},
        "id": metrics["experiment"],
        "headline": reading.headline or metrics["title"],
        "command": reading.command,
        "place": reading.place,
        "tables": reading.tables,
        "figures": [_inline(path.parent, figure) for figure in metrics["figures"]],
        "facts": list(facts.items()),
    }


def _inline(folder: Path, figure: dict[str, Any]) -> dict[str, Any]:
    """Return a figure to embed in the page; raise a FileError if its file is outside the folder or not a PNG."""
    file = inside("figure", folder, folder / figure["file"])
    if not file.is_file():
        raise FileError("figure", f"no file {file}", "the figures that metrics.json names")
    content = file.read_bytes()
    if not content.startswith(_PNG):
        raise FileError("figure", f"{file}, not a PNG", "the figures that `lmd reproduce` wrote")
    width, height = (int.from_bytes(content[place : place + 4], "big") for place in (16, 20))
    return {
        "caption": figure["caption"],
        "data": base64.b64encode(content).decode("ascii"),
        "frames": figure.get("frames", []),
        "width": width,
        "height": height,
    }
