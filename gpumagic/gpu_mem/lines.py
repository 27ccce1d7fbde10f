"""Records each allocation of a cell: by line, from step to step, and at the peak.

A failure to record is a remark: the cell runs as it would have done.

Names are known only afterwards. So a piece that was in use at the peak has the name
that holds it in the end, and one that was given back since has the line that took it.
"""

from __future__ import annotations

import ast
import contextlib
import linecache
from collections import Counter, defaultdict
from itertools import accumulate, groupby, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from gpumagic.devices.simulated import simulated_box
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.gpu_mem.records import AtPeak, BlockState, Course, LineUse
from gpumagic.report.places import Places, line_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpumagic.devices.memory_history import (
        MemoryEvent,
        MemoryRecorder,
        MemoryTrace,
        Spot,
    )
    from gpumagic.devices.protocols import Runtime
    from gpumagic.gpu_mem.records import Segment
    from gpumagic.report.places import CodeLine

    InCell = Callable[[str], bool]
    Events = Sequence[MemoryEvent]
    Piece = tuple[str, int]  # memory in use in the end: the first of its names, bytes

_RUN_AGAIN = "run the cell again to see its lines and its exact peak"
_UNKNOWN = ("", "??", "<unknown>")
_MOST_STRETCHES = 240


class Recording:
    """Records what runs between two calls; a failure of it is a remark."""

    def __init__(self) -> None:
        self.trace: MemoryTrace | None = None  # what was seen, once it has ended
        self.remarks: tuple[str, ...] = ()  # why not, in sentences
        self._recorder: MemoryRecorder | None = None

    def start(self, runtime: Runtime) -> None:
        """Record from now on, if that can be done."""
        recorder = recorder_for(runtime)
        if isinstance(recorder, str):
            self.remarks += (recorder,)
            return
        with self._or_a_remark():
            recorder.start()
            self._recorder = recorder

    def stop(self) -> None:
        """End it; everything is as it was before."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            with self._or_a_remark():
                self.trace = recorder.stop()
                self.remarks += self.trace.remarks

    def forget(self) -> None:
        """What was recorded is of another device than the cell has used in the end."""
        if self.trace is not None:
            self.trace = None
            self.remarks += (f"the cell has changed devices; {_RUN_AGAIN}",)

    @contextlib.contextmanager
    def _or_a_remark(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as problem:  # the device is broken
            self.remarks += (f"allocations could not be recorded: {problem}",)


def recorder_for(runtime: Runtime) -> MemoryRecorder | str:
    """A recorder for what is going to run, not started yet; or why there is none.

    Recording starts no device and imports nothing, so that a device which the cell
    starts itself is not recorded.
    """
    torch = loaded_torch()
    if torch is not None and runtime.simulated:
        from gpumagic.simulator.observing import MemoryWatch

        return MemoryWatch(simulated_box())  # type: ignore[arg-type]
    if torch is None or runtime.kind == "cpu" or not runtime.started():
        return (
            f"nothing was recorded: no GPU was in use as the cell began; {_RUN_AGAIN}"
        )
    from gpumagic.devices.memory_history import CudaHistory, why_no_history

    why_not = why_no_history(torch)
    if runtime.kind != "cuda":
        why_not = f"torch records none on {runtime.kind}"
    if why_not is not None:
        return f"allocations cannot be recorded: {why_not}"
    return CudaHistory(torch, places_beside(torch))


class StackPlaces(Places):
    """`Places` for which no file is the user's that is not Python's.

    A recording that the user has switched on has frames of C++ as well, unless they
    have said `stacks="python"`: those of torch, and of the interpreter, come first.
    """

    def _judge(self, filename: str) -> bool:
        name = filename.rpartition("/")[2]
        # A cell, a file, or a script that is called as a program is.
        is_python = name.startswith("<") or name.endswith(".py") or "." not in name
        verdict = name not in _UNKNOWN and is_python and super()._judge(filename)
        self.users[filename] = verdict
        return verdict


def places_beside(torch: Any) -> StackPlaces:
    """What finds the user's lines."""
    return StackPlaces(tuple(map(str, getattr(torch, "__path__", ()))))


# ----------------------------------------------------------------------------- by line


def lines_of(device: int, events: Events, in_cell: InCell) -> tuple[LineUse, ...]:
    """A row for each line: those of the cell first, what has no line last."""
    sums: defaultdict[Spot | None, Counter[str]] = defaultdict(Counter)
    in_backward = {event.spot for event in events if event.backward and event.taken}
    for event in events:
        done = "allocated_bytes" if event.taken else "freed_bytes"
        sums[event.spot][done] += event.nbytes
    for event in alive_after(events, peak_of(_levels(events, 0))):
        sums[event.spot]["at_peak_bytes"] += event.nbytes
    for event in alive_after(events, len(events)):
        sums[event.spot]["left_bytes"] += event.nbytes
    growing = set(_growing(events))

    def place(spot: Spot | None) -> tuple[bool, bool, str, int]:
        if spot is None:
            return True, True, "", 0
        return False, not in_cell(spot.file), spot.file, spot.line or 0

    return tuple(
        LineUse(
            _line(spot),
            _number(spot, in_cell),
            device,
            spot in in_backward,
            spot in growing,
            **its,
        )
        for spot, its in sorted(sums.items(), key=lambda each: place(each[0]))
    )


