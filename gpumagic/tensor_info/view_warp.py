"""Draws what a warp fetches along each dim: sectors of 32 bytes, and what is used."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from rich.text import Text

from gpumagic.drawing import Paragraph, svg
from gpumagic.drawing.html import Html, words
from gpumagic.drawing.ink import GAP, glyphs_for, ink, side_by_side, widest
from gpumagic.drawing.palette import BLUE, TRACK
from gpumagic.drawing.table import (
    INDENT,
    caption_ink,
    indented,
    pictures_html,
)
from gpumagic.report.units import count_text, listed, share_text
from gpumagic.tensor_info.geometry import SECTOR_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

    from gpumagic.drawing import Part
    from gpumagic.tensor_info.report import TensorReport, WarpRead

_MOST_DIMS = 4
_HONEST = (
    "Memory is fetched in sectors of 32 B; four of them are a line.\n"
    "This is the cost for a kernel whose lanes walk that dim, one element each.\n"
    "PyTorch's own element-wise kernels walk memory in the operand's order: one "
    "transposed tensor is not slow, two of different order are.\n"
    "The figures come from the addresses; nothing was measured."
)
_ASSUMED = {"unknown": "is unknown and", "zero": "was asked to be and"}
_SECTORS_IN_A_LINE = 4
_SECTOR_WIDTH, _HEIGHT = 10, 18
_BETWEEN_SECTORS, _BETWEEN_LINES = 1, 4


def warp_parts(
    reports: Sequence[TensorReport], *, named: bool = False
) -> Iterator[Part]:
    """The reads of each tensor, and once how all of them are to be understood.

    `named` is whether the reads say whose they are.
    """
    drawn = [each for each in reports if is_drawn(each)]
    yield from (reads_of(each, named=named) for each in drawn)
    if drawn:
        yield Paragraph(_HONEST)


def is_drawn(report: TensorReport) -> bool:
    """Whether it is known what a warp fetches of it."""
    return bool(report.warp_along_dim) and None not in (report.stride, report.itemsize)


def reads_of(report: TensorReport, *, named: bool = False) -> Sectors:
    """What a warp fetches along each dim, where that is known."""
    reads, step, item = report.warp_along_dim or (), report.stride, report.itemsize
    fetches = tuple(
        Fetch(read, _start(report), (step or ())[read.dim] * (item or 1), item or 1)
        for read in reads[-_MOST_DIMS:]
    )
    of = f" of {report.expression}" if named else ""
    left_out = len(reads) - len(fetches)
    more = f"; the first {left_out} are not drawn" if left_out else ""
    caption = f"What a warp of 32 lanes fetches that reads along one dim{of}{more}"
    return Sectors(caption, fetches)


def warp_headline(report: TensorReport) -> str:
    """How much of what a warp fetches it uses, along each dim."""
    reads = report.warp_along_dim or ()
    used = [
        f"{share_text(read.efficiency)} along dim {read.dim}"
        for read in reads[-_MOST_DIMS:]
    ]
    return f"{report.expression}: of what a warp fetches it uses {listed(used)}"


def _start(report: TensorReport) -> int:
    """Where index 0 lies, from some multiple of 128 bytes on."""
    offset_bytes = (report.storage_offset or 0) * (report.itemsize or 1)
    if report.warp_base == "address" and report.address is not None:
        return report.address
    return offset_bytes


def bases(reports: Sequence[TensorReport]) -> str:
    """What was taken for the addresses, where it was not the addresses themselves."""
    said = []
    for base, why in _ASSUMED.items():
        names = [each.expression for each in reports if each.warp_base == base]
        of = "" if len(names) == len(reports) else f" of {', '.join(names)}"
        if names:
            said.append(f"The address of the storage{of} {why} was taken to be 0.")
    return "\n".join(said)


@dataclass(frozen=True)
class Fetch:
    """One dim's read."""

    read: WarpRead  # its figures
    start: int  # the byte at which lane 0 reads, from any multiple of 128 on
    step_bytes: int  # from lane to lane
    item_bytes: int  # what each lane reads

    def used_bytes(self) -> list[tuple[int, int]]:
        """Each fetched sector with the bytes of it that some lane asked for."""
        steps = range(self.read.lanes if self.step_bytes else 1)
        asked = {
            byte
            for lane in steps
            for byte in range(
                self.start + lane * self.step_bytes,
                self.start + lane * self.step_bytes + self.item_bytes,
            )
        }
        runs = groupby(sorted(asked), key=lambda byte: byte // SECTOR_BYTES)
        return [(sector, len(list(run))) for sector, run in runs]

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


@dataclass(frozen=True)
class Sectors:
    """The reads along several dims under each other."""

    caption: str
    fetches: tuple[Fetch, ...]

    def html(self) -> Html:
        """A table with a picture for each dim."""
        headings = "lanes walk", "fetched sectors, and what is used", "figures"
        rows = ((fetch.name, _picture(fetch), fetch.said) for fetch in self.fetches)
        return pictures_html(self.caption, map(words, headings), rows)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        names = [ink(fetch.name, options) for fetch in self.fetches]
        room = options.max_width - INDENT - len(GAP)
        name = min(widest(text.plain for text in names), room // 2)
        for fetch, text in zip(self.fetches, names, strict=True):
            told = _levels(fetch, options).append("\n").append(fetch.said)
            for line in side_by_side((text, told), (name, room - name), console):
                yield indented(line)


def _picture(fetch: Fetch) -> Html:
    """Each sector as a column that is filled as far as it is used."""
    tracks, bars, x = [], [], 0
    line = None
    for sector, used in fetch.used_bytes():
        if line not in (None, sector // _SECTORS_IN_A_LINE):
            x += _BETWEEN_LINES
        line = sector // _SECTORS_IN_A_LINE
        filled = max(round(_HEIGHT * used / SECTOR_BYTES), 1)
        tracks.append(f"M{x} 0h{_SECTOR_WIDTH}v{_HEIGHT}h-{_SECTOR_WIDTH}z")
        bars.append(f"M{x} {_HEIGHT}h{_SECTOR_WIDTH}v-{filled}h-{_SECTOR_WIDTH}z")
        x += _SECTOR_WIDTH + _BETWEEN_SECTORS
    shapes = svg.path("".join(tracks), TRACK), svg.path("".join(bars), BLUE)
    drawn = svg.picture(x, _HEIGHT, fetch.name, *shapes)
    return svg.image(drawn, f"{fetch.name}: {fetch.said}", x, _HEIGHT)


def _levels(fetch: Fetch, options: ConsoleOptions) -> Text:
    levels = glyphs_for(options).levels
    top = len(levels) - 1
    drawn = Text(overflow="fold")
    lines = groupby(fetch.used_bytes(), key=lambda each: each[0] // _SECTORS_IN_A_LINE)
    for number, (_, sectors) in enumerate(lines):
        heights = (round(used / SECTOR_BYTES * top) for _, used in sectors)
        drawn.append(" " if number else "")
        drawn.append("".join(levels[height] for height in heights), BLUE)
    return drawn
