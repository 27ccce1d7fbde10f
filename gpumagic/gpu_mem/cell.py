"""Measures one cell: what it did to the memory, its peak, and whose names hold it now.

It is told as two calls round the user's code and not as a function that is given the
code, because a cell may be awaited between them, or end in an error.

torch has one peak for each device, and resetting it would take it from the user. It
need not be reset: a new record is the cell's own, and without one the peak lies
between bounds that the other counters give. A reset by the cell ends a stretch, within
which the counters are whole: so somebody looks just before and after each reset.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gpumagic.devices.around_cell import CellRuntime
from gpumagic.devices.cpu import CpuRuntime
from gpumagic.devices.memory_counters import watch_resets
from gpumagic.devices.memory_history import MemoryTrace
from gpumagic.devices.opening import runtime_now
from gpumagic.devices.simulated import simulated_box
from gpumagic.errors import error_line
from gpumagic.gpu_mem import balance, counters, records
from gpumagic.gpu_mem.answer_cell import CellReport
from gpumagic.gpu_mem.records import (
    Counters,
    DeviceChange,
    Peak,
    PeakKind,
    Setting,
    difference,
    sums_were_reset,
)
from gpumagic.report.places import in_running_cell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gpumagic.devices.protocols import Runtime
    from gpumagic.gpu_mem.names import KnownNames, Sources
    from gpumagic.report.places import Code

    Looks = Mapping[int, Counters]

_HOST = CpuRuntime.kind
_WORTH_A_SEARCH = 1 << 20
_OOM = "OutOfMemoryError"


class CellRun:
    """Looks at the counters before and after a cell; looking changes none of them.

    `open_runtime` is asked again at the end, since the cell may import torch or start
    a device. `in_cell` tells whether a file is the cell: by default the running one.
    """

    def __init__(
        self,
        open_runtime: Callable[[], Runtime],
        *,
        lines: bool = False,
        in_cell: Callable[[str], bool] | None = None,
    ) -> None:
        self.failed = ""  # the error that the code raised, in one line
        self.setting = Setting(_HOST)  # where it ran, in the user's words
        self.kind = _HOST  # of device there, as the runtime has it
        self.trace = MemoryTrace(partial=True)  # each allocation, if it was recorded
        self.after: dict[int, Counters] = {}
        self._before: dict[int, Counters] = {}
        self._ran_on = CellRuntime(open_runtime)
        self._records_lines = lines
        self._in_cell = in_cell
        self._marks: Any = None
        self._resets_seen = False
        self._watches = contextlib.ExitStack()
        self._stretches = Stretches(self._look_again)
        self._stop_recording = partial(MemoryTrace, partial=True)
        self._problems: tuple[str, ...] = ()
        self._engine_peaks: Mapping[int, int] = {}

    def begin(self) -> None:
        """Look, and start to record if that is wanted; never fails for want of it."""
        runtime = self._ran_on.begin()
        over_a_reset = watch_resets(self._stretches.over_a_reset)
        self._resets_seen = self._watches.enter_context(over_a_reset)
        if runtime.simulated and (box := simulated_box()):
            self._marks = box.mark_peaks()
        self._before = self._look(runtime)
        self._stretches.since = self._before
        if self._records_lines:
            from gpumagic.gpu_mem.lines import start_recording

            self._stop_recording = start_recording(runtime)

    def end(self, error: BaseException | None = None) -> None:
        """Look again; call it just once, also where `begin` was cut short."""
        try:
            runtime = self._ran_on.now()
            self.after = self._look(runtime)
        finally:
            self._watches.close()
            self.trace = self._stop_recording()
        another_kind = runtime.kind != self._ran_on.runtime.kind
        if another_kind or not self._ran_on.same_machine:
            self._before, self._marks = {}, None
            if self._ran_on.runtime.kind != _HOST:
                self._stretches = Stretches(self._look_again)
            if self.trace.events:
                from gpumagic.gpu_mem.lines import RUN_AGAIN

                remark = f"the cell has changed devices; {RUN_AGAIN}"
                self.trace = MemoryTrace(partial=True, remarks=(remark,))
        if runtime.simulated and (box := simulated_box()):
            self._engine_peaks = box.peaks_since(self._marks)
        self._in_cell = self._in_cell or in_running_cell()
        self.setting, self.kind = counters.setting_of(runtime), runtime.kind
        self.failed = error_line(error) or ""
        for device in self.after.keys() & self.trace.events.keys():
            counted = self.after[device].taken or 0
            counted -= self._at_first(device).taken or 0
            if sum(each.taken for each in self.trace.events[device]) < counted:
                self.trace = replace(self.trace, partial=True)

    # ------------------------------------------------------------- what is told

    @property
    def lines_partial(self) -> bool:
        """Whether the recording was full too early."""
        return self.trace.partial and bool(self.trace.events)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What could not be seen, in sentences."""
        return *self._problems, *self.trace.remarks

    def changes(self) -> tuple[DeviceChange, ...]:
        """Each device in use; one that the cell was the first to use began at zero."""
        found = []
        for device, after in self.after.items():
            before = self._at_first(device)
            peak = self._peak(before, after)
            found.append(DeviceChange(before, self._stretches.whole(after), peak))
        return tuple(found)

    def badges(self) -> tuple[records.CellBadge, ...]:
        """What should be seen at once, device by device."""
        badges = [*counters.badges_of_allocator(self.kind, self.after.values())]
        for device, after in self.after.items():
            badges += counters.badges_between(
                self._at_first(device), after, ended_by_oom=self.failed.startswith(_OOM)
            )
        return tuple(badges)

    def lines(self) -> tuple[records.LineUse, ...]:
        """A row for each line and device, where that was recorded."""
        if not self.trace.lines:
            return ()
        from gpumagic.gpu_mem.lines import lines_of

        in_cell = self._in_cell or in_running_cell()
        return tuple(
            row
            for device in self.after
            for row in lines_of(device, self.trace.events.get(device, ()), in_cell)
        )

    def courses(
        self, segments: Sequence[records.Segment] = ()
    ) -> tuple[records.Course, ...]:
        """How much was in use from step to step, where each of them was recorded."""
        if self.trace.partial:  # where it began is not known
            return ()
        from gpumagic.gpu_mem.lines import course_of, pieces_of

        in_cell = self._in_cell or in_running_cell()
        return tuple(
            course_of(
                device,
                events,
                before_bytes=before,
                in_cell=in_cell,
                pieces=pieces_of(segments, device),
            )
            for device, events in self.trace.events.items()
            if events and device in self.after
            if (before := self._at_first(device).allocated_bytes) is not None
        )

    # ------------------------------------------------------------- how it is done

    def _at_first(self, device: int) -> Counters:
        return self._before.get(device) or counters.from_zero(self.after[device])

    def _look(self, runtime: Runtime) -> dict[int, Counters]:
        try:
            return counters.read_all(runtime)
        except RuntimeError as problem:  # a device in error need not answer any more
            self._problems += (f"the devices could not be asked: {problem}",)
            return {}

    def _look_again(self) -> dict[int, Counters]:
        """In the middle of the cell."""
        return self._look(self._ran_on.now())

    def _peak(self, before: Counters, after: Counters) -> Peak:
        if after.device in self._engine_peaks:
            engines = self._engine_peaks[after.device]
            return Peak(PeakKind.EXACT, engines, engines)
        counted = self._stretches.peak(after)
        if not self._resets_seen and after.device not in self._before:
            # The cell has imported torch: what it has reset is not known.
            counted = _between(after.peak_bytes or 0, math.inf)
        if self.trace.partial or counted.kind in (PeakKind.EXACT, PeakKind.UNKNOWN):
            return counted
        now = peak = before.allocated_bytes or 0
        for event in self.trace.events.get(after.device, ()):
            now += event.nbytes if event.taken else -event.nbytes
            peak = max(peak, now)
        most = int(min(max(peak, after.allocated_bytes or 0), counted.high_bytes))
        return Peak(PeakKind.REPLAYED, most, most)


