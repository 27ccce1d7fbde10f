"""Measures one cell: what it did to the memory, and whose names hold it now.

It is told as two calls round the user's code and not as a function that is given the
code, because a cell may be awaited between them, or end in an error.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

from gpumagic.devices.around_cell import CellRuntime
from gpumagic.devices.cpu import CpuRuntime
from gpumagic.devices.memory_counters import watch_resets
from gpumagic.devices.opening import runtime_now
from gpumagic.devices.simulated import simulated_box
from gpumagic.errors import error_line
from gpumagic.gpu_mem.counters import (
    badges_between,
    badges_of_allocator,
    from_zero,
    read_all,
    setting_of,
)
from gpumagic.gpu_mem.course import course_of, pieces_of
from gpumagic.gpu_mem.holdings import (
    compared,
    find_holdings,
    held_bytes,
    of_devices,
    sizes,
)
from gpumagic.gpu_mem.lines import Recording, lines_of, replay
from gpumagic.gpu_mem.options import Options
from gpumagic.gpu_mem.peak import Stretches, peak_unseen, with_replay
from gpumagic.gpu_mem.records import (
    Counters,
    DeviceChange,
    Peak,
    PeakKind,
    Setting,
    difference,
)
from gpumagic.gpu_mem.report import CellReport
from gpumagic.gpu_mem.segments import named, names_by_address, segments_of
from gpumagic.report.places import in_running_cell

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpumagic.devices.memory_events import MemoryTrace
    from gpumagic.devices.protocols import Runtime
    from gpumagic.gpu_mem.name_sources import Key, KnownNames
    from gpumagic.gpu_mem.records import (
        CellBadge,
        Course,
        Holdings,
        LineUse,
        Segment,
    )
    from gpumagic.report.places import Code

_WORTH_A_SEARCH = 1 << 20
_OOM = "OutOfMemoryError"
_LOSES_OLDEST = "cuda"  # a recording that is full; others take nothing more
_OOM_DEVICE = re.compile(r"\bGPU (\d+)\b")


class OneCell:
    """Looks before and after a cell, at counters and, where it matters, at names.

    Args:
        names: Where names are looked for.

        options: What is wanted of it: how exactly, and how many names.

        search: Whether to look for names at all.
    """

    def __init__(
        self, names: KnownNames, options: Options | None = None, *, search: bool = True
    ) -> None:
        self._names = names
        self._options = options or Options()
        self._searches = search
        self._run = CellRun(
            runtime_now,
            lines=self._options.lines,
            host_bytes=self._host_bytes if search else None,
        )
        self._sizes: dict[Key, int] = {}
        self._sized: str | None = None  # the kind of device

    def begin(self) -> None:
        """The cell is about to run."""
        if self._searches:
            runtime = runtime_now()
            if runtime.started():
                counted = {c.device: c.allocated_bytes for c in read_all(runtime)}
                self._sized = runtime.kind
                self._sizes = sizes(self._holdings(runtime.kind, counted))
        self._run.begin()

    def end(self, *, error: BaseException | None = None) -> None:
        """The cell has run, or has raised this."""
        self._run.end(error)

    def report(
        self,
        code: Code,
        *,
        value: Any = None,
        error: BaseException | None = None,
    ) -> CellReport:
        """What came of it."""
        run = self._run
        changes = tuple(
            each for each in run.changes() if each.moved or each.allocated_delta is None
        )
        return CellReport(
            code=code,
            setting=run.setting,
            changes=changes,
            badges=run.badges(),
            holdings=self._held_now(changes, code, value, error),
            lines=run.lines(),
            lines_partial=run.lines_partial,
            failed=run.failed,
            top=self._options.top,
            remarks=run.remarks,
            courses=run.courses(lambda: self._segments(code, value, error)),
        )

    def _segments(
        self, code: Code, value: Any, error: BaseException | None
    ) -> tuple[Segment, ...]:
        """What lies where now, with names; nothing where no allocator tells of it."""
        snapshot = runtime_now().memory_snapshot()
        if snapshot is None:
            return ()
        shown = _as_shown(code, value)
        sources = self._names.sources(self._run.kind, shown, error)
        names = names_by_address(sources, snapshot)
        return named(segments_of(snapshot), names)

    def _held_now(
        self,
        changes: tuple[DeviceChange, ...],
        code: Code,
        value: Any,
        error: BaseException | None,
    ) -> Holdings | None:
        deltas = [each.allocated_delta for each in changes]
        # Where nothing is counted names are all that there is.
        moved = any(each is None or abs(each) >= _WORTH_A_SEARCH for each in deltas)
        if not self._searches or not moved:
            return None
        found = self._holdings(
            self._run.kind,
            {each.device: each.after.allocated_bytes for each in changes},
            shown=_as_shown(code, value),
            error=error,
        )
        before = self._sizes if self._sized == self._run.kind else {}
        return of_devices(compared(before, found), {c.device for c in changes})

    def _holdings(
        self,
        kind: str,
        allocated: Mapping[int, int | None],
        shown: Mapping[str, Any] | None = None,
        error: BaseException | None = None,
    ) -> Holdings:
        return find_holdings(
            self._names.sources(kind, shown, error),
            allocated,
            tell_blocks=lambda: runtime_now().memory_snapshot(),
        )

    def _host_bytes(self) -> int | None:
        """What the names hold of the host's memory."""
        return held_bytes(self._names.sources("cpu"))


