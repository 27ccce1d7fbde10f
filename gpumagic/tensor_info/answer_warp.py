"""What does a warp fetch along each dim: sectors of 32 bytes, and what is used."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from rich.text import Text

from gpumagic.drawing import Paragraph, svg
from gpumagic.drawing.html import Html, words
from gpumagic.drawing.ink import GAP, glyphs_for, ink, widest
from gpumagic.drawing.palette import BLUE, TRACK
from gpumagic.drawing.table import INDENT, caption_ink, pictures_html, rows_ink
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
_LINE = 4  # sectors
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
    reads, item = report.warp_along_dim or (), report.itemsize or 1
    # Where index 0 lies, from some multiple of 128 bytes on.
    start = report.address
    if start is None:
        start = (report.storage_offset or 0) * item
    stride = report.stride or ()
    fetches = tuple(
        Fetch(read, start, stride[read.dim] * item, item)
        for read in reads[-_MOST_DIMS:]
    )
    of = f" of {report.expression}" if named else ""
    left_out = len(reads) - len(fetches)
    more = f"; the first {left_out} are not drawn" if left_out else ""
    caption = f"What a warp of 32 lanes fetches that reads along one dim{of}{more}"
    return Sectors(caption, fetches)


@dataclass(frozen=True)
class Fetch:
    """One dim's read."""

    read: WarpRead  # its figures
    start: int  # the byte at which lane 0 reads, from any multiple of 128 on
    step_bytes: int  # from lane to lane
    item_bytes: int  # what each lane reads

    def used_bytes(self) -> list[list[tuple[int, int]]]:
        """Line by line each fetched sector, and how much of it some lane asked for."""
        asked = {
            self.start + lane * self.step_bytes + byte
            for lane in range(self.read.lanes)
            for byte in range(self.item_bytes)
        }
        runs = groupby(sorted(asked), key=lambda byte: byte // SECTOR_BYTES)
        sectors = [(sector, len(list(run))) for sector, run in runs]
        return [
            list(line)
            for _, line in groupby(sectors, key=lambda each: each[0] // _LINE)
        ]

    @property
    def said(self) -> str:
        """The read in figures."""
        read = self.read
        best = ", the fewest there can be"
        if read.sectors > read.ideal_sectors:
            best = f", at best {read.ideal_sectors}"
        return (
            f"{count_text(read.sectors, 'sector')}{best}; "
            f"{count_text(read.lines, 'line')}; "
            f"{read.unique_bytes:,} of {read.fetched_bytes:,} B used, "
            f"{share_text(read.efficiency)}"
        )

    @property
    def name(self) -> str:
        """Which dim, and how many lanes it keeps busy."""
        return f"dim {self.read.dim}, {count_text(self.read.lanes, 'lane')}"

    def picture(self) -> Html:
        """Each sector as a column that is filled as far as it is used."""
        tracks, bars, x = "", "", 0
        for line in self.used_bytes():
            for _, used in line:
                filled = max(round(_HEIGHT * used / SECTOR_BYTES), 1)
                tracks += f"M{x} 0h{_SECTOR_WIDTH}v{_HEIGHT}h-{_SECTOR_WIDTH}z"
                bars += f"M{x} {_HEIGHT}h{_SECTOR_WIDTH}v-{filled}h-{_SECTOR_WIDTH}z"
                x += _SECTOR_WIDTH + _BETWEEN_SECTORS
            x += _BETWEEN_LINES
        shapes = svg.path(tracks, TRACK), svg.path(bars, BLUE)
        drawn = svg.picture(x, _HEIGHT, self.name, *shapes)
        return svg.image(drawn, f"{self.name}: {self.said}", x, _HEIGHT)


@dataclass(frozen=True)
class Sectors:
    """The reads along several dims under each other."""

    caption: str
    fetches: tuple[Fetch, ...]

    def html(self) -> Html:
        """A table with a picture for each dim."""
        headings = "lanes walk", "fetched sectors, and what is used", "figures"
        rows = ((each.name, each.picture(), each.said) for each in self.fetches)
        return pictures_html(self.caption, map(words, headings), rows)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        names = [ink(fetch.name, options) for fetch in self.fetches]
        room = options.max_width - INDENT - len(GAP)
        name = min(widest(text.plain for text in names), room // 2)
        levels = glyphs_for(options).levels
        top = len(levels) - 1
        for fetch, text in zip(self.fetches, names, strict=True):
            told = Text(overflow="fold")
            for line in fetch.used_bytes():
                heights = (round(used / SECTOR_BYTES * top) for _, used in line)
                told.append(" " if told else "")
                told.append("".join(levels[height] for height in heights), BLUE)
            told.append("\n").append(fetch.said)
            yield from rows_ink([(text, told)], (name, room - name), console)
