"""Adds up by line of code what a snapshot tells of a device, from event to event.

The history of a device rarely begins with its first allocation. What was in use before
is what is freed without having been taken, and what is there in the end without having
been taken; so each moment is known from the first entry on.

Memory is in use until it is given back, also where another stream still reads it.
Sizes are as the allocator rounds: exact for what is there in the end, by its rule for
what has been given back, where the allocator may have handed out up to 1 MiB more.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from statistics import median_low
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_mem.segments import segments_of
from gpumagic.gpu_open.memory_records import (
    Failure,
    Growth,
    LineMemory,
    MemoryCourse,
    SnapshotOfDevice,
)
from gpumagic.gpu_open.recorded_lines import RecordedLines
from gpumagic.simulator.allocator_settings import AllocatorSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpumagic.devices.memory_events import Spot
    from gpumagic.gpu_open.snapshot_file import Snapshot

Entry: TypeAlias = "Mapping[str, Any]"
Owner: TypeAlias = "tuple[Spot | None, bool]"  # a line, and whether it was before

GREW, SHRANK = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")
_MOST_STRETCHES = 240
_MOST_DRAWN = 12
_MOST_LINES = 200
_ROUNDUP = re.compile(r"roundup_power2_divisions:(?:\[[^\]]*\]|\d+)")


def device_of(snapshot: Snapshot, device: int) -> SnapshotOfDevice:
    """All that a snapshot tells of one device."""
    entries, trace = snapshot.segments_of(device), snapshot.trace_of(device)
    lines = RecordedLines(_stacks_of(entries, trace))
    segments = segments_of(entries, lines.line_of)
    history = _history_of(entries, trace, snapshot.settings, lines)
    levels, events = history.levels(), history.events
    reserved = sum(each["total_size"] for each in entries)
    before = reserved - history.reserved[-1]
    peak_event = levels.index(max(levels))
    rows = _rows(history, peak_event)
    times = [each["time_us"] for each in trace if each.get("time_us")]
    length_s = max(times[-1] - times[0], 0) / 1e6 if times else None
    return SnapshotOfDevice(
        device=device,
        allocated_bytes=sum(each.allocated_bytes for each in segments),
        reserved_bytes=reserved,
        segments=segments,
        total_bytes=_total_bytes(trace, before),
        events=events,
        complete=bool(trace) and levels[0] == 0 and before <= 0,
        fits_together=history.fits_together and before + min(history.reserved) >= 0,
        peak_bytes=levels[peak_event] if events else None,
        peak_event=peak_event if events else None,
        peak_reserved_bytes=before + max(history.reserved) if events else None,
        lines=_line_records(rows, lines),
        has_stacks=any(spot is not None for spot, _ in rows),
        course=_course(history, levels, rows, length_s) if events else None,
        failure=_failure(history, levels, lines),
    )


def _total_bytes(trace: Sequence[Entry], reserved: int) -> int | None:
    """What this process could have of the device, as its last error tells."""
    total = None
    for entry in trace:
        reserved += _driver_bytes(entry)
        if entry["action"] == "oom" and type(entry.get("device_free")) is int:
            total = reserved + entry["device_free"]
    return total


def _driver_bytes(entry: Entry) -> int:
    """What an entry took from the driver, or below 0 what it gave back."""
    size: int = entry["size"]
    return size * ((entry["action"] in GREW) - (entry["action"] in SHRANK))


def _failure(
    history: _History, levels: Sequence[int], lines: RecordedLines
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


# ---------------------------------------------------------------- from event to event


class _Piece(NamedTuple):
    """Memory that somebody had from one event to another."""

    nbytes: int  # as the allocator rounds
    spot: Spot | None  # the line that took it, as far as it is known
    began: int  # the event that took it, from 1 on; 0 is before the recording
    ended: int | None  # the event that gave it back; None if it is there in the end


@dataclass
class _History:
    """What one device did, from event to event.

    An event is an allocation, its being given back, or an error for want of memory.
    """

    pieces: list[_Piece] = field(default_factory=list)  # all that was ever in use
    events: int = 0  # how many there are
    # whether what happened leads to what is there in the end
    fits_together: bool = True
    # what was taken from the driver less what went back, from entry to entry
    reserved: list[int] = field(default_factory=lambda: [0])
    # the last error, with the number of its event
    failure: tuple[int, Entry] | None = None

    def levels(self) -> list[int]:
        """How much was in use after each event, and before the first of them."""
        changes = [0] * (self.events + 1)
        for piece in self.pieces:
            changes[piece.began] += piece.nbytes
            if piece.ended is not None:
                changes[piece.ended] -= piece.nbytes
        return list(accumulate(changes))


def _stacks_of(segments: Iterable[Entry], trace: Iterable[Entry]) -> Iterator[Any]:
    """All stacks that lines may be wanted of."""
    blocks = chain.from_iterable(segment["blocks"] for segment in segments)
    return filter(None, (each.get("frames") for each in chain(blocks, trace)))


def _history_of(  # noqa: C901, PLR0912 -- one branch for each kind of entry
    segments: Iterable[Entry],
    trace: Sequence[Entry],
    settings: str | None,
    lines: RecordedLines,
) -> _History:
    """Follow a trace, and compare what it leads to with what is there."""
    history, rounded = _History(), _rounding(settings)
    live: dict[int, tuple[int, Entry]] = {}
    met: set[int] = set()

    def end(address: int) -> None:
        began, entry = live.pop(address)
        spot = lines.spot(entry.get("frames"))
        nbytes = rounded(entry["size"])
        history.pieces.append(_Piece(nbytes, spot, began, history.events))

    given_back = given_back_by(trace)
    for entry in trace:
        action, address = entry["action"], entry.get("addr", 0)
        if action == "oom":
            history.events += 1
            history.failure = history.events, entry
        elif action == "alloc":
            history.events += 1
            if address in live:  # its end is missing
                history.fits_together = False
                end(address)
            live[address] = history.events, entry
            met.add(address)
        elif action == given_back:
            history.events += 1
            if address in live:
                end(address)
            elif address in met:
                history.fits_together = False
            else:  # torch has no line here but that of the end
                nbytes = rounded(entry["size"])
                history.pieces.append(_Piece(nbytes, None, 0, history.events))
                met.add(address)
        elif change := _driver_bytes(entry):
            history.reserved.append(history.reserved[-1] + change)
    blocks = _used_blocks(segments)
    for address, (began, entry) in live.items():
        block = blocks.get(address)
        if block is None or block["requested_size"] not in (None, entry["size"]):
            history.fits_together = False
        nbytes = rounded(entry["size"]) if block is None else block["size"]
        spot = lines.spot(entry.get("frames"))
        if spot is None and block is not None:
            spot = lines.spot(block["frames"])
        history.pieces.append(_Piece(nbytes, spot, began, None))
    for address, block in blocks.items():
        if address not in met:
            piece = _Piece(block["size"], lines.spot(block["frames"]), 0, None)
            history.pieces.append(piece)
        elif address not in live:
            history.fits_together = False
    return history


def _used_blocks(segments: Iterable[Entry]) -> dict[int, Entry]:
    return {
        block["address"]: block
        for segment in segments
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }


def given_back_by(trace: Sequence[Entry]) -> str:
    """Which action ends memory: where requests were not recorded, their completion.

    A completion alone is no sign of it, as its request may be older than the trace.
    """
    asked, done = "free_requested", "free_completed"
    taken: set[int] = set()
    ends_without_request = False
    for entry in trace:
        if entry["action"] == asked:
            return asked
        if entry["action"] == "alloc":
            taken.add(entry["addr"])
        elif entry["action"] == done and entry["addr"] in taken:
            ends_without_request = True
    return done if ends_without_request else asked


def _rounding(settings: str | None) -> Callable[[int], int]:
    """What the allocator makes of a request, by its size."""
    found = _ROUNDUP.search("".join((settings or "").split()))
    try:
        rule = AllocatorSettings.parse(found[0] if found else "")
    except GpuMagicError:  # of a torch that has other words
        rule = AllocatorSettings()
    return functools.cache(lambda nbytes: rule.rounded_bytes(max(nbytes, 1)))


# ------------------------------------------------------------------- line by line


@dataclass
class _Row:
    """What becomes one `LineMemory`."""

    pieces: list[_Piece] = field(default_factory=list)
    now_bytes: int = 0
    at_peak_bytes: int = 0
    taken_bytes: int = 0


def _rows(history: _History, peak_event: int) -> dict[Owner, _Row]:
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
    ordered = sorted(
        rows.items(),
        key=lambda each: (
            -each[1].at_peak_bytes,
            -each[1].now_bytes,
            -each[1].taken_bytes,
        ),
    )
    return dict(ordered)


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
    together = LineMemory(
        line=None,
        before=False,
        now_bytes=sum(each.now_bytes for each in rest),
        at_peak_bytes=sum(each.at_peak_bytes for each in rest),
        taken=sum(each.taken for each in rest),
        taken_bytes=sum(each.taken_bytes for each in rest),
        given_back=sum(each.given_back for each in rest),
    )
    return (*records[:_MOST_LINES], together)


def _line_record(
    lines: RecordedLines, spot: Spot | None, row: _Row, *, before: bool
) -> LineMemory:
    lived = [each.ended - each.began for each in row.pieces if each.ended is not None]
    return LineMemory(
        line=lines.line(spot),
        before=before,
        now_bytes=row.now_bytes,
        at_peak_bytes=row.at_peak_bytes,
        taken=0 if before else len(row.pieces),
        taken_bytes=row.taken_bytes,
        given_back=len(lived),
        lived_events=median_low(lived) if lived and not before else None,
    )


# ------------------------------------------------------------------- to be drawn


def _course(
    history: _History,
    levels: Sequence[int],
    rows: Mapping[Owner, _Row],
    length_s: float | None,
) -> MemoryCourse:
    """By line, in each stretch what it held when most was in use there."""
    stretches = min(_MOST_STRETCHES, len(levels) - 1)
    bounds = [len(levels) * each // stretches for each in range(stretches + 1)]
    moments = [
        max(range(begin, end), key=levels.__getitem__)
        for begin, end in pairwise(bounds)
    ]
    held = [_held_at(moments, row.pieces) for row in [*rows.values()][:_MOST_LINES]]
    numbers = sorted(range(len(held)), key=lambda number: -max(held[number]))
    drawn = sorted(each for each in numbers[:_MOST_DRAWN] if max(held[each]))
    shown = [held[each] for each in drawn]
    rest = [
        levels[moment] - sum(each[place] for each in shown)
        for place, moment in enumerate(moments)
    ]
    others = [rest] if any(rest) else []
    return MemoryCourse(
        events=history.events,
        lines=(*drawn, *(None for _ in others)),
        levels_bytes=tuple(map(tuple, [*shown, *others])),
        length_s=length_s,
    )


def _held_at(moments: Sequence[int], pieces: Iterable[_Piece]) -> list[int]:
    """How much of these was in use at each of the moments."""
    changes = [0] * (len(moments) + 1)
    for piece in pieces:
        changes[bisect_left(moments, piece.began)] += piece.nbytes
        if piece.ended is not None:
            changes[bisect_left(moments, piece.ended)] -= piece.nbytes
    return list(accumulate(changes))[:-1]


# -------------------------------------------------------------------- what grew


class _Held(NamedTuple):
    address: int
    nbytes: int
    spot: Spot | None


def grown(first: Snapshot, second: Snapshot) -> tuple[Growth, ...]:
    """By device and line, what the second holds more than the first; most first.

    What matters is how much a line holds: where its memory lies changes all the time.
    """
    devices = sorted({*first.devices, *second.devices})
    lines = RecordedLines(
        stack
        for each in (first, second)
        for n in devices
        for stack in _stacks_of(each.segments_of(n), each.trace_of(n))
    )
    found = []
    for device in devices:
        before = _by_line(first, device, lines, {})
        known = {each[:2]: each.spot for each in chain.from_iterable(before.values())}
        for spot, pieces in _by_line(second, device, lines, known).items():
            earlier = before.get(spot, [])
            there = {each.address for each in earlier}
            growth = Growth(
                device=device,
                line=lines.line(spot),
                before_bytes=sum(each.nbytes for each in earlier),
                after_bytes=sum(each.nbytes for each in pieces),
                before=len(earlier),
                after=len(pieces),
                is_new=there.isdisjoint(each.address for each in pieces),
            )
            if growth.more_bytes > 0:
                found.append(growth)
    return tuple(sorted(found, key=lambda each: -each.more_bytes))


def _by_line(
    snapshot: Snapshot,
    device: int,
    lines: RecordedLines,
    known: Mapping[tuple[Any, ...], Spot | None],
) -> Mapping[Spot | None, list[_Held]]:
    """What is in use; a stack that the second has lost is that of the first."""
    taken = {
        entry["addr"]: lines.spot(entry.get("frames"))
        for entry in snapshot.trace_of(device)
        if entry["action"] == "alloc"
    }
    held: defaultdict[Spot | None, list[_Held]] = defaultdict(list)
    for address, block in _used_blocks(snapshot.segments_of(device)).items():
        spot = lines.spot(block["frames"]) or taken.get(address)
        if spot is None and address not in taken:
            spot = known.get((address, block["size"]))
        held[spot].append(_Held(address, block["size"], spot))
    return held
