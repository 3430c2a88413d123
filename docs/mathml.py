"""Formulas as MathML, which browsers draw themselves: no script, no network, no LaTeX."""

from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

__all__ = ["setup"]


def _visit_inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _visit_block(writer: Any, node: nodes.math_block) -> None:
    formula = tex2mathml(node.astext(), as_block=True)
    writer.body.append(f'<div style="margin: 1.2em 0; overflow-x: auto">{formula}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (_visit_inline, None), (_visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
