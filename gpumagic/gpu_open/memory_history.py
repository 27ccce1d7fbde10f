"""Reads the history of a device entry by entry, and adds it up by line of code.

It rarely begins with the first allocation. What was in use before is what is freed
without having been taken, and what is there in the end without having been taken; so
each moment is known from the first entry on.

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
from typing import TYPE_CHECKING, Any, TypeAlias

from gpumagic.devices.memory_history import Spot
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_mem.segments import segments_of
from gpumagic.gpu_open import records
from gpumagic.report.places import CodeLine, line_in, name_of
from gpumagic.simulator.allocator_blocks import INACTIVE
from gpumagic.simulator.allocator_settings import AllocatorSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpumagic.gpu_open.snapshot_file import Snapshot

Entry: TypeAlias = "Mapping[str, Any]"

GREW, SHRANK = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")
NEVER, AT_ONCE = 1 << 62, -1  # moments: what is there in the end is never given back
_EVENTS = ("alloc", "free_requested", "oom")
_USED = "active_allocated"
_MOST_STRETCHES = 240
_MOST_DRAWN = 12


# ---------------------------------------------------------------- entry by entry


@dataclass(slots=True)
class Piece:
    """Memory that somebody had; moments are places among the entries."""

    address: int
    nbytes: int  # what was asked for
    stream: int
    frames: Any = None  # of the request, where it was recorded
    began: int = -1  # when it was taken; -1 is before the recording
    ended: int = NEVER  # when it was given back
    free: int = AT_ONCE  # when it was free again
    block: Entry = field(default_factory=dict)  # where it lies in the end
    held_bytes: int = 0  # as the allocator rounds
    spot: Spot | None = None  # the line that took it, as far as it is known


class History:
    """What one device did, and whether it leads to what is there in the end."""

    def __init__(self, trace: Sequence[Entry], final: Sequence[Entry]) -> None:
        self.pieces: list[Piece] = []  # all that was ever in use
        self.is_cut = False  # whether entries are missing or contradict the end
        # Before each entry: how many events there were, which are what is taken, given
        # back or refused; and what was taken from the driver.
        self.events = [0, *accumulate(each["action"] in _EVENTS for each in trace)]
        self.reserved = [0]
        self._trace = trace
        self._live: dict[int, Piece] = {}
        self._awaited: dict[int, Piece] = {}  # given back, and not free as yet
        self._met: set[int] = set()
        for at, entry in enumerate(trace):
            self._follow(at, entry)
        total = sum(each["total_size"] for each in final)
        before = total - self.reserved[-1]
        self.reserved = [before + each for each in self.reserved]
        self.is_cut |= min(self.reserved) < 0
        self._end_as(final)

    def _follow(self, at: int, entry: Entry) -> None:
        action, size = entry["action"], entry["size"]
        grew = (action in GREW) - (action in SHRANK)
        self.reserved.append(self.reserved[-1] + grew * size)
        if action == "alloc":
            self._take(at, entry)
        elif action == "free_requested":
            self._give_back(at, entry)
        elif action == "free_completed":
            address = entry["addr"]
            if address not in self._met:
                piece = self._was_before(address, size, entry["stream"])
                self._awaited[address], piece.ended = piece, -1
            if waited := self._awaited.pop(address, None):
                waited.free = at

    def _take(self, at: int, entry: Entry) -> None:
        address = entry["addr"]
        if gone := self._live.pop(address, None):  # that it was given back is missing
            gone.ended, self.is_cut = at, True
        elif waited := self._awaited.pop(address, None):  # its completion is missing
            waited.free = at - 1
        piece = Piece(address, entry["size"], entry["stream"], entry.get("frames"), at)
        self._live[address] = piece
        self._met.add(address)
        self.pieces.append(piece)

    def _give_back(self, at: int, entry: Entry) -> None:
        address = entry["addr"]
        if address not in self._met:
            self._live[address] = self._was_before(
                address, entry["size"], entry["stream"]
            )
        piece = self._live.pop(address, None)
        if not piece:
            self.is_cut = True
            return
        piece.ended = at
        following = next(iter(self._trace[at + 1 : at + 2]), {})
        done = following.get("action"), following.get("addr")
        if done != ("free_completed", address):
            self._awaited[address], piece.free = piece, NEVER

    def _end_as(self, final: Sequence[Entry]) -> None:
        """Compare what it leads to with what is there, and add what was before."""
        there = set()
        for segment in final:
            for block in segment["blocks"]:
                address, is_used = block["address"], block["state"] == _USED
                if block["state"] == INACTIVE:
                    continue
                there.add(address)
                if address not in self._met:
                    size = block["requested_size"] or block["size"]
                    piece = self._was_before(address, size, segment["stream"])
                    if not is_used:
                        piece.ended, piece.free = -1, NEVER
                elif known := (self._live if is_used else self._awaited).get(address):
                    piece = known
                    told = block["requested_size"]
                    self.is_cut |= told not in (None, known.nbytes) and is_used
                else:
                    self.is_cut = True
                    continue
                if is_used:
                    piece.block = block
        self.is_cut |= not there >= self._live.keys()

    def _was_before(self, address: int, nbytes: int, stream: int) -> Piece:
        piece = Piece(address, nbytes, stream)
        self._met.add(address)
        self.pieces.append(piece)
        return piece


# ---------------------------------------------------------------- from event to event


def device_of(snapshot: Snapshot, device: int) -> records.SnapshotOfDevice:
    """All that a snapshot tells of one device."""
    entries, trace = snapshot.segments_of(device), snapshot.trace_of(device)
    lines = RecordedLines(_stacks_of(entries, trace))
    segments = segments_of(entries, lines.line_of)
    history = History(trace, entries)
    pieces = _measured(history, lines, snapshot.settings)
    events = [0, *(n for n, e in enumerate(trace, 1) if e["action"] in _EVENTS)]
    levels = _held_at(events, pieces)
    count, peak_event = len(events) - 1, levels.index(max(levels))
    highest = _highest(levels)

    def failure(at: int) -> records.Failure:
        event, entry = history.events[at + 1], trace[at]
        asked, free = entry["size"], entry.get("device_free")
        line = lines.line_of(entry.get("frames"))
        return records.Failure(event, asked, free, levels[event], line)

    failed = [at for at, entry in enumerate(trace) if entry["action"] == "oom"]
    moments = events[peak_event], [events[each] for each in highest]
    return records.SnapshotOfDevice(
        device=device,
        allocated_bytes=sum(each.allocated_bytes for each in segments),
        reserved_bytes=history.reserved[-1],
        segments=segments,
        events=count,
        complete=bool(trace) and levels[0] == 0 and history.reserved[0] <= 0,
        fits_together=not history.is_cut,
        peak_bytes=levels[peak_event],
        peak_event=peak_event,
        peak_reserved_bytes=max(history.reserved),
        lines=_by_line(pieces, *moments, lines),
        course_bytes=tuple(levels[each] for each in highest),
        failure=next(map(failure, failed[-1:]), None),
    )


def _measured(
    history: History, lines: RecordedLines, settings: str | None
) -> list[Piece]:
    """All that was in use while it was recorded, with its size and its line."""
    try:
        rule = AllocatorSettings.parse(settings or "")
    except GpuMagicError:  # of a torch that has other words
        rule = AllocatorSettings()
    rounded = functools.cache(lambda nbytes: rule.rounded_bytes(max(nbytes, 1)))
    pieces = [each for each in history.pieces if each.ended != -1]
    for piece in pieces:
        its = lines.spot(piece.frames)
        piece.spot = its or lines.spot(piece.block.get("frames"))
        piece.held_bytes = piece.block.get("size") or rounded(piece.nbytes)
    return pieces


def _stacks_of(segments: Iterable[Entry], trace: Iterable[Entry]) -> Iterator[Any]:
    """All stacks that lines may be wanted of."""
    blocks = chain.from_iterable(segment["blocks"] for segment in segments)
    return filter(None, (each.get("frames") for each in chain(blocks, trace)))


# ------------------------------------------------------------------- line by line


def _by_line(
    pieces: Iterable[Piece],
    peak_at: int,
    moments: Sequence[int],
    lines: RecordedLines,
) -> tuple[records.LineMemory, ...]:
    """Each line with what it held: what was highest at the peak first."""
    owned: defaultdict[tuple[Spot | None, bool], list[Piece]] = defaultdict(list)
    for each in pieces:
        # Without a history nothing is known to be from before it.
        owned[each.spot, each.began < 0 and bool(moments)].append(each)
    courses = {key: _held_at(moments, its) for key, its in owned.items()}
    largest = sorted(courses, key=lambda key: -max(courses[key], default=0))
    drawn = {key for key in largest[:_MOST_DRAWN] if any(courses[key])}
    found = [
        records.LineMemory(
            lines.line(spot),
            before,
            now_bytes=sum(each.held_bytes for each in its if each.ended == NEVER),
            at_peak_bytes=_held_at([peak_at], its)[0],
            taken=len(its) * (not before),
            given_back=sum(each.ended < NEVER for each in its),
            course_bytes=tuple(courses[spot, before] * ((spot, before) in drawn)),
        )
        for (spot, before), its in owned.items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.at_peak_bytes, -each.now_bytes)))


def _highest(levels: Sequence[int]) -> list[int]:
    """Of each of some stretches the moment when most was in use."""
    stretches = min(_MOST_STRETCHES, len(levels) - 1)
    bounds = [len(levels) * n // max(stretches, 1) for n in range(stretches + 1)]
    return [max(range(*each), key=levels.__getitem__) for each in pairwise(bounds)]


def _held_at(moments: Sequence[int], pieces: Iterable[Piece]) -> list[int]:
    """How much of these was in use after so many entries each."""
    changes = [0] * (len(moments) + 1)
    for each in pieces:
        changes[bisect_left(moments, each.began + 1)] += each.held_bytes
        changes[bisect_left(moments, each.ended + 1)] -= each.held_bytes
    return list(accumulate(changes))[:-1]


# -------------------------------------------------------------------- what grew


def grown(first: Snapshot, second: Snapshot) -> tuple[records.Growth, ...]:
    """By line, what the second holds more than the first; most first.

    What matters is how much a line holds: where its memory lies changes all the time.
    """
    both = first, second
    every = ((e.segments, chain.from_iterable(e.device_traces)) for e in both)
    lines = RecordedLines(chain.from_iterable(_stacks_of(*each) for each in every))
    before, after = (_in_use(each, lines) for each in both)
    found = [
        records.Growth(
            lines.line(spot),
            sum(before[spot]),
            sum(sizes),
            len(before[spot]),
            len(sizes),
        )
        for spot, sizes in after.items()
    ]
    grew = (each for each in found if each.more_bytes > 0)
    return tuple(sorted(grew, key=lambda each: -each.more_bytes))


def _in_use(
    snapshot: Snapshot, lines: RecordedLines
) -> defaultdict[Spot | None, list[int]]:
    """The sizes of what is in use; where a block has no stack, that of its request."""
    taken = {
        (device, entry["addr"]): lines.spot(entry.get("frames"))
        for device, trace in enumerate(snapshot.device_traces)
        for entry in trace
        if entry["action"] == "alloc"
    }
    held: defaultdict[Spot | None, list[int]] = defaultdict(list)
    for segment in snapshot.segments:
        for block in segment["blocks"]:
            if block["state"] == _USED:
                place = segment["device"], block["address"]
                spot = lines.spot(block["frames"]) or taken.get(place)
                held[spot].append(block["size"])
    return held


# ------------------------------------------------------- the user's lines in stacks

_LONGEST_NAME = 80
# torch, and what Python brings along, wherever they are installed.
_FOUNDATION = re.compile(
    r"""
      (?:^|/)lib(?:64)?/python\d(?!.*/(?:site|dist)-packages/)
    | (?:^|/)python[\d.]*(?:\.zip|/lib)/(?!.*site-packages/)  # C:/Python311/Lib/
    | /(?:\w*conda\d?|envs/[^/]+)/lib/[^/]+\.py$   # C:/miniconda3/Lib/random.py
    | (?:^|/)(?:site|dist)-packages/torch/ | (?:^|/)gpumagic/
    | (?:^|/)torch/(?:                             # built from its sources
        _\w+ | amp | ao | autograd | backends | compiler | cuda | distributed | fft
        | functional\.py | fx | jit | library\.py | linalg | multiprocessing | nested
        | nn | optim | overrides\.py | profiler | random\.py | serialization\.py
        | sparse | storage\.py | utils | xpu
    )(?:/|\.py$|$)
    | importlib/_bootstrap | (?:^|/)fx_generated_[^/]*\.py$ | torchinductor_
    | ^<(?!ipython-input|stdin)                    # <frozen ...>, <string>, fx's own
    """,
    re.VERBOSE | re.IGNORECASE,
)
_INSTALLED = re.compile(r"(?:^|/)(?:site|dist)-packages/", re.IGNORECASE)
# Frames of C++ have no file, or a library; a script may have no ending.
_PYTHON = re.compile(r"(?:\.py|>)$|(?:^|/)(?!\?\?$)[^./]+$")
# The engine runs a pass on threads of its own, without a frame of Python.
_BACKWARD, _ENGINE = Spot("<backward>", None), "torch::autograd::Engine::"


class RecordedLines:
    """The user's innermost line of each stack, named so that no two look alike.

    A stack without a line of the user's has the innermost of the library that called
    torch: programs may be installed. Without that, one of C++ frames may still tell
    that it was the backward pass. Stacks are kept, and told apart by identity.
    """

    def __init__(self, stacks: Iterable[Sequence[Mapping[str, Any]]]) -> None:
        self._whose = functools.cache(_whose)
        self._kept = {id(stack): stack for stack in stacks}
        self._spots = {key: self._spot_in(each) for key, each in self._kept.items()}
        files_of: defaultdict[str, set[str]] = defaultdict(set)
        known = set(filter(None, self._spots.values()))
        for spot in known:
            files_of[_last(spot.file, 1)].add(spot.file)
        # Files of one name are told apart by their folders.
        self._lines: dict[Spot | None, CodeLine] = {
            spot: _line(spot, min(len(files_of[_last(spot.file, 1)]), 2))
            for spot in known
        }

    def spot(self, stack: Sequence[Mapping[str, Any]] | None) -> Spot | None:
        """File and line, as they were recorded; None where none is the user's."""
        return self._spots.get(id(stack))

    def line(self, spot: Spot | None) -> CodeLine | None:
        """A spot in words."""
        return self._lines.get(spot)

    def line_of(self, stack: Sequence[Mapping[str, Any]] | None) -> CodeLine | None:
        """The line of a stack in words."""
        return self.line(self.spot(stack))

    def _spot_in(self, stack: Sequence[Mapping[str, Any]]) -> Spot | None:
        try:
            return self._first_of(stack)
        except (KeyError, TypeError, AttributeError):  # no frames of torch's
            return None

    def _first_of(self, stack: Sequence[Mapping[str, Any]]) -> Spot | None:
        for whose in ("user", "library"):
            for frame in stack:
                file, line = frame["filename"], frame.get("line")
                if self._whose(file) == whose:
                    return Spot(file, line if type(line) is int else None)
        names = (str(frame.get("name"))[:_LONGEST_NAME] for frame in stack)
        return _BACKWARD if any(_ENGINE in name for name in names) else None


def _whose(filename: str) -> str:
    """By whom a file is: user, library, or "" for torch and Python."""
    path = filename.replace("\\", "/")
    if not _PYTHON.search(path) or _FOUNDATION.search(path):
        return ""
    return "library" if _INSTALLED.search(path) else "user"


def _line(spot: Spot, parts: int) -> CodeLine:
    if spot is _BACKWARD:
        return CodeLine("the backward pass")
    if name_of(spot.file).startswith("In ["):  # a cell of the notebook that asks
        return line_in(spot.file, spot.line)
    name = _last(spot.file, parts)
    if len(name) > _LONGEST_NAME:
        name = f"...{name[-_LONGEST_NAME:]}"
    return CodeLine(name if spot.line is None else f"{name}, line {spot.line}")


def _last(file: str, parts: int) -> str:
    return "/".join(re.split(r"[\\/]", file)[-parts:])
