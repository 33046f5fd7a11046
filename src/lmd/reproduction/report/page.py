"""One self-contained HTML page of everything that experiments wrote under a folder."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lmd.cli.common import Table
from lmd.core.extras import require
from lmd.core.files import inside, writable_folder, write_text
from lmd.errors import FileError
from lmd.reproduction.report.metrics import read_metrics

PAGE = "index.html"
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Reading:
    """What a metrics.json says to a person."""

    tables: list[Table]
    headline: str = ""
    """One sentence with numbers in it."""

    command: str = ""
    """What made it."""

    place: int = 0
    """Sections are in the order of their places."""


Read = Callable[[dict[str, Any]], Reading]
"""From a metrics.json to what it says; `lmd.reproduction.experiments.read` asks the experiment that wrote it."""


def find_metrics(folder: str | Path) -> list[Path]:
    """Every metrics.json under a folder, in the order of their paths; one that leads out of the folder is refused."""
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
    """Write FOLDER/index.html: headlines, figures, tables, settings and versions, all inside the one file.

    Args:
        folder: Every metrics.json under it becomes a section.
        read: From a metrics.json to what it says.
        title: Of the page.
        skipped: The names of experiments that failed, and why; the page begins with them.
    """
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
    """A figure of the folder for the page; a file that lies elsewhere, or is no PNG, is refused."""
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
