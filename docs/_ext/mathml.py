"""Mathematics as MathML, which browsers set by themselves: no script, no fonts, no network."""

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx


def inline(writer: object, node: nodes.math) -> None:
    writer.body.append(convert(node.astext()))
    raise nodes.SkipNode


def block(writer: object, node: nodes.math_block) -> None:
    for line in node.astext().split("\\\\"):
        if line.strip():
            writer.body.append(f'<p class="formula">{convert(line.strip(), display="block")}</p>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
