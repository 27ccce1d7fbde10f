"""Host and device time by line of the user's code.

Python tells which line begins, and that is kept with its moment. A kernel belongs to
the lines that were being run when it was launched, those that have called others
included, as in other profilers of lines. What a backward pass launches belongs to the
line that has called it.
"""

from __future__ import annotations

import sys
import time
from array import array
from bisect import bisect_left
from collections import Counter
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from gpumagic.cuda_sync_time.records import Flag, FlagKind, LineTime
from gpumagic.devices.around_cell import Observer
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.errors import GpuMagicError
from gpumagic.report.events import DEVICE_KINDS
from gpumagic.report.places import Places, line_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType

    from gpumagic.cuda_sync_time.records import Profile
    from gpumagic.devices.protocols import Runtime
    from gpumagic.report.events import TraceSpan

    Line: TypeAlias = tuple[str, int]  # a file, and a line of it

# Some seconds of plain Python; a step takes twenty bytes.
MOST_STEPS = 4_000_000
# So much later a launch may seem to be: the profiler's clock is another one.
_BEHIND_NS = 20_000
_OUTSIDE = 0  # no line of the user's is being run


class LineTracer:
    """Notes in one thread when another line of the user's code begins to run.

    What is running at a moment is a place in a tree: a line, below the line that has
    called its function. Only these places are kept, and when one was come to.
    """

    def __init__(self, places: Places, now_ns: Callable[[], int]) -> None:
        self.is_cut = False  # whether there were more steps than are kept
        self._now_ns = now_ns
        self._lines: list[Line] = [("", 0)]
        self._parents = [_OUTSIDE]
        self._runs = [0]
        self._known: dict[tuple[int, str, int], int] = {}
        self._callers: list[int] = []
        self._now = _OUTSIDE
        self._times, self._steps = array("q"), array("l")
        self._is_wanted = cache(places.is_users)

    def start(self) -> None:
        """Note lines from now on."""
        if sys.gettrace():
            raise GpuMagicError(
                "a debugger or a coverage tool is watching each line already",
                "end it first, or leave --lines away",
            )
        sys.settrace(self._called)

    def stop(self) -> None:
        """Note no more; it may be told so twice."""
        if sys.gettrace() == self._called:
            sys.settrace(None)
            self._come_to(_OUTSIDE)

    def host_by_line(self) -> dict[Line, tuple[int, float]]:
        """How often each line began, and how many seconds the host was at it."""
        runs: Counter[Line] = Counter()
        for line, count in zip(self._lines[1:], self._runs[1:], strict=True):
            runs[line] += count
        stays_ns: Counter[int] = Counter()
        for place, (since_ns, until_ns) in zip(
            self._steps[:-1], pairwise(self._times), strict=True
        ):
            stays_ns[place] += until_ns - since_ns
        host_ns: Counter[Line] = Counter()
        for place, length_ns in stays_ns.items():
            for line in self._path(place):
                host_ns[line] += length_ns
        return {line: (count, host_ns[line] / 1e9) for line, count in runs.items()}

    def device_by_line(
        self, spans: Iterable[TraceSpan], began_ns: int
    ) -> dict[Line, tuple[float, int]]:
        """How many seconds what each line launched took, and how many they were."""
        found = dict.fromkeys(self._lines, (0.0, 0))
        for span in spans:
            if span.kind not in DEVICE_KINDS or span.launched_s is None:
                continue
            for line in self._path(self._at(began_ns + round(span.launched_s * 1e9))):
                took_s, launches = found[line]
                found[line] = took_s + span.end_s - span.start_s, launches + 1
        return found

    # -------------------------------------------------------------- while it runs

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        if event != "call" or not self._is_wanted(frame.f_code.co_filename):
            return None
        self._callers.append(self._now)
        return self._within

    def _within(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            caller = self._callers[-1] if self._callers else _OUTSIDE
            place = self._place(caller, frame.f_code.co_filename, frame.f_lineno)
            self._runs[place] += 1
            self._come_to(place)
        elif event == "return":
            self._come_to(self._callers.pop() if self._callers else _OUTSIDE)
        return self._within

    def _place(self, caller: int, file: str, number: int) -> int:
        key = caller, file, number
        if key not in self._known:
            self._known[key] = len(self._lines)
            self._lines.append((file, number))
            self._parents.append(caller)
            self._runs.append(0)
        return self._known[key]

    def _come_to(self, place: int) -> None:
        self._now = place
        if len(self._times) >= MOST_STEPS:
            self.is_cut = True
            sys.settrace(None)
            return
        self._times.append(self._now_ns())
        self._steps.append(place)

    # ------------------------------------------------------------------ afterwards

    def _path(self, place: int) -> set[Line]:
        """The lines that were being run there, each once however often it recurs."""
        lines = set()
        while place != _OUTSIDE:
            lines.add(self._lines[place])
            place = self._parents[place]
        return lines

    def _at(self, moment_ns: int) -> int:
        # What is launched last in a line is there when the next one begins, or just
        # behind it where none does.
        at = bisect_left(self._times, moment_ns) - 1
        if at > 0 and self._steps[at] == _OUTSIDE:
            at -= moment_ns - self._times[at] < _BEHIND_NS
        return self._steps[at] if at >= 0 else _OUTSIDE


class LineWatcher(Observer):
    """Notes lines while a run is timed, if asked.

    `in_cell` is asked when the run has ended: whether a file is the cell itself.
    """

    def __init__(
        self, in_cell: Callable[[], Callable[[str], bool]], *, asked: bool
    ) -> None:
        self._asked = asked
        self._asks_in_cell = in_cell
        self._in_cell: Callable[[str], bool] = lambda _: False
        self._tracer = LineTracer(Places(), time.time_ns)
        self._began_ns = 0
        self._now_ns: Callable[[], int] = time.time_ns

    def start(self, runtime: Runtime) -> None:
        """Take the clock that what devices do is traced by."""
        if not self._asked:
            return
        torch = loaded_torch()
        libraries = tuple(map(str, getattr(torch, "__path__", ())))
        self._now_ns = runtime.now_ns if runtime.simulated else time.time_ns
        self._tracer = LineTracer(Places(libraries), self._now_ns)

    def begin(self) -> None:
        """Note lines from now on."""
        self._began_ns = self._now_ns()
        if self._asked:
            self._tracer.start()

    def code_ended(self) -> None:
        """Note no more: what follows is ours."""
        if self._asked:
            self._tracer.stop()
            self._in_cell = self._asks_in_cell()

    def close(self) -> None:
        """Note no more."""
        self._tracer.stop()

    def flags(self) -> Iterator[Flag]:
        """How looking on has to be taken into account."""
        if self._asked:
            yield Flag(FlagKind.LOOKED_ON, names=("--lines",))
        if self._tracer.is_cut:
            yield Flag(FlagKind.LINES_CUT)

    def lines(
        self, profile: Profile | None, began_ns: int | None
    ) -> tuple[LineTime, ...]:
        """What each line came to, if asked; those of the cell first."""
        host, device = self._tracer.host_by_line(), {}
        if profile and not profile.problem:
            since_ns = began_ns or self._began_ns
            device = self._tracer.device_by_line(profile.spans, since_ns)
        ordered = sorted(host, key=lambda line: (not self._in_cell(line[0]), line))
        return tuple(
            LineTime(
                line_in(*line),
                line[1] if self._in_cell(line[0]) else None,
                *host[line],
                *device.get(line, (None, None)),
            )
            for line in ordered
        )
