"""What does a warp fetch along each dim: sectors of 32 bytes, and what is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from gpumagic.drawing import Paragraph
from gpumagic.drawing.html import Html, image, path, picture, words
from gpumagic.drawing.ink import GAP, glyphs_for, ink, widest
from gpumagic.drawing.palette import BLUE, TRACK
from gpumagic.drawing.table import (
    INDENT,
    caption_ink,
    cell_of,
    row_html,
    rows_ink,
    table_html,
)
from gpumagic.report.units import count_text, listed, share_text
from gpumagic.tensor_info.geometry import SECTOR_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

    from gpumagic.drawing import Part
    from gpumagic.tensor_info.geometry import WarpRead
    from gpumagic.tensor_info.report import TensorReport

_MOST_DIMS = 4
_HONEST = (
    "Memory is fetched in sectors of 32 B; four of them are a line.\n"
    "This is the cost for a kernel whose lanes walk that dim, one element each.\n"
    "PyTorch's own element-wise kernels walk memory in the operand's order: one "
    "transposed tensor is not slow, two of different order are.\n"
    "The figures come from the addresses; nothing was measured."
)
_SECTOR_WIDTH, _HEIGHT = 10, 18
_BETWEEN_SECTORS, _BETWEEN_LINES = 1, 4


def is_drawn(report: TensorReport) -> bool:
    """Whether it is known what a warp fetches of it."""
    return bool(report.warp_along_dim)


def warp_headline(report: TensorReport) -> str:
    """How much of what a warp fetches it uses, along each dim."""
    reads = report.warp_along_dim or ()
    used = [
        f"{share_text(read.efficiency)} along dim {read.dim}"
        for read in reads[-_MOST_DIMS:]
    ]
    return f"{report.expression}: of what a warp fetches it uses {listed(used)}"


def warp_parts(
    reports: Sequence[TensorReport], *, named: bool = False
) -> Iterator[Part]:
    """The reads of each tensor, and once how all of them are to be understood."""
    yield from (warp_reads(each, named=named) for each in reports if is_drawn(each))
    yield Paragraph(_HONEST)


def warp_reads(report: TensorReport, *, named: bool = False) -> Sectors:
    """What a warp fetches along each dim; `named` is whether it is said of what."""
    reads = report.warp_along_dim or ()
    of = f" of {report.expression}" if named else ""
    left_out = len(reads) - _MOST_DIMS
    more = f"; the first {left_out} are not drawn" if left_out > 0 else ""
    caption = f"What a warp of 32 lanes fetches that reads along one dim{of}{more}"
    return Sectors(caption, reads[-_MOST_DIMS:])


def _name(read: WarpRead) -> str:
    return f"dim {read.dim}, {count_text(read.lanes, 'lane')}"


def _figures(read: WarpRead) -> str:
    best = ", the fewest there can be"
    if read.sectors > read.ideal_sectors:
        best = f", at best {read.ideal_sectors}"
    return (
        f"{count_text(read.sectors, 'sector')}{best}; "
        f"{count_text(read.lines, 'line')}; {read.unique_bytes:,} of "
        f"{read.fetched_bytes:,} B used, {share_text(read.efficiency)}"
    )


def _picture(read: WarpRead) -> Html:
    """Each sector as a column that is filled as far as it is used."""
    tracks, bars, x = "", "", 0
    for line in read.used:
        for used in line:
            filled = max(round(_HEIGHT * used / SECTOR_BYTES), 1)
            tracks += f"M{x} 0h{_SECTOR_WIDTH}v{_HEIGHT}h-{_SECTOR_WIDTH}z"
            bars += f"M{x} {_HEIGHT}h{_SECTOR_WIDTH}v-{filled}h-{_SECTOR_WIDTH}z"
            x += _SECTOR_WIDTH + _BETWEEN_SECTORS
        x += _BETWEEN_LINES
    shapes = path(tracks, TRACK), path(bars, BLUE)
    drawn = picture(x, _HEIGHT, _name(read), *shapes)
    return image(drawn, f"{_name(read)}: {_figures(read)}", x, _HEIGHT)


@dataclass(frozen=True)
class Sectors:
    """The reads along several dims under each other."""

    caption: str
    reads: tuple[WarpRead, ...]

    def html(self) -> Html:
        """A table with a picture for each dim."""
        rows = (
            row_html(
                words(_name(read)),
                cell_of(_picture(read)),
                cell_of(words(_figures(read))),
            )
            for read in self.reads
        )
        return table_html(self.caption, rows)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        names = [ink(_name(read), options) for read in self.reads]
        room = options.max_width - INDENT - len(GAP)
        name = min(widest(text.plain for text in names), room // 2)
        levels = glyphs_for(options).levels
        for read, text in zip(self.reads, names, strict=True):
            lines = (
                "".join(
                    levels[round(n / SECTOR_BYTES * (len(levels) - 1))] for n in line
                )
                for line in read.used
            )
            told = Text(overflow="fold").append(" ".join(lines), BLUE)
            told.append(f"\n{_figures(read)}")
            yield from rows_ink([(text, told)], (name, room - name), console)