def _as_shown(code: Code, value: Any) -> dict[str, Any]:
    """The cell's value by the name that IPython is going to give it."""
    return {} if value is None else {f"Out[{code.cell}]": value}


# ------------------------------------------------------------ counters before and after


class CellRun:
    """Looks at the counters before and after a cell; looking changes none of them.

    Attributes:
        failed: The error that the code raised, in one line.

        lines_partial: Whether the recording was full before the cell had ended.

        setting: Where it ran, in the user's words.

        kind: The kind of device there, as the runtime has it.

    Args:
        open_runtime: Finds the best runtime that there is now; asked again at the
            end, since the cell may import torch or start a device.

        lines: Whether the exact peak and each line's part are wanted, for which each
            allocation is seen.

        host_bytes: What the notebook's names hold of the host's memory: asked where
            there is no other device. None: nothing is looked for there.

        in_cell: Whether a file name is that of the cell; None is for the cell that
            the shell runs when it ends.
    """

    def __init__(
        self,
        open_runtime: Callable[[], Runtime],
        *,
        lines: bool = False,
        host_bytes: Callable[[], int | None] | None = lambda: None,
        in_cell: Callable[[str], bool] | None = None,
    ) -> None:
        self.failed: str | None = None
        self.lines_partial = False
        self.setting = Setting(CpuRuntime.kind)
        self.kind = CpuRuntime.kind
        self._ran_on = CellRuntime(open_runtime)
        self._wants_lines = lines
        self._host_bytes = host_bytes
        self._in_cell = in_cell
        self._marks: Any = None
        self._resets_seen = False
        self._watches = contextlib.ExitStack()
        self._stretches = Stretches(self._look_again)
        self._before: dict[int, Counters] = {}
        self._after: dict[int, Counters] = {}
        self._recording = Recording() if lines else None
        self._problems: tuple[str, ...] = ()
        self._engine_peaks: Mapping[int, int] = {}
        self._oom_device: int | None = None

    def begin(self) -> None:
        """Look, and start to record if that is wanted; never fails for want of it."""
        runtime, box = self._ran_on.begin(), simulated_box()
        self._resets_seen = self._watches.enter_context(
            watch_resets(self._stretches.over_a_reset)
        )
        if runtime.simulated and box is not None:
            self._marks = box.mark_peaks()
        self._before = self._look(runtime)
        if runtime.kind != CpuRuntime.kind:
            self._stretches.begin(self._before)
        if self._recording is not None:
            self._recording.start(runtime)

    def end(self, error: BaseException | None = None) -> None:
        """Look again; call it just once, also where `begin` was cut short."""
        try:
            runtime = self._ran_on.now()
            self._after = self._look(runtime)
        finally:
            self._watches.close()
            if self._recording is not None:
                self._recording.stop()
        another_kind = runtime.kind != self._ran_on.runtime.kind
        if another_kind or not self._ran_on.same_machine:
            self._forget_beginning()
        box = simulated_box()
        if runtime.simulated and box is not None:
            self._engine_peaks = box.peaks_since(self._marks)
        self._in_cell = self._in_cell or in_running_cell()
        self.setting, self.kind = setting_of(runtime), runtime.kind
        self.failed = error_line(error)
        self._oom_device = _oom_device(error)
        self._check_whole()

    # ------------------------------------------------------------- what is told

    def changes(self) -> tuple[DeviceChange, ...]:
        """Each device in use; one that the cell was the first to use began at zero."""
        return tuple(self._change(device) for device in self._after)

    def badges(self) -> tuple[CellBadge, ...]:
        """What should be seen at once, device by device."""
        if self.kind == CpuRuntime.kind:
            return ()
        badges = [*badges_of_allocator(self.kind, self._after.values())]
        for device, after in self._after.items():
            badges += badges_between(
                self._before.get(device),
                self._stretches.whole(after),
                ended_by_oom=device == self._oom_device,
            )
        return tuple(badges)

    def lines(self) -> tuple[LineUse, ...] | None:
        """A row for each line and device; None where that was not to be seen."""
        trace = self._trace
        if not self._wants_lines or trace is None or not trace.lines:
            return None
        in_cell = self._in_cell or in_running_cell()
        return tuple(
            row
            for device in self._after
            for row in lines_of(
                device,
                trace.events.get(device, ()),
                before_peak=replay(trace.events.get(device, ()), 0).before_peak,
                in_cell=in_cell,
            )
        )

    def courses(
        self, find_segments: Callable[[], tuple[Segment, ...]]
    ) -> tuple[Course, ...]:
        """How much was in use from step to step, where each of them was recorded."""
        trace = self._trace
        moved = {} if trace is None else {d: e for d, e in trace.events.items() if e}
        begun = {device: self._begun(device) for device in moved}
        if all(nbytes is None for nbytes in begun.values()):
            return ()
        segments = find_segments()
        in_cell = self._in_cell or in_running_cell()
        return tuple(
            course_of(
                device,
                moved[device],
                before_bytes=nbytes,
                in_cell=in_cell,
                pieces=pieces_of(segments, device),
                partial=self.lines_partial,
            )
            for device, nbytes in begun.items()
            if nbytes is not None
        )

    def _begun(self, device: int) -> int | None:
        """What was in use before the first step that was recorded."""
        after, trace = self._after.get(device), self._trace
        if after is None or trace is None:
            return None
        if not (self.lines_partial and self.kind == _LOSES_OLDEST):
            return (self._before.get(device) or from_zero(after)).allocated_bytes
        steps = replay(trace.events[device], 0)
        return difference(after.allocated_bytes, steps.end_bytes)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What could not be seen, in sentences."""
        recorded = () if self._recording is None else self._recording.remarks
        return *self._problems, *recorded

    # ------------------------------------------------------------- how it is done

    @property
    def _trace(self) -> MemoryTrace | None:
        return None if self._recording is None else self._recording.trace

    def _forget_beginning(self) -> None:
        self._before, self._marks = {}, None
        if self._ran_on.runtime.kind != CpuRuntime.kind:
            self._stretches = Stretches(self._look_again)
        if self._recording is not None:
            self._recording.forget()

    def _look(self, runtime: Runtime) -> dict[int, Counters]:
        if runtime.kind == CpuRuntime.kind:
            if self._host_bytes is None:
                return {}
            return {0: Counters(0, allocated_bytes=self._host_bytes())}
        try:
            return {each.device: each for each in read_all(runtime)}
        except RuntimeError as problem:  # a device in error need not answer any more
            self._problems += (f"the devices could not be asked: {problem}",)
            return {}

    def _look_again(self) -> dict[int, Counters]:
        """In the middle of the cell, where names are not searched for."""
        runtime = self._ran_on.now()
        return {} if runtime.kind == CpuRuntime.kind else self._look(runtime)

    def _change(self, device: int) -> DeviceChange:
        after = self._stretches.whole(self._after[device])
        before = self._before.get(device) or from_zero(after)
        return DeviceChange(before, after, self._peak(before, self._after[device]))

    def _peak(self, before: Counters, after: Counters) -> Peak:
        counted = self._counted(after)
        trace, device = self._trace, after.device
        if trace is None or counted.kind is PeakKind.EXACT:
            return counted
        if self.lines_partial or before.allocated_bytes is None:
            return counted
        course = replay(trace.events.get(device, ()), before.allocated_bytes)
        return with_replay(
            counted,
            before,
            after,
            peak_bytes=course.peak_bytes,
            end_bytes=course.end_bytes,
        )

    def _counted(self, after: Counters) -> Peak:
        """What is known without having seen each allocation."""
        engines = self._engine_peaks.get(after.device)
        if engines is not None:
            return Peak(PeakKind.EXACT, engines, engines)
        if self._resets_seen or after.device in self._before:
            return self._stretches.peak(after)
        return peak_unseen(after)

    def _check_whole(self) -> None:
        """Compare what was recorded with what the allocators have counted."""
        trace = self._trace
        if trace is None:
            return
        self.lines_partial = trace.partial or any(
            self._missed(device, trace) for device in trace.events
        )

    def _missed(self, device: int, trace: MemoryTrace) -> bool:
        after = self._after.get(device)
        if after is None or after.taken is None:
            return False
        before = self._before.get(device) or from_zero(after)
        counted = (self._stretches.whole(after).taken or 0) - (before.taken or 0)
        return sum(each.taken for each in trace.events[device]) < counted


# -------------------------------------------------------------- the error that ended it


def _oom_device(error: BaseException | None) -> int | None:
    """The device on which this error says that no memory was left."""
    if type(error).__name__ != _OOM:
        return None
    found = _OOM_DEVICE.search(str(error))
    return int(found[1]) if found else 0