# ---------------------------------------------------------- and whose the memory is


class OneCell(CellRun):
    """Looks at names as well, before and after, where it matters."""

    def __init__(
        self, names: KnownNames, *, lines: bool = False, search: bool = True
    ) -> None:
        super().__init__(runtime_now, lines=lines)
        self._names = names
        self._searches = search
        # what each name reached before, by kind of device
        self._sizes: dict[str, dict[balance.Key, int]] = {}

    def begin(self) -> None:
        """The cell is about to run."""
        runtime = runtime_now()
        if self._searches and (looks := counters.read_all(runtime)):
            found = balance.find_holdings(
                self._names.sources(runtime.kind),
                {device: each.allocated_bytes for device, each in looks.items()},
                tell_blocks=runtime.memory_snapshot,
            )
            self._sizes[runtime.kind] = balance.sizes(found)
        super().begin()

    def report(
        self, code: Code, *, value: Any = None, error: BaseException | None = None
    ) -> CellReport:
        """What came of it."""
        changes = [each for each in self.changes() if each.moved]
        # The cell's value, by the name that IPython is going to give it.
        shown = [(f"Out[{code.cell}]", value)]
        sources = partial(self._names.sources, self.kind, shown, error)
        segments: tuple[records.Segment, ...] = ()
        if self.trace.events:
            from gpumagic.gpu_mem.segments import segments_with_names

            snapshot = runtime_now().memory_snapshot() or ()
            segments = segments_with_names(snapshot, sources())
        return CellReport(
            code=code,
            setting=self.setting,
            changes=tuple(changes),
            badges=self.badges(),
            holdings=self._held_now(changes, sources),
            lines=self.lines(),
            lines_partial=self.lines_partial,
            failed=self.failed,
            remarks=self.remarks,
            courses=self.courses(segments),
        )

    def _held_now(
        self, changes: Sequence[DeviceChange], sources: Callable[[], Sources]
    ) -> records.Holdings:
        deltas = [each.allocated_delta for each in changes]
        # Where nothing is counted names are all that there is.
        moved = [n for n in deltas if n is None or abs(n) >= _WORTH_A_SEARCH]
        if not self._searches or not moved:
            return records.NO_HOLDINGS
        counted = {each.device: each.after.allocated_bytes for each in changes}
        found = balance.find_holdings(
            sources(), counted, tell_blocks=runtime_now().memory_snapshot
        )
        return balance.compared(self._sizes.get(self.kind, {}), found, counted)


