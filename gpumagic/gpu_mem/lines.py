"""Records each allocation of a cell: by line, from step to step, and at the peak.

A failure to record is a remark: the cell runs as it would have done.

Names are known only afterwards. So a piece that was in use at the peak has the name
that holds it in the end, and one that was given back since has the line that took it.
"""

from __future__ import annotations

import ast
import linecache
from collections import Counter, defaultdict
from functools import partial
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, Any

from gpumagic.devices.memory_history import (
    CudaHistory,
    MemoryTrace,
    Spot,
    why_no_history,
)
from gpumagic.devices.simulated import simulated_box
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.gpu_mem.records import BlockState, Course, LineUse
from gpumagic.report.places import Places, line_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpumagic.devices.memory_history import MemoryEvent, MemoryRecorder
    from gpumagic.devices.protocols import Runtime
    from gpumagic.gpu_mem.records import Segment

    InCell = Callable[[str], bool]
    Events = Sequence[MemoryEvent]
    Piece = tuple[str, int]  # memory in use in the end: the first of its names, bytes

RUN_AGAIN = "run the cell again to see its lines and its exact peak"
_FAILED = "allocations could not be recorded: {}"
_UNKNOWN = ("", "??", "<unknown>")
_NOWHERE = Spot("", 0)  # of what did not come from the user's code
_MOST_STRETCHES = 240


def start_recording(runtime: Runtime) -> partial[MemoryTrace]:
    """Record from now on, if that can be done; the end of it tells what was seen."""
    recorder = recorder_for(runtime)
    if isinstance(recorder, str):
        return partial(_without, recorder)
    try:
        recorder.start()
    except RuntimeError as problem:  # the device is broken
        return partial(_without, _FAILED.format(problem))
    return partial(_stop, recorder)


def _stop(recorder: MemoryRecorder) -> MemoryTrace:
    """Everything is as it was before."""
    try:
        return recorder.stop()
    except RuntimeError as problem:
        return _without(_FAILED.format(problem))


def _without(remark: str) -> MemoryTrace:
    return MemoryTrace(partial=True, remarks=(remark,))


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
        return f"nothing was recorded: no GPU was in use as the cell began; {RUN_AGAIN}"
    why_not = why_no_history(torch)
    if runtime.kind != "cuda":
        why_not = f"torch records none on {runtime.kind}"
    if why_not:
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
    sums: defaultdict[Spot, Counter[str]] = defaultdict(Counter)
    in_backward = {_spot(each) for each in events if each.backward and each.taken}
    for event in events:
        done = "allocated_bytes" if event.taken else "freed_bytes"
        sums[_spot(event)][done] += event.nbytes
    for event in alive_after(events, peak_of(_levels(events, 0))):
        sums[_spot(event)]["at_peak_bytes"] += event.nbytes
    for event in alive_after(events, len(events)):
        sums[_spot(event)]["left_bytes"] += event.nbytes
    growing = set(_growing(events))

    def order(spot: Spot) -> tuple[bool, bool, str, int]:
        return not spot.file, not in_cell(spot.file), spot.file, spot.line or 0

    rows = []
    for spot in sorted(sums, key=order):
        number, source = 0, "no line of the cell"
        if spot.file:
            source = line_in(spot.file, spot.line).source or "its source is gone"
        if in_cell(spot.file):
            number = spot.line or 0
        rows.append(
            LineUse(
                _place(spot, in_cell),
                number,
                source,
                device,
                spot in in_backward,
                spot in growing,
                **sums[spot],
            )
        )
    return tuple(rows)


def _spot(event: MemoryEvent) -> Spot:
    return event.spot or _NOWHERE


def _place(spot: Spot, in_cell: InCell) -> str:
    """A line in words: `line 3` of the cell, `train.py, line 40`, "" for none."""
    if spot.line and in_cell(spot.file):
        return f"line {spot.line}"
    return line_in(spot.file, spot.line).where if spot.file else ""


def _growing(events: Events) -> Iterator[Spot]:
    """The lines of which more stays with each pass of a loop.

    A pass ends where another line goes on; of a line that is alone in its loop each
    piece is a pass. What is kept from the first pass on, or replaced in each, is no
    growth: more has to stay of both halves of the passes, besides the last one.
    """
    passes: Counter[Spot] = Counter()
    pieces: Counter[Spot] = Counter()
    at: dict[int, tuple[int, int]] = {}  # by address: of which pass, and which piece
    for spot, its in groupby(events, key=_spot):
        passes[spot] += 1
        for event in its:
            pieces[spot] += event.taken
            at[event.address] = passes[spot], pieces[spot]
    left: defaultdict[Spot, list[tuple[int, int]]] = defaultdict(list)
    for event in alive_after(events, len(events)):
        left[_spot(event)].append(at[event.address])
    for spot, places in left.items():
        if not spot.file or len(places) == 1 or (loop := _loop_of(spot)) is None:
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
    place = ""
    if step:
        place = _place(_spot(events[step - 1]), in_cell)
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
        peak_place=place,
        at_peak=_at_peak(events, step, levels[step], pieces, in_cell),
    )


def _at_peak(
    events: Events,
    step: int,
    peak_bytes: int,
    pieces: Mapping[int, Piece],
    in_cell: InCell,
) -> tuple[tuple[str, int], ...]:
    """The owners with what they had, the largest first; they come to the peak."""
    sums: Counter[str] = Counter()
    later = {event.address for event in events[step:]}
    for event in alive_after(events, step):
        place = _place(_spot(event), in_cell)
        owner = f"from {place}" if place else "without a name"
        if event.address in pieces and event.address not in later:
            owner = f"in {pieces[event.address][0]}"
        sums[owner] += event.nbytes
    before = peak_bytes - sums.total()
    moved = {event.address for event in events}
    named: Counter[str] = Counter()
    for address, (name, nbytes) in pieces.items():
        if address not in moved:
            named[name] += nbytes
    for name, nbytes in named.most_common():
        # Of what was there before only that can be named which is there in the end.
        sums[f"in {name}"] += min(nbytes, before)
        before -= min(nbytes, before)
    sums["there before"] = before
    return tuple((owner, n) for owner, n in sums.most_common() if n)