def _growing(events: Events) -> Iterator[Spot]:
    """The lines of which more stays with each pass of a loop.

    A pass ends where another line goes on; of a line that is alone in its loop each
    piece is a pass. What is kept from the first pass on, or replaced in each, is no
    growth: more has to stay of both halves of the passes, besides the last one.
    """
    passes: Counter[Spot | None] = Counter()
    pieces: Counter[Spot | None] = Counter()
    at: dict[int, tuple[int, int]] = {}  # by address: of which pass, and which piece
    for spot, its in groupby(events, key=attrgetter("spot")):
        passes[spot] += 1
        for event in its:
            pieces[spot] += event.taken
            at[event.address] = passes[spot], pieces[spot]
    left: defaultdict[Spot | None, list[tuple[int, int]]] = defaultdict(list)
    for event in alive_after(events, len(events)):
        left[event.spot].append(at[event.address])
    for spot, places in left.items():
        loop = _loop_of(spot) if spot and len(places) > 1 else None
        if spot is None or loop is None:
            continue
        alone = {(spot.file, number) for number in loop} & passes.keys() == {spot}
        by_piece = alone and passes[spot] == 1
        count = pieces[spot] if by_piece else passes[spot]
        of = {place[by_piece] for place in places}
        late = any(count / 2 < number <= count - (count > 2) for number in of)
        # Two passes outside of a loop may be two calls.
        if min(of) <= count / 2 and late and (loop or count > 2):
            yield spot


def _loop_of(spot: Spot) -> range | None:
    """The lines of the loop that a line is in, none outside of one.

    It is None in a constructor, which makes each part once, however many there are.
    """
    loop = range(0)
    try:
        tree = ast.parse("".join(linecache.getlines(spot.file)))
    except (SyntaxError, ValueError):  # its source is gone, or is no Python
        return loop
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While, ast.FunctionDef)):
            lines = range(node.body[0].lineno, (node.end_lineno or 0) + 1)
            inside = spot.line in lines
            if inside and not isinstance(node, ast.FunctionDef):
                loop = lines
            elif inside and getattr(node, "name", "") == "__init__":
                return None
    return loop


def _line(spot: Spot | None) -> CodeLine | None:
    return None if spot is None else line_in(spot.file, spot.line)


def _number(spot: Spot | None, in_cell: InCell) -> int | None:
    return spot.line if spot is not None and in_cell(spot.file) else None


def _levels(events: Events, allocated_bytes: int) -> list[int]:
    """How much was in use before the first event, and after each."""
    changes = (each.nbytes if each.taken else -each.nbytes for each in events)
    return list(accumulate(changes, initial=allocated_bytes))


def peak_of(levels: Sequence[int]) -> int:
    """After how many events it was most, for the first time."""
    return levels.index(max(levels))


def alive_after(events: Events, count: int) -> tuple[MemoryEvent, ...]:
    """Those of the first events that took what was still there after all of them."""
    alive: dict[int, MemoryEvent] = {}
    for event in events[:count]:
        if event.taken:
            alive[event.address] = event
        else:
            alive.pop(event.address, None)
    return tuple(alive.values())


# -------------------------------------------------------------------- from step to step


def pieces_of(segments: Iterable[Segment], device: int) -> dict[int, Piece]:
    """By address, the blocks of a device that are in use and have names."""
    return {
        segment.address + block.offset_bytes: (block.names[0], block.nbytes)
        for segment in segments
        if segment.device == device
        for block in segment.blocks
        if block.names and block.state is BlockState.ALLOCATED
    }


def course_of(
    device: int,
    events: Events,
    *,
    before_bytes: int,
    in_cell: InCell,
    pieces: Mapping[int, Piece],
) -> Course:
    """The course of one device."""
    levels = _levels(events, before_bytes)
    step = peak_of(levels)
    spot = events[step - 1].spot if step else None
    first, steps = levels[:1], levels[1:]
    count = min(len(steps), _MOST_STRETCHES)
    cuts = [number * len(steps) // max(count, 1) for number in range(count + 1)]
    parts = [first, *(steps[start:stop] for start, stop in pairwise(cuts))]
    return Course(
        device=device,
        steps=len(events),
        lowest_bytes=tuple(map(min, parts)),
        highest_bytes=tuple(map(max, parts)),
        peak_bytes=levels[step],
        peak_step=step,
        peak_line=_line(spot),
        peak_number=_number(spot, in_cell),
        at_peak=tuple(_at_peak(events, step, levels[step], pieces, in_cell)),
    )


def _at_peak(
    events: Events,
    step: int,
    peak_bytes: int,
    pieces: Mapping[int, Piece],
    in_cell: InCell,
) -> Iterator[AtPeak]:
    """The owners with what they had, the largest first; they come to the peak."""
    sums: Counter[tuple[str, Spot | None]] = Counter()
    later = {event.address for event in events[step:]}
    for event in alive_after(events, step):
        piece = None if event.address in later else pieces.get(event.address)
        owner = ("", event.spot) if piece is None else (piece[0], None)
        sums[owner] += event.nbytes
    before = peak_bytes - sums.total()
    moved = {event.address for event in events}
    named: Counter[str] = Counter()
    for address, (name, nbytes) in pieces.items():
        if address not in moved:
            named[name] += nbytes
    for name, nbytes in named.most_common():
        # Of what was there before only that can be named which is there in the end.
        sums[name, None] += min(nbytes, before)
        before -= min(nbytes, before)
    told = [
        AtPeak(name, nbytes, _line(spot), _number(spot, in_cell))
        for (name, spot), nbytes in sums.items()
    ]
    told.append(AtPeak("", before, from_before=True))
    yield from sorted(filter(lambda each: each.nbytes, told), key=lambda e: -e.nbytes)
