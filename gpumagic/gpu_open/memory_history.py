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
from dataclasses import dataclass, field, replace
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
    levels = history.levels()
    reserved = sum(each["total_size"] for each in entries)
    before = reserved - history.reserved[-1]
    peak_event = levels.index(max(levels))
    rows = _rows(history, peak_event, lines)
    known = SnapshotOfDevice(
        device=device,
        allocated_bytes=sum(each.allocated_bytes for each in segments),
        reserved_bytes=reserved,
        segments=segments,
        events=history.events,
        complete=bool(trace) and levels[0] == 0 and before <= 0,
        fits_together=history.fits_together and before + min(history.reserved) >= 0,
        lines=_with_rest([record for record, _ in rows]),
        has_stacks=any(record.line is not None for record, _ in rows),
        failure=_failure(history, levels, lines),
    )
    if not history.events:
        return known
    times = [each["time_us"] for each in trace if each.get("time_us")]
    length_s = max(times[-1] - times[0], 0) / 1e6 if times else None
    return replace(
        known,
        peak_bytes=levels[peak_event],
        peak_event=peak_event,
        peak_reserved_bytes=before + max(history.reserved),
        course=_course(levels, [pieces for _, pieces in rows], length_s),
    )


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
        line=lines.line(lines.spot(entry.get("frames"))),
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
        piece = _Piece(rounded(entry["size"]), spot, began, history.events)
        history.pieces.append(piece)

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
                piece = _Piece(rounded(entry["size"]), None, 0, history.events)
                history.pieces.append(piece)
                met.add(address)
        elif action in GREW:
            history.reserved.append(history.reserved[-1] + entry["size"])
        elif action in SHRANK:
            history.reserved.append(history.reserved[-1] - entry["size"])
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


def _rows(
    history: _History, peak_event: int, lines: RecordedLines
) -> list[tuple[LineMemory, list[_Piece]]]:
    """Each line with its pieces: what was highest at the peak first."""
    owned: defaultdict[tuple[Spot | None, bool], list[_Piece]] = defaultdict(list)
    for piece in history.pieces:
        owned[piece.spot, piece.began == 0 and history.events > 0].append(piece)
    rows = []
    for (spot, before), pieces in owned.items():
        lived = [each.ended - each.began for each in pieces if each.ended is not None]
        record = LineMemory(
            lines.line(spot),
            before,
            now_bytes=sum(each.nbytes for each in pieces if each.ended is None),
            at_peak_bytes=_held_at([peak_event], pieces)[0],
            taken=0 if before else len(pieces),
            given_back=len(lived),
            lived_events=median_low(lived) if lived and not before else None,
        )
        rows.append((record, pieces))
    return sorted(rows, key=lambda row: (-row[0].at_peak_bytes, -row[0].now_bytes))


def _with_rest(records: list[LineMemory]) -> tuple[LineMemory, ...]:
    """The first of very many, and all others as one."""
    rest = records[_MOST_LINES:]
    if not rest:
        return tuple(records)
    together = LineMemory(
        None,
        before=False,
        now_bytes=sum(each.now_bytes for each in rest),
        at_peak_bytes=sum(each.at_peak_bytes for each in rest),
        taken=sum(each.taken for each in rest),
        given_back=sum(each.given_back for each in rest),
    )
    return (*records[:_MOST_LINES], together)


def _course(
    levels: Sequence[int], rows: Sequence[list[_Piece]], length_s: float | None
) -> MemoryCourse:
    """By line, in each stretch what it held when most was in use there."""
    stretches = min(_MOST_STRETCHES, len(levels) - 1)
    bounds = [len(levels) * each // stretches for each in range(stretches + 1)]
    moments = [
        max(range(begin, end), key=levels.__getitem__)
        for begin, end in pairwise(bounds)
    ]
    held = [_held_at(moments, pieces) for pieces in rows[:_MOST_LINES]]
    largest = sorted(range(len(held)), key=lambda number: -max(held[number]))
    drawn = sorted(each for each in largest[:_MOST_DRAWN] if max(held[each]))
    shown = [held[each] for each in drawn]
    rest = [
        levels[moment] - sum(each[place] for each in shown)
        for place, moment in enumerate(moments)
    ]
    others = [rest] if any(rest) else []
    return MemoryCourse(
        events=len(levels) - 1,
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
        known: dict[tuple[int, int], Spot | None] = {}
        before = _by_line(first, device, lines, known)
        for spot, sizes in _by_line(second, device, lines, known).items():
            earlier = before.get(spot, [])
            if sum(sizes) > sum(earlier):
                found.append(
                    Growth(
                        device,
                        lines.line(spot),
                        before_bytes=sum(earlier),
                        after_bytes=sum(sizes),
                        before=len(earlier),
                        after=len(sizes),
                    )
                )
    return tuple(sorted(found, key=lambda each: -each.more_bytes))


def _by_line(
    snapshot: Snapshot,
    device: int,
    lines: RecordedLines,
    known: dict[tuple[int, int], Spot | None],
) -> Mapping[Spot | None, list[int]]:
    """The sizes of what is in use; a stack that the second has lost is the first's."""
    taken = {
        entry["addr"]: lines.spot(entry.get("frames"))
        for entry in snapshot.trace_of(device)
        if entry["action"] == "alloc"
    }
    held: defaultdict[Spot | None, list[int]] = defaultdict(list)
    for address, block in _used_blocks(snapshot.segments_of(device)).items():
        place = address, block["size"]
        spot = lines.spot(block["frames"]) or taken.get(address)
        if spot is None and address not in taken:
            spot = known.get(place)
        known.setdefault(place, spot)
        held[spot].append(block["size"])
    return held
