"""Rows of many pieces, such as the blocks of memory, drawn to one scale."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from gpumagic.drawing import svg
from gpumagic.drawing.html import (
    INSET,
    WIDEST_EM,
    Html,
    element,
    label,
    lines,
    unbroken,
    words,
)
from gpumagic.drawing.ink import GAP, glyphs_for, ink, widest
from gpumagic.drawing.lanes import hovers_html, legend_html, legend_ink
from gpumagic.drawing.palette import Swatch, swatches
from gpumagic.drawing.strip_rows import (
    HEIGHT,
    WIDTH,
    Piece,
    StripRow,
    fine_cells,
    has_fine,
    line_of,
    of_pieces,
    shapes_of,
)
from gpumagic.drawing.table import (
    INDENT,
    caption_ink,
    cell_of,
    indented,
    narrower,
    row_html,
    rows_ink,
    table_html,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text


__all__ = ["Piece", "StripRow", "Strips"]

_MOST_CELLS = 60
_MOST_EM = 60
_FEWEST_CELLS = 8
_MOST_HOVERS = 96  # about 120 bytes of HTML each
_TOO_FINE = (
    "where pieces are too fine to draw one by one, the height is the share in use"
)


@dataclass(frozen=True)
class Strips:
    """Rows of pieces, to the scale of a full row."""

    caption: str  # what is shown
    rows: tuple[StripRow, ...]  # from top to bottom
    # each kind in the order in which they are told, and what is said of it
    legend: tuple[tuple[str, str], ...]
    full: float  # how long a row is that fills the width
    noun: str = "piece"  # what the pieces are called
    # writes a size with its unit
    text_of: Callable[[float], str] = field(default="{:g}".format)
    remark: str = ""  # what else is said under the rows
    empty: str = "free"  # how unused space is called
    # whether colours are explained; not where others just above are
    is_explained: bool = True

    @cached_property
    def _kinds(self) -> dict[str, Swatch]:
        return swatches(kind for kind, _ in self.legend)

    def _scale(self, width: int) -> float:
        longest = max((row.length for row in self.rows), default=0.0)
        return width / max(self.full, longest, 1e-300)

    # ---------------------------------------------------------------------- HTML

    def html(self) -> Html:
        """A table of label, picture and numbers, then what the colours mean."""
        most = max(_MOST_HOVERS // max(len(self.rows), 1), 1)
        rows = [
            row_html(
                label(row.label),
                cell_of(self._picture(row, most)),
                cell_of(unbroken(row.text), right=True),
            )
            for row in self.rows
        ]
        return lines((table_html(self.caption, rows), self._foot_html()))

    def _picture(self, row: StripRow, most_hovers: int) -> Html:
        scale = self._scale(WIDTH)
        name = row.label or "continued"
        shapes = shapes_of(row, scale, self._kinds)
        picture = svg.wide_picture(WIDTH, HEIGHT, name, *shapes)
        hovers = of_pieces(row, scale, most_hovers, self._told)
        over = hovers_html(hovers, WIDTH, HEIGHT)
        said = f"{name}: {row.text}"
        return svg.wide_image(picture, said, WIDTH, HEIGHT, over, most_em=_MOST_EM)

    def _told(self, pieces: list[Piece]) -> str:
        """What the pointer is told of these."""
        if len(pieces) == 1 and pieces[0].tell is not None:
            return pieces[0].tell()
        sizes: dict[str, float] = {}
        for piece in pieces:
            sizes[piece.kind] = sizes.get(piece.kind, 0.0) + piece.size
        said = (f"{self.text_of(sizes[k])} {k or self.empty}" for k in sorted(sizes))
        names = list(dict.fromkeys(piece.name for piece in pieces if piece.name))
        named = f"; {', '.join(names[:2])}" if names else ""
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        return f"{len(pieces)} {self.noun}s: {', '.join(said)}{named}{more}"

    def _foot_html(self) -> Html:
        scale = self._scale(WIDTH)
        fine = any(has_fine(row, scale) for row in self.rows)
        said = [*self._legend_html(), *map(words, self._remarks(fine=fine))]
        style = f"margin:0 0 .9em {INSET};max-width:{WIDEST_EM}em"
        return element("p", Html("<br/>".join(said)), style=style)

    def _legend_html(self) -> Iterator[str]:
        if self.is_explained:
            legend = legend_html(self._said())
            yield " &nbsp; ".join(filter(None, (legend, self._unused("□"))))

    def _unused(self, mark: str) -> str:
        return f"{mark} {self.empty}"

    def _said(self) -> Iterator[tuple[Swatch, str]]:
        drawn = {piece.kind for row in self.rows for piece in row.drawn}
        for kind, text in self.legend:
            if kind in drawn:
                yield self._kinds[kind], f"{kind}, {text}" if text else kind

    def _remarks(self, *, fine: bool) -> Iterator[str]:
        if self.remark:
            yield self.remark
        if fine:
            yield _TOO_FINE

    # ---------------------------------------------------------------------- text

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        labels = [ink(row.label, options) for row in self.rows]
        texts = [ink(row.text, options) for row in self.rows]
        widths = _widths(labels, texts, options.max_width - INDENT - 2 * len(GAP))
        glyphs, (_, cells, _) = glyphs_for(options), widths
        scale = self._scale(cells)
        fine = any(fine_cells(row, scale, cells, 1) for row in self.rows)
        drawn = [line_of(row, scale, cells, self._kinds, glyphs) for row in self.rows]
        rows = zip(labels, drawn, texts, strict=True)
        yield from rows_ink(rows, widths, console, right=(False, False, True))
        unused = self._unused(glyphs.gap)
        if self.is_explained:
            legend = legend_ink(self._said(), narrower(options), unused)
            yield from map(indented, legend)
        for remark in self._remarks(fine=fine):
            yield indented(ink(remark, options))


def _widths(labels: list[Text], texts: list[Text], room: int) -> tuple[int, int, int]:
    text = min(widest(each.plain for each in texts), max(room // 3, 2))
    label = min(widest(each.plain for each in labels), max(room // 4, 2))
    cells = max(min(room - label - text, _MOST_CELLS), _FEWEST_CELLS)
    return max(min(label, room - text - cells), 1), cells, text
