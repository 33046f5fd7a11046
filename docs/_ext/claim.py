"""The claim of the start page, from the file that the measurement wrote."""

import json
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

FILE = Path(__file__).parents[1] / "measurements" / "times.json"
SHOWN = "denoising, one image: "
COLUMN = "1e-3"


class Claim(SphinxDirective):
    """Milliseconds to a thousandth, the fastest first."""

    def run(self) -> list[nodes.Node]:
        found = json.loads(FILE.read_text(encoding="utf-8"))
        at = found["columns"].index(COLUMN)
        rows = [(row[0].removeprefix(SHOWN), row[at]) for row in found["rows"] if row[0].startswith(SHOWN)]
        times = sorted(((name, ms) for name, ms in rows if isinstance(ms, float)), key=lambda pair: pair[1])
        items = nodes.bullet_list()
        for name, ms in times[:5]:
            items += nodes.list_item("", nodes.paragraph(text=f"{ms:.3g} ms: {name.replace('`', '')}"))
        return [items]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("claim", Claim)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