# ------------------------------------------------------------- the peak of a stretch


def peak_between(before: Counters, after: Counters) -> Peak:
    """The peak of what ran between two looks at one device."""
    now, then = after.peak_bytes, before.peak_bytes
    first, last = before.allocated_bytes, after.allocated_bytes
    if now is None or then is None or first is None or last is None:
        return Peak()
    low = max(first, last)
    if now < then:  # somebody has reset it
        return _between(max(now, low), math.inf)
    if after.taken_bytes is None:
        # Such an allocator is not torch's own, and its peak is only a bound.
        return _between(low, now)
    if now > then:
        return Peak(PeakKind.EXACT, now, now)
    gross = difference(after.taken_bytes, before.taken_bytes)
    if gross is None or sums_were_reset(before, after):
        return _between(low, now)
    # Nor was there more than if the cell had given nothing back until its end.
    return _between(low, min(now, first + gross))


def _between(low: int, high: float) -> Peak:
    if low >= high:
        return Peak(PeakKind.EXACT, low, low)
    if (low, high) == (0, math.inf):
        return Peak()
    return Peak(PeakKind.BOUND, low, high)


class Stretches:
    """Goes on from reset to reset, and keeps the peaks of stretches that are over.

    `look` reads the counters of each device in use; it does not raise.
    """

    def __init__(self, look: Callable[[], Looks]) -> None:
        self.since: Looks = {}  # the look with which the current stretch began
        self._look = look
        self._peaks: dict[int, Peak] = {}

    @contextlib.contextmanager
    def over_a_reset(self) -> Iterator[None]:
        """A reset, which ends a stretch and begins the next."""
        before = self._look()
        self._peaks |= {device: self.peak(each) for device, each in before.items()}
        try:
            yield
        finally:
            self.since = self._look()
            for device in self.since.keys() ^ before.keys():  # it could not be asked
                self._peaks[device] = Peak()

    def peak(self, after: Counters) -> Peak:
        """The most at once on a device until this look."""
        since = self.since.get(after.device) or counters.from_zero(after)
        last = peak_between(since, after)
        if after.device not in self._peaks:
            return last
        earlier = self._peaks[after.device]
        low = max(earlier.low_bytes, last.low_bytes)
        return _between(low, max(earlier.high_bytes, last.high_bytes))

    def whole(self, after: Counters) -> Counters:
        """The counters of a cell; of one that has reset some the sums are unknown."""
        if after.device not in self._peaks:
            return after
        return replace(after, taken_bytes=None, given_back_bytes=None)
