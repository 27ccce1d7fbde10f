"""Adds up by line of code what a snapshot tells of a device, from event to event."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from statistics import median_low
from typing import TYPE_CHECKING, TypeAlias

from gpumagic.gpu_mem.fragmentation import fragmentation_of
from gpumagic.gpu_mem.records import Counters
from gpumagic.gpu_mem.segments import segments_of
from gpumagic.gpu_open.memory_pieces import (
    GREW,
    SHRANK,
    history_of,
    stacks_of,
    trace_of,
)
from gpumagic.gpu_open.memory_records import (
    Failure,
    LineMemory,
    MemoryCourse,
    SnapshotOfDevice,
)
from gpumagic.gpu_open.recorded_lines import RecordedLines

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpumagic.devices.memory_events import Spot
    from gpumagic.gpu_open.memory_pieces import Entry, History, Piece
    from gpumagic.gpu_open.snapshot_file import Snapshot

Owner: TypeAlias = "tuple[Spot | None, bool]"  # a line, and whether it was before

_MOST_STRETCHES = 240
_MOST_DRAWN = 12
_MOST_LINES = 200
_AGAIN = 3  # times make a habit


def device_of(snapshot: Snapshot, device: int) -> SnapshotOfDevice:
    """All that a snapshot tells of one device."""
    entries = [each for each in snapshot.segments if each["device"] == device]
    trace = trace_of(snapshot, device)
    lines = RecordedLines(stacks_of(entries, trace))
    segments = segments_of(entries, lines.line_of)
    history = history_of(snapshot, device, lines)
    levels = history.levels
    reserved = sum(each["total_size"] for each in entries)
    reserved_before = reserved - history.reserved_change_bytes
    peak_event = levels.index(max(levels))
    recorded = history.events > 0
    rows = _rows(history, peak_event)
    return SnapshotOfDevice(
        device=device,
        allocated_bytes=sum(each.allocated_bytes for each in segments),
        reserved_bytes=reserved,
        segments=segments,
        fragmentation=(
            fragmentation_of(segments, _counters(device, entries)) if entries else None
        ),
        total_bytes=_total_bytes(trace, reserved_before),
        events=history.events,
        complete=bool(trace) and levels[0] == 0 and reserved_before <= 0,
        fits_together=history.fits_together
        and reserved_before + history.reserved_lowest_bytes >= 0,
        peak_bytes=levels[peak_event] if recorded else None,
        peak_event=peak_event if recorded else None,
        peak_reserved_bytes=(
            reserved_before + history.reserved_highest_bytes if recorded else None
        ),
        lines=_line_records(rows, lines),
        has_stacks=any(spot is not None for spot, _ in rows),
        course=_course(history, levels, rows, _length_s(trace)) if recorded else None,
        failure=_failure(history, levels, lines),
    )


def _total_bytes(trace: Sequence[Entry], reserved_before: int) -> int | None:
    """What this process could have of the device, as its last error tells."""
    reserved, total = reserved_before, None
    for entry in trace:
        action = entry["action"]
        if action in GREW:
            reserved += entry["size"]
        elif action in SHRANK:
            reserved -= entry["size"]
        elif action == "oom" and type(entry.get("device_free")) is int:
            total = reserved + entry["device_free"]
    return total


def _failure(
    history: History, levels: Sequence[int], lines: RecordedLines
) -> Failure | None:
    if history.failure is None:
        return None
    event, entry = history.failure
    free = entry.get("device_free")
    return Failure(
        event=event,
        asked_bytes=entry["size"],
        free_bytes=free if type(free) is int and free >= 0 else None,
        allocated_bytes=levels[event],
        line=lines.line_of(entry.get("frames") or ()),
    )


def _length_s(trace: Sequence[Entry]) -> float | None:
    times = [each["time_us"] for each in trace if each.get("time_us")]
    return max(times[-1] - times[0], 0) / 1e6 if times else None


def _counters(device: int, entries: Iterable[Entry]) -> Counters:
    blocks = chain.from_iterable(each["blocks"] for each in entries)
    active = [each for each in blocks if each["state"] != "inactive"]
    requested = [each["requested_size"] for each in active]
    return Counters(
        device=device,
        active_bytes=sum(each["size"] for each in active),
        requested_bytes=None if None in requested else sum(requested),
    )


# ------------------------------------------------------------------- line by line


@dataclass
class _Row:
    """What becomes one `LineMemory`."""

    pieces: list[Piece] = field(default_factory=list)
    now_bytes: int = 0
    at_peak_bytes: int = 0
    taken_bytes: int = 0

    def rank(self) -> tuple[int, int, int]:
        return -self.at_peak_bytes, -self.now_bytes, -self.taken_bytes


def _rows(history: History, peak_event: int) -> dict[Owner, _Row]:
    """By line, what was highest at the peak first."""
    rows: defaultdict[Owner, _Row] = defaultdict(_Row)
    for piece in history.pieces:
        before = piece.began == 0 and history.events > 0
        row = rows[piece.spot, before]
        row.pieces.append(piece)
        if piece.ended is None:
            row.now_bytes += piece.nbytes
        if piece.began <= peak_event and (piece.ended or peak_event + 1) > peak_event:
            row.at_peak_bytes += piece.nbytes
        if not before:
            row.taken_bytes += piece.nbytes
    return dict(sorted(rows.items(), key=lambda each: each[1].rank()))


def _line_records(
    rows: Mapping[Owner, _Row], lines: RecordedLines
) -> tuple[LineMemory, ...]:
    records = [
        _line_record(lines, spot, row, before=before)
        for (spot, before), row in rows.items()
    ]
    rest = records[_MOST_LINES:]
    if not rest:
        return tuple(records)
    return (*records[:_MOST_LINES], _together(rest))


def _line_record(
    lines: RecordedLines, spot: Spot | None, row: _Row, *, before: bool
) -> LineMemory:
    given_back = [each for each in row.pieces if each.ended is not None]
    lived = [(each.ended or 0) - each.began for each in given_back]
    return LineMemory(
        line=lines.line(spot),
        before=before,
        now_bytes=row.now_bytes,
        at_peak_bytes=row.at_peak_bytes,
        taken=0 if before else len(row.pieces),
        taken_bytes=row.taken_bytes,
        given_back=len(given_back),
        lived_events=median_low(lived) if lived and not before else None,
        each_step=not before and len(lived) == len(row.pieces) and _again(row.pieces),
    )


def _together(records: Sequence[LineMemory]) -> LineMemory:
    return LineMemory(
        line=None,
        before=False,
        now_bytes=sum(each.now_bytes for each in records),
        at_peak_bytes=sum(each.at_peak_bytes for each in records),
        taken=sum(each.taken for each in records),
        taken_bytes=sum(each.taken_bytes for each in records),
        given_back=sum(each.given_back for each in records),
    )


def _again(pieces: Iterable[Piece]) -> bool:
    """Whether most of it was taken, given back, and taken again in the same sizes.

    Two of a size may overlap, as a new one often comes before the old one goes. So
    many have to come after each other, not beside each other.
    """
    by_size: defaultdict[int, list[Piece]] = defaultdict(list)
    for piece in pieces:
        by_size[piece.nbytes].append(piece)
    again = {
        nbytes: len(each) >= _AGAIN * _most_at_once(each)
        for nbytes, each in by_size.items()
    }
    total = sum(nbytes * len(each) for nbytes, each in by_size.items())
    repeated = sum(n * len(each) for n, each in by_size.items() if again[n])
    return 2 * repeated >= total


def _most_at_once(pieces: Iterable[Piece]) -> int:
    steps: Counter[int] = Counter()
    for piece in pieces:
        steps[piece.began] += 1
        steps[piece.ended or piece.began] -= 1
    return max(accumulate(steps[event] for event in sorted(steps)), default=0)


# ------------------------------------------------------------------- to be drawn


def _course(
    history: History,
    levels: Sequence[int],
    rows: Mapping[Owner, _Row],
    length_s: float | None,
) -> MemoryCourse:
    moments = _highest_moments(levels)
    held = [_held_at(moments, row.pieces) for row in rows.values()]
    numbers = [number for number in range(len(held)) if number < _MOST_LINES]
    numbers.sort(key=lambda number: -max(held[number]))
    drawn = sorted(each for each in numbers[:_MOST_DRAWN] if max(held[each]))
    shown = [held[each] for each in drawn]
    rest = [
        levels[moment] - sum(each[place] for each in shown)
        for place, moment in enumerate(moments)
    ]
    with_rest = any(rest)
    return MemoryCourse(
        events=history.events,
        lines=(*drawn, None) if with_rest else tuple(drawn),
        levels_bytes=tuple(map(tuple, [*shown, rest] if with_rest else shown)),
        length_s=length_s,
    )


def _highest_moments(levels: Sequence[int]) -> list[int]:
    """In each stretch the event after which most was in use."""
    stretches = min(_MOST_STRETCHES, len(levels) - 1)
    bounds = [len(levels) * each // stretches for each in range(stretches + 1)]
    return [
        max(range(begin, end), key=levels.__getitem__)
        for begin, end in pairwise(bounds)
    ]


def _held_at(moments: Sequence[int], pieces: Iterable[Piece]) -> list[int]:
    """How much of these was in use at each of the moments."""
    changes = [0] * (len(moments) + 1)
    for piece in pieces:
        changes[bisect_left(moments, piece.began)] += piece.nbytes
        if piece.ended is not None:
            changes[bisect_left(moments, piece.ended)] -= piece.nbytes
    return list(accumulate(changes))[:-1]
