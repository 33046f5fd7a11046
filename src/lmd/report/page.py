"""One self-contained HTML page of everything that experiments wrote under a folder."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmd.errors import FileError
from lmd.files import inside, writable_folder, write_text
from lmd.report.metrics import read_metrics
from lmd.report.tables import Table

PAGE = "index.html"
_PNG = b"\x89PNG\r\n\x1a\n"

TablesOf = Callable[[dict[str, Any]], list[Table]]
"""From a metrics.json to its tables; `lmd.experiments.tables_of` asks the experiment that wrote it."""


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


def write_page(folder: str | Path, tables_of: TablesOf, title: str = "Learned mirror descent: results") -> Path:
    """Write FOLDER/index.html: tables, figures, settings and versions of each experiment, all inside the one file."""
    import jinja2

    experiments = [_section(path, tables_of) for path in find_metrics(folder)]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string((Path(__file__).parent / "page.html").read_text(encoding="utf-8"))
    page = writable_folder("folder", folder) / PAGE
    write_text(page, template.render(title=title, experiments=experiments))
    return page


def _section(path: Path, tables_of: TablesOf) -> dict[str, Any]:
    metrics = read_metrics(path)
    facts = {**metrics["facts"], **metrics["versions"], "rows": f"{len(metrics['rows'])} in {path.name}"}
    return {
        "id": metrics["experiment"],
        "title": metrics["title"],
        "paper": metrics["paper"],
        "preset": metrics["preset"],
        "seed": metrics["seed"],
        "seconds": metrics["seconds"],
        "tables": tables_of(metrics),
        "figures": [_inline(path.parent, figure) for figure in metrics["figures"]],
        "facts": list(facts.items()),
    }


def _inline(folder: Path, figure: dict[str, str]) -> dict[str, str]:
    """A figure of the folder for the page; a file that lies elsewhere, or is no PNG, is refused."""
    file = inside("figure", folder, folder / figure["file"])
    if not file.is_file():
        raise FileError("figure", f"no file {file}", "the figures that metrics.json names")
    content = file.read_bytes()
    if not content.startswith(_PNG):
        raise FileError("figure", f"{file}, not a PNG", "the figures that `lmd reproduce` wrote")
    return {"caption": figure["caption"], "data": base64.b64encode(content).decode("ascii")}
