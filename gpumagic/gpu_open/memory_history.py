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
from bisect import bisect_left
from collections import defaultdict
from dataclasses import replace
from itertools import accumulate, chain, pairwise
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

    from gpumagic.devices.memory_history import Spot
    from gpumagic.gpu_open.snapshot_file import Snapshot

Entry: TypeAlias = "Mapping[str, Any]"

EVENTS = ("alloc", "free_requested", "oom")
GREW, SHRANK = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")
_MOST_STRETCHES = 240
_MOST_DRAWN = 12


def device_of(snapshot: Snapshot, device: int) -> SnapshotOfDevice:
    """All that a snapshot tells of one device."""
    entries, trace = snapshot.segments_of(device), snapshot.trace_of(device)
    lines = RecordedLines(_stacks_of(entries, trace))
    segments = segments_of(entries, lines.line_of)
    history = _History(_rounding(snapshot.settings), lines)
    history.follow(trace)
    history.end_as(_used_blocks(entries))
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
        lines=tuple(record for record, _ in rows),
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
    return Failure(
        event=event,
        asked_bytes=entry["size"],
        free_bytes=entry.get("device_free"),
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


class _History:
    """What one device did, from event to event.

    An event is an allocation, its being given back, or an error for want of memory.
    """

    def __init__(self, rounded: Callable[[int], int], lines: RecordedLines) -> None:
        self.pieces: list[_Piece] = []  # all that was ever in use
        self.events = 0  # how many there are
        self.fits_together = True  # whether it leads to what is there in the end
        # what was taken from the driver less what went back, from entry to entry
        self.reserved = [0]
        self.failure: tuple[int, Entry] | None = None  # the last, with its event
        self._rounded, self._lines = rounded, lines
        self._live: dict[int, tuple[int, Entry]] = {}
        self._met: set[int] = set()

    def follow(self, trace: Sequence[Entry]) -> None:
        """Go through all entries, in order."""
        for entry in trace:
            action, address = entry["action"], entry.get("addr", 0)
            self.events += action in EVENTS
            if action == "oom":
                self.failure = self.events, entry
            elif action == "alloc":
                if address in self._live:  # its end is missing
                    self.fits_together = False
                    self._give_back(address)
                self._live[address] = self.events, entry
                self._met.add(address)
            elif action == "free_requested":
                if address not in self._met:  # it was there before
                    self._live[address] = 0, {**entry, "frames": None}
                    self._met.add(address)
                if address in self._live:
                    self._give_back(address)
                else:
                    self.fits_together = False
            elif action in GREW:
                self.reserved.append(self.reserved[-1] + entry["size"])
            elif action in SHRANK:
                self.reserved.append(self.reserved[-1] - entry["size"])

    def _give_back(self, address: int) -> None:
        began, entry = self._live.pop(address)
        spot = self._lines.spot(entry.get("frames"))
        nbytes = self._rounded(entry["size"])
        self.pieces.append(_Piece(nbytes, spot, began, self.events))

    def end_as(self, blocks: Mapping[int, Entry]) -> None:
        """Compare what it leads to with what is there, and take that."""
        for address, (began, entry) in self._live.items():
            block = blocks.get(address)
            if block is None or block["requested_size"] not in (None, entry["size"]):
                self.fits_together = False
            nbytes = self._rounded(entry["size"]) if block is None else block["size"]
            spot = self._lines.spot(entry.get("frames"))
            if spot is None and block is not None:
                spot = self._lines.spot(block["frames"])
            self.pieces.append(_Piece(nbytes, spot, began, None))
        for address, block in blocks.items():
            if address not in self._met:
                spot = self._lines.spot(block["frames"])
                self.pieces.append(_Piece(block["size"], spot, 0, None))
            elif address not in self._live:
                self.fits_together = False

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


def _used_blocks(segments: Iterable[Entry]) -> dict[int, Entry]:
    return {
        block["address"]: block
        for segment in segments
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }


def _rounding(settings: str | None) -> Callable[[int], int]:
    """What the allocator makes of a request, by its size."""
    try:
        rule = AllocatorSettings.parse(settings or "")
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
        record = LineMemory(
            lines.line(spot),
            before,
            now_bytes=sum(each.nbytes for each in pieces if each.ended is None),
            at_peak_bytes=_held_at([peak_event], pieces)[0],
            taken=0 if before else len(pieces),
            given_back=sum(each.ended is not None for each in pieces),
        )
        rows.append((record, pieces))
    return sorted(rows, key=lambda row: (-row[0].at_peak_bytes, -row[0].now_bytes))


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
    held = [_held_at(moments, pieces) for pieces in rows]
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
        before = _by_line(first, device, lines)
        for spot, sizes in _by_line(second, device, lines).items():
            earlier = before.get(spot, [])
            held = sum(earlier), sum(sizes)
            line = lines.line(spot)
            found.append(Growth(device, line, *held, len(earlier), len(sizes)))
    grew = (each for each in found if each.more_bytes > 0)
    return tuple(sorted(grew, key=lambda each: -each.more_bytes))


def _by_line(
    snapshot: Snapshot, device: int, lines: RecordedLines
) -> Mapping[Spot | None, list[int]]:
    """The sizes of what is in use; where a block has no stack, that of its request."""
    taken = {
        entry["addr"]: lines.spot(entry.get("frames"))
        for entry in snapshot.trace_of(device)
        if entry["action"] == "alloc"
    }
    held: defaultdict[Spot | None, list[int]] = defaultdict(list)
    for address, block in _used_blocks(snapshot.segments_of(device)).items():
        spot = lines.spot(block["frames"]) or taken.get(address)
        held[spot].append(block["size"])
    return held
