"""Follows a recorded history: what was in use from when to when.

The history of a device rarely begins with its first allocation. What was in use before
is what is freed without having been taken, and what is there in the end without having
been taken; so each moment is known from the first entry on.

Memory is in use until it is given back, also where another stream still reads it.
Sizes are as the allocator rounds: exact for what is there in the end, by its rule for
what has been given back, where the allocator may have handed out up to 1 MiB more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from gpumagic.errors import GpuMagicError
from gpumagic.simulator.allocator_settings import AllocatorSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpumagic.devices.memory_events import Spot
    from gpumagic.gpu_open.recorded_lines import RecordedLines
    from gpumagic.gpu_open.snapshot_file import Snapshot

Entry: TypeAlias = "Mapping[str, Any]"

GREW, SHRANK = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")
_ROUNDUP = re.compile(r"roundup_power2_divisions:(?:\[[^\]]*\]|\d+)")


class Piece(NamedTuple):
    """Memory that somebody had from one event to another."""

    address: int  # where
    nbytes: int  # as the allocator rounds
    spot: Spot | None  # the line that took it, as far as it is known
    began: int  # the event that took it, from 1 on; 0 is before the recording
    ended: int | None  # the event that gave it back; None if it is there in the end


@dataclass
class History:
    """What one device did, from event to event.

    An event is an allocation, its being given back, or an error for want of memory.
    """

    pieces: list[Piece] = field(default_factory=list)  # all that was ever in use
    events: int = 0  # how many there are
    # whether what happened leads to what is there in the end
    fits_together: bool = True
    reserved_change_bytes: int = 0  # what was taken from the driver less what went back
    reserved_highest_bytes: int = 0  # the most of that at any time, and at least 0
    reserved_lowest_bytes: int = 0  # the least, and at most 0
    # the last error, with the number of its event
    failure: tuple[int, Entry] | None = None

    @property
    def levels(self) -> list[int]:
        """How much was in use after each event, and before the first of them."""
        changes = [0] * (self.events + 1)
        for piece in self.pieces:
            changes[piece.began] += piece.nbytes
            if piece.ended is not None:
                changes[piece.ended] -= piece.nbytes
        return list(accumulate(changes))


def trace_of(snapshot: Snapshot, device: int) -> Sequence[Entry]:
    """The history of a device; empty where there is none."""
    traces = snapshot.device_traces
    return traces[device] if device < len(traces) else ()


def stacks_of(segments: Iterable[Entry], trace: Iterable[Entry]) -> Iterator[Any]:
    """All stacks that lines may be wanted of."""
    for segment in segments:
        for block in segment["blocks"]:
            yield block["frames"]
    for entry in trace:
        frames = entry.get("frames")
        if frames:
            yield frames


def history_of(snapshot: Snapshot, device: int, lines: RecordedLines) -> History:
    """What happened on a device while it was recorded."""
    blocks = {
        block["address"]: block
        for segment in snapshot.segments
        if segment["device"] == device
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    follower = _Follower(lines, snapshot.settings)
    follower.follow(trace_of(snapshot, device))
    follower.compare(blocks)
    return follower.history


class _Follower:
    """Goes through a trace once, and then compares what it leads to."""

    def __init__(self, lines: RecordedLines, settings: str | None) -> None:
        self.history = History()
        self._lines = lines
        self._rounded = _Rounding(settings)
        self._live: dict[int, tuple[int, Entry]] = {}
        self._met: set[int] = set()

    def follow(self, trace: Sequence[Entry]) -> None:
        given_back = _given_back_by(trace)
        for entry in trace:
            action = entry["action"]
            if action == "alloc":
                self._take(entry)
            elif action == given_back:
                self._give_back(entry)
            elif action in GREW:
                self._reserve(entry["size"])
            elif action in SHRANK:
                self._reserve(-entry["size"])
            elif action == "oom":
                self.history.events += 1
                self.history.failure = self.history.events, entry

    def compare(self, blocks: Mapping[int, Entry]) -> None:
        """End with what is there, and see whether it is what should be."""
        for address, (began, entry) in self._live.items():
            block = blocks.get(address)
            if block is None or block["requested_size"] not in (None, entry["size"]):
                self.history.fits_together = False
            nbytes = self._rounded[entry["size"]] if block is None else block["size"]
            spot = self._lines.spot(entry.get("frames"))
            if spot is None and block is not None:
                spot = self._lines.spot(block["frames"])
            self._add(Piece(address, nbytes, spot, began, None))
        for address, block in blocks.items():
            if address not in self._met:
                spot = self._lines.spot(block["frames"])
                self._add(Piece(address, block["size"], spot, 0, None))
            elif address not in self._live:
                self.history.fits_together = False

    def _take(self, entry: Entry) -> None:
        self.history.events += 1
        address = entry["addr"]
        if address in self._live:  # its end is missing
            self.history.fits_together = False
            self._end(address)
        self._live[address] = self.history.events, entry
        self._met.add(address)

    def _give_back(self, entry: Entry) -> None:
        self.history.events += 1
        address = entry["addr"]
        if address in self._live:
            self._end(address)
        elif address in self._met:
            self.history.fits_together = False
        else:  # torch has no line here but that of the end
            nbytes = self._rounded[entry["size"]]
            self._add(Piece(address, nbytes, None, 0, self.history.events))
            self._met.add(address)

    def _end(self, address: int) -> None:
        began, entry = self._live.pop(address)
        nbytes = self._rounded[entry["size"]]
        spot = self._lines.spot(entry.get("frames"))
        self._add(Piece(address, nbytes, spot, began, self.history.events))

    def _add(self, piece: Piece) -> None:
        self.history.pieces.append(piece)

    def _reserve(self, change_bytes: int) -> None:
        now = self.history.reserved_change_bytes + change_bytes
        self.history.reserved_change_bytes = now
        if now > self.history.reserved_highest_bytes:
            self.history.reserved_highest_bytes = now
        elif now < self.history.reserved_lowest_bytes:
            self.history.reserved_lowest_bytes = now


def _given_back_by(trace: Sequence[Entry]) -> str:
    """Which action ends memory: where requests were not recorded, their completion.

    A completion alone is no sign of it, as its request may be older than the trace.
    """
    asked, done = "free_requested", "free_completed"
    if any(entry["action"] == asked for entry in trace):
        return asked
    taken: set[int] = set()
    for entry in trace:
        if entry["action"] == "alloc":
            taken.add(entry["addr"])
        elif entry["action"] == done and entry["addr"] in taken:
            return done
    return asked


class _Rounding(dict[int, int]):
    """What the allocator makes of a request, by its size."""

    def __init__(self, settings: str | None) -> None:
        super().__init__()
        found = _ROUNDUP.search("".join((settings or "").split()))
        try:
            self._rule = AllocatorSettings.parse(found[0] if found else "")
        except GpuMagicError:  # of a torch that has other words
            self._rule = AllocatorSettings()

    def __missing__(self, nbytes: int) -> int:
        rounded = self[nbytes] = self._rule.rounded_bytes(max(nbytes, 1))
        return rounded
