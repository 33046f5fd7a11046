"""Runs every block of Python on every page, and shows what it prints below it."""

import contextlib
import io
import os
import tempfile
import traceback
import warnings
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

LOG = logging.getLogger(__name__)


def run_blocks(app: Sphinx, doctree: nodes.document) -> None:
    """The blocks of a page share their names; those of the gallery and the reference are run elsewhere."""
    page = app.env.docname
    if page.startswith(("gallery/", "reference/")):
        return
    names: dict[str, object] = {"__name__": page}
    blocks = [block for block in doctree.findall(nodes.literal_block) if block.get("language") == "python"]
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for block in blocks:
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed), warnings.catch_warnings():
                    warnings.simplefilter("error")
                    exec(compile(block.astext(), page, "exec"), names)
                if text := printed.getvalue().rstrip():
                    shown = nodes.literal_block(text, text, language="text", classes=["printed"])
                    block.parent.insert(block.parent.index(block) + 1, shown)
        except Exception:
            LOG.warning("a block of this page fails: %s", traceback.format_exc(limit=-1), location=page)
        finally:
            os.chdir(before)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-read", run_blocks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
