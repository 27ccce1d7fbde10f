"""Draws what a warp fetches along each dim: sectors of 32 bytes, and what is used."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from rich.text import Text

from gpumagic.drawing import Note, Paragraph, svg
from gpumagic.drawing.html import Html, words
from gpumagic.drawing.ink import GAP, glyphs_for, ink, side_by_side, widest
from gpumagic.drawing.palette import BLUE, TRACK
from gpumagic.drawing.table import (
    INDENT,
    caption_ink,
    indented,
    pictures_html,
)
from gpumagic.report.units import count_text, share_text
from gpumagic.tensor_info.geometry import SECTOR_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

    from gpumagic.drawing import Part
    from gpumagic.tensor_info.report import TensorReport, WarpRead

_MOST_DIMS = 4
_HONEST = (
    "Memory is fetched in sectors of 32 B; four of them are a line. "
    "This is the cost for a kernel whose lanes walk that dim, each with a load of one "
    "element. PyTorch's own element-wise kernels walk memory in the operand's order "
    "instead: a transposed tensor alone is not slow for them, two operands of "
    "different order are. The figures are those of a model of addresses, not measured."
)
_ASSUMED = {"unknown": "is unknown and", "zero": "was asked to be and"}
_SECTORS_IN_A_LINE = 4
_SECTOR_WIDTH, _HEIGHT = 10, 18
_BETWEEN_SECTORS, _BETWEEN_LINES = 1, 4


def warp_sections(
    reports: Sequence[TensorReport], *, named: bool = False
) -> Iterator[Part]:
    """The reads of each tensor, and once how all of them are to be understood.

    `named` is whether the reads say whose they are.
    """
    drawn = [each for each in reports if _is_drawn(each)]
    for each in drawn:
        yield from _reads(each, named=named)
    if drawn:
        yield Paragraph(_HONEST + _bases(drawn))


def _is_drawn(report: TensorReport) -> bool:
    return bool(report.warp_along_dim) and None not in (report.stride, report.itemsize)


def _reads(report: TensorReport, *, named: bool) -> Iterator[Part]:
    reads, step, item = report.warp_along_dim, report.stride, report.itemsize
    if reads is None or step is None or item is None:
        return
    fetches = tuple(
        Fetch(read, _start(report), step[read.dim] * item, item)
        for read in reads[-_MOST_DIMS:]
    )
    of = f" of {report.expression}" if named else ""
    yield Sectors(
        f"What a warp of 32 lanes fetches that reads along one dim{of}",
        fetches,
    )
    if left_out := len(reads) - len(fetches):
        yield Note("note", f"the first {left_out} dims are not drawn")


def _start(report: TensorReport) -> int:
    """Where index 0 lies, from some multiple of 128 bytes on."""
    offset_bytes = (report.storage_offset or 0) * (report.itemsize or 1)
    if report.warp_base == "address" and report.address is not None:
        return report.address
    return offset_bytes


def _bases(reports: Sequence[TensorReport]) -> str:
    """What was taken for the addresses, where it was not the addresses themselves."""
    said = ""
    for base, why in _ASSUMED.items():
        names = [each.expression for each in reports if each.warp_base == base]
        of = "" if len(names) == len(reports) else f" of {', '.join(names)}"
        if names:
            said += f" The address of the storage{of} {why} was taken to be 0."
    return said


@dataclass(frozen=True)
class Fetch:
    """One dim's read.

    Args:
        read: Its figures.

        start: The byte at which lane 0 reads, from any multiple of 128 on.

        step_bytes: From lane to lane.

        item_bytes: What each lane reads.
    """

    read: WarpRead
    start: int
    step_bytes: int
    item_bytes: int

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
