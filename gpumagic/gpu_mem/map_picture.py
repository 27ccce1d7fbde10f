"""Segments as rows of blocks, to one scale for each device."""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from gpumagic.drawing import Piece, StripRow, Strips
from gpumagic.gpu_mem.device_words import device_name, listed
from gpumagic.gpu_mem.records.blocks import BlockState
from gpumagic.report.units import bytes_text, count_text, part_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.gpu_mem.records.blocks import Block, Segment
    from gpumagic.gpu_mem.records.setting import Setting

_MOST_ROWS = 12  # of all devices together
_FEWEST_ROWS = 3
_BLOCKS_IN_A_ROW = 100  # as many can be told apart
_IN_USE = BlockState.ALLOCATED.value
_LEGEND = ((_IN_USE, ""), (BlockState.PENDING.value, "until a stream has come so far"))
_SHARED_POOLS = ("small", "large")
_MOST_DEVICES = 8

_Group = tuple[str, int]  # pool and stream


def pictures(segments: Sequence[Segment], setting: Setting) -> Iterator[Strips]:
    """One for each device, with as many rows as all of them leave it."""
    devices = sorted({segment.device for segment in segments})[:_MOST_DEVICES]
    for device in devices:
        its = [segment for segment in segments if segment.device == device]
        most = max(_MOST_ROWS // len(devices), _FEWEST_ROWS)
        yield _of_device(its, device_name(setting, device), most)


def group_name(pool: str, stream: int) -> str:
    """Whose free parts these are: the pool, and the stream if not the default one."""
    name = f"{pool} pool" if pool in _SHARED_POOLS else f"private pool {pool}"
    return f"{name}, stream {stream}" if stream else name


def block_words(block: Block) -> str:
    """A block in words: how much, what, whose, and from where."""
    said = f"{bytes_text(block.nbytes)} {block.state.value}"
    if block.names:
        said = f"{said}: {listed(block.names)}"
    if block.line is not None:
        said = f"{said}, allocated in {block.line.where}"
    return said


# ---------------------------------------------------------------------- rows


def _of_device(segments: Sequence[Segment], name: str, most: int) -> Strips:
    full = _full_row(segments, most)
    rows = [
        row
        for group, its in _by_group(segments)
        for row in _rows(group_name(*group), its, full)
    ]
    shown, hidden = rows[:most], rows[most:]
    remark = f"a full row is {bytes_text(full)}"
    if hidden:
        count = count_text(len(hidden), "more row")
        missing = bytes_text(sum(row.length for row in hidden))
        remark = f"{remark}; {count} with {missing} are not drawn"
    caption = f"Blocks on {name}, by pool and stream, in the order of their addresses"
    return Strips(
        caption, tuple(shown), _LEGEND, full, "block", bytes_text, remark=remark
    )


def _full_row(segments: Sequence[Segment], most: int) -> int:
    """As long as the largest segment, unless its blocks would be too many to see."""
    total = sum(segment.nbytes for segment in segments)
    blocks = sum(len(segment.blocks) for segment in segments)
    wanted = min(max(blocks // _BLOCKS_IN_A_ROW, 1), most)
    largest = max(segment.nbytes for segment in segments)
    groups = len(_by_group(segments))
    # Each group begins a row of its own, so that some rows are not full.
    least = total // max(most - groups, 1)
    return max(min(largest, total // wanted), least, 1)


def _by_group(segments: Sequence[Segment]) -> list[tuple[_Group, list[Segment]]]:
    """Each pool and stream with its segments by address; the largest first."""

    def group(segment: Segment) -> _Group:
        return segment.pool, segment.stream

    ordered = sorted(segments, key=lambda each: (group(each), each.address))
    groups = [(key, list(its)) for key, its in groupby(ordered, key=group)]
    return sorted(groups, key=lambda each: -sum(its.nbytes for its in each[1]))


def _rows(name: str, segments: Sequence[Segment], full: int) -> Iterator[StripRow]:
    for number, pieces in enumerate(_packed(segments, full)):
        yield _row("" if number else name, pieces)


def _packed(segments: Sequence[Segment], full: int) -> Iterator[list[Piece]]:
    """Blocks row by row; a segment that fits into one row is not cut."""
    row: list[Piece] = []
    room = full
    for segment in segments:
        if row and room < segment.nbytes <= full:
            yield row
            row, room = [], full
        starts = True
        for block in segment.blocks:
            left = block.nbytes
            while left > 0:
                if not room:
                    yield row
                    row, room = [], full
                nbytes = min(left, room)
                row.append(_piece(block, nbytes, starts=starts))
                left, room, starts = left - nbytes, room - nbytes, False
    if row:
        yield row


def _piece(block: Block, nbytes: int, *, starts: bool) -> Piece:
    """The part of a block that lies in one row; what is told is of all of it."""
    free = block.state is BlockState.FREE
    name = block.names[0] if block.names else ""
    tell = partial(block_words, block)
    return Piece("" if free else block.state.value, nbytes, name, tell, starts)


def _row(name: str, pieces: Sequence[Piece]) -> StripRow:
    used = sum(each.size for each in pieces if each.kind == _IN_USE)
    length = sum(each.size for each in pieces)
    return StripRow(name, tuple(pieces), part_text(used, length))
