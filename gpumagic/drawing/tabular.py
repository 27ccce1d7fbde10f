"""The skeleton that table, grid, bars and timeline share: real table markup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding

from gpumagic.drawing.html import Html, element, lines, words
from gpumagic.drawing.ink import ink
from gpumagic.drawing.palette import RULE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import ConsoleOptions, RenderableType
    from rich.text import Text

INDENT = 2

# JupyterLab centres tables and aligns every cell to the right by its own style
# sheet, which only a style on the element itself can undo.
_TABLE = "border-collapse:collapse;margin:0 0 .9em 0;font-size:{size}%"
_CAPTION = "text-align:left;caption-side:top;font-weight:600;padding:.2em .45em"
_LEFT = "text-align:left"


def table_html(
    caption: str, rows: Iterable[Html], *, head: Html | None = None, size: int = 100
) -> Html:
    """A table as wide as its content, with what it is about as its caption.

    Args:
        caption: What it is about.

        rows: Each a row of cells.

        head: The row of headings, if there is one.

        size: Of its letters, in percent of those around it.
    """
    return element(
        "table",
        Html("\n"),
        lines(
            (
                _caption_html(caption),
                element("thead", head) if head else "",
                element("tbody", Html("\n"), lines(rows), Html("\n")),
            )
        ),
        Html("\n"),
        cellpadding=5,
        style=_TABLE.format(size=size),
    )


def row_html(first: Html, *cells: Html) -> Html:
    """A row; its first cell names it, which is what a screen reader says."""
    style = f"{_LEFT};font-weight:normal"
    return element("tr", element("th", first, scope="row", style=style), *cells)


def head_html(names: Iterable[tuple[Html, bool]]) -> Html:
    """The row of headings, each with whether its column is aligned to the right."""
    rule = f"border-bottom:1px solid {RULE}"
    return element(
        "tr",
        *(
            element("th", name, scope="col", style=_side(right=right))
            for name, right in names
        ),
        style=rule,
    )


def cell_of(content: Html, *, right: bool = False) -> Html:
    """A plain cell. `align` still works where styles are stripped."""
    if right:
        return element("td", content, align="right")
    return element("td", content, style=_LEFT)


def wide_row_html(text: str, columns: int) -> Html:
    """A row that is one remark, across all columns."""
    return element("tr", element("td", words(text), colspan=columns, style=_LEFT))


def caption_ink(caption: str, options: ConsoleOptions) -> Iterable[Text]:
    """The caption as a line of text, if there is one."""
    return [ink(caption, options, "bold")] if caption else []


def indented(renderable: RenderableType) -> Padding:
    """What stands under its caption."""
    return Padding.indent(renderable, INDENT)


def _caption_html(caption: str) -> str:
    return element("caption", words(caption), style=_CAPTION) if caption else ""


def _side(*, right: bool) -> str:
    return "text-align:right" if right else _LEFT
