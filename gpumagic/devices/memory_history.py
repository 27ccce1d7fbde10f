"""What CUDA's caching allocators do, by torch's own memory history, and for which line.

It is private to torch and one for the process: who switches it on or off does so for
everybody. So a user's own recording is only read, and ours is bounded, has Python
frames alone (C++ ones take minutes to be named) and leaves nothing switched on.

The engine runs a pass on threads of its own, without a Python frame. What happens
there belongs to the line that waits for it; it is told by the time.
"""

# ruff: noqa: SLF001 -- the module that looks inside torch's memory history

from __future__ import annotations

import bisect
import contextlib
import functools
import time
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gpumagic.devices.memory_counters import caching_is_off
from gpumagic.devices.torch_private import replaced
from gpumagic.report.places import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpumagic.report.places import PlaceMark, Places

# With frames an entry takes kilobytes of the host's memory, without them a tenth.
_MOST_WITH_LINES = 100_000
_MOST_WITHOUT = 500_000
_TAKEN, _GIVEN_BACK = "alloc", "free_requested"
_COMPILED = "torchinductor"  # in the names of files that the compiler has written
_STOPPED = "the cell has switched torch's memory history off, which recorded the lines"

_ENTRY = "_engine_run_backward"  # of torch.autograd, since torch 2.3
_CLOCKS_APART_US = 1000  # torch works out the time of an entry from a faster clock
_DEEPEST = 32  # passes within passes, as checkpoints make them


class Spot(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int | None


class MemoryEvent(NamedTuple):
    """A piece of memory that was taken, or given back."""

    taken: bool  # whether it was taken
    address: int  # where it lies: tells it from all others that are alive
    nbytes: int
    # the line that did it; None if it did not come from the user's code
    spot: Spot | None = None
    # whether a backward pass did it, which that line had started
    backward: bool = False


@dataclass(frozen=True)
class MemoryTrace:
    """What a recorder has seen."""

    # by device, in the order in which they happened
    events: Mapping[int, Sequence[MemoryEvent]] = field(default_factory=dict)
    # whether events are missing, since there was no room for more
    partial: bool = False
    lines: bool = False  # whether the events know their lines
    remarks: tuple[str, ...] = ()  # what a reader has to know of it, in sentences


class MemoryRecorder(Protocol):
    """Records between two calls; afterwards everything is as it was before."""

    def start(self) -> None:
        """Record from now on."""

    def stop(self) -> MemoryTrace:
        """End it, and tell what was seen; call it just once."""


def why_no_history(torch: Any) -> str | None:
    """Why nothing can be recorded now; None if it can."""
    names = ("_record_memory_history", "_snapshot")
    memory = getattr(torch.cuda, "memory", None)
    if not all(hasattr(memory, name) for name in names):
        return "this torch has no memory history"
    if not hasattr(torch._C, "_cuda_isHistoryEnabled"):
        return "this torch does not tell whether its memory history is in use"
    backend = torch.cuda.get_allocator_backend()
    if backend != "native":
        return f"the allocator {backend} keeps no history"
    if caching_is_off("cuda") and not torch.cuda.memory_reserved():
        return "without caching torch keeps no history"
    return None


class CudaHistory:
    """Records by torch's memory history; ask `why_no_history` first."""

    def __init__(
        self,
        torch: Any,
        places: Places | None,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self.reads_only = False
        self._torch = torch
        self._places = places
        self._now_us = now_us
        self._backward = BackwardCalls(torch, now_us)
        self._undo = contextlib.ExitStack()
        self._most = _MOST_WITHOUT if places is None else _MOST_WITH_LINES
        self._taken_over = False
        self._since_us = 0

    def start(self) -> None:
        """Record from now on."""
        self.reads_only = self._is_on()
        if self.reads_only:
            self._since_us = self._now_us()
        else:
            self._switch_on()
        if self._places is not None:
            self._undo.enter_context(self._backward.noted(self._places))

    def stop(self) -> MemoryTrace:
        """End it unless it is the user's, and tell what was seen."""
        until_us = self._now_us()
        self._undo.close()
        if not self._is_on():
            return MemoryTrace(partial=True, remarks=(_STOPPED,))
        memory, ours = self._torch.cuda.memory, not self.reads_only
        try:
            traces = memory._snapshot()["device_traces"]
        finally:
            if ours and not self._taken_over:
                memory._record_memory_history(enabled=None, stacks="python")
        events = (self._events_of(entries, until_us) for entries in traces)
        return MemoryTrace(
            events=dict(enumerate(events)),
            partial=ours and any(len(entries) >= self._most for entries in traces),
            lines=self._places is not None,
        )

    def _is_on(self) -> bool:
        return bool(self._torch._C._cuda_isHistoryEnabled())

    def _switch_on(self) -> None:
        memory = self._torch.cuda.memory
        memory._record_memory_history(
            enabled="all",
            # "alloc" would name the line that took it for what is given back, too.
            context=None if self._places is None else "all",
            stacks="python",
            max_entries=self._most,
        )
        self._undo.enter_context(
            replaced(memory, "_record_memory_history", self._noticed)
        )

    def _noticed(self, switch: Callable[..., Any]) -> Callable[..., Any]:
        """The user's own switching in the cell: from then on it is theirs."""

        def switch_of_the_user(*args: Any, **options: Any) -> Any:
            self._taken_over = True
            return switch(*args, **options)

        return switch_of_the_user

    def _events_of(
        self, entries: Iterable[Mapping[str, Any]], until_us: int
    ) -> Sequence[MemoryEvent]:
        """Those of the block; all that ours has recorded is of it."""
        if self.reads_only:
            since_us = self._since_us
            entries = (
                each
                for each in entries
                if since_us <= each.get("time_us", since_us) <= until_us
            )
        return events_of(entries, self._spot_of)

    def _spot_of(self, entry: Mapping[str, Any]) -> tuple[Spot | None, bool]:
        """The user's innermost line, or that of the backward pass at that time."""
        if self._places is None:
            return None, False
        if spot := users_spot(entry.get("frames") or (), self._places):
            return spot, False
        spot = self._backward.at(entry.get("time_us", 0))
        return spot, bool(spot)


def events_of(
    entries: Iterable[Mapping[str, Any]],
    spot_of: Callable[[Mapping[str, Any]], tuple[Spot | None, bool]],
) -> Sequence[MemoryEvent]:
    """What was taken and given back, from one list of torch's `device_traces`."""
    return [
        MemoryEvent(
            entry["action"] == _TAKEN, entry["addr"], entry["size"], *spot_of(entry)
        )
        for entry in entries
        if entry["action"] in (_TAKEN, _GIVEN_BACK)
    ]


def users_spot(frames: Iterable[Mapping[str, Any]], places: Places) -> Spot | None:
    """The innermost of torch's frames that is the user's."""
    for frame in frames:
        file = frame["filename"]
        if _COMPILED not in file and places.is_users(file):
            return Spot(file, frame["line"])
    return None


_began = attrgetter("began_us")


class _Pass(NamedTuple):
    began_us: int
    ended_us: int
    mark: PlaceMark | None


class BackwardCalls:
    """Notes the backward passes of a block."""

    def __init__(self, torch: Any, now_us: Callable[[], int]) -> None:
        self._torch = torch
        self._now_us = now_us
        self._passes: list[_Pass] = []
        self._ordered = False

    @contextlib.contextmanager
    def noted(self, places: Places) -> Iterator[None]:
        """Note those that are called during a block."""
        self._ordered = False

        def noting(run: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(run)
            def noted_run(*args: Any, **options: Any) -> Any:
                __tracebackhide__ = True
                mark, began_us = places.here(), self._now_us()
                try:
                    return run(*args, **options)
                finally:
                    self._passes.append(_Pass(began_us, self._now_us(), mark))

            return noted_run

        with replaced(self._torch.autograd, _ENTRY, noting):
            yield

    def at(self, time_us: int) -> Spot | None:
        """The line whose pass was running at a time; the innermost of nested ones."""
        passes = self._in_order()
        begun = bisect.bisect_right(passes, time_us, key=_began)

        def away(each: _Pass) -> tuple[int, int]:
            outside_us = max(each.began_us - time_us, time_us - each.ended_us, 0)
            return outside_us, -each.began_us

        near = passes[max(begun - _DEEPEST, 0) : begun + 1]
        found = min(near, key=away, default=None)
        if not found or not found.mark or away(found)[0] > _CLOCKS_APART_US:
            return None
        place = Place(*found.mark)
        return Spot(place.file, place.line)

    def _in_order(self) -> list[_Pass]:
        """By their beginning; they were noted by their end."""
        if not self._ordered:
            self._passes.sort(key=_began)
            self._ordered = True
        return self._passes
