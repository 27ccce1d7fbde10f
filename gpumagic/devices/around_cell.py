"""What stands round a cell: all devices idle, the cell, all devices idle again.

It is two calls and no function that is given the code, because a cell may be awaited
between them, or end in an error. How the waits are made is told in `waiting`.
"""

from __future__ import annotations

import enum
import math
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.devices.cpu import CpuRuntime
from gpumagic.devices.simulated import simulated_box
from gpumagic.devices.waiting import NotInTime, Window, is_capturing, is_in_use
from gpumagic.errors import DeviceError, error_line, first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumagic.devices.protocols import Runtime
    from gpumagic.devices.waiting import Waited

_BACKLOG_TOLD_S = 1e-3
# Whoever sees an error, or has pressed Ctrl-C, wants the prompt back.
_LONGEST_AFTER_ERROR_S = 2.0
_NOT_WAITED_FOR = "the devices were not waited for to the end"


class Trouble(enum.Enum):
    """Why the wait at the end did not see the devices idle."""

    CAPTURING = "a graph was being captured"
    INTERRUPTED = "the wait was interrupted"
    NOT_DRAINED = "a device was still at work, or had failed, after an error"
    ERROR_AT_END = "the wait itself has raised an error"


# After these nobody may wait for the device, and a tracer that is ended does.
_UNWAITED: dict[Trouble | None, str] = {
    Trouble.CAPTURING: Trouble.CAPTURING.value,
    Trouble.INTERRUPTED: _NOT_WAITED_FOR,
    Trouble.NOT_DRAINED: _NOT_WAITED_FOR,
}


class CellRuntime:
    """What a cell runs on: found before it, and looked for again after it."""

    def __init__(self, open_runtime: Callable[[], Runtime]) -> None:
        self.runtime: Runtime = CpuRuntime()
        self._open_runtime = open_runtime
        self._machine: Any = None

    def begin(self) -> Runtime:
        """Find what there is before the cell."""
        self.runtime, self._machine = self._open_runtime(), simulated_box()
        return self.runtime

    def now(self) -> Runtime:
        """The same one, unless the cell may have come upon a better one."""
        if self.same_machine and is_in_use(self.runtime):
            return self.runtime
        return self._open_runtime()

    @property
    def same_machine(self) -> bool:
        """Whether no simulated machine has come or gone."""
        return simulated_box() is self._machine

    @property
    def has_simulated_clock(self) -> bool:
        """Whether a simulated machine's clock has been there all the time."""
        return self.runtime.simulated and self.same_machine


class Observer:
    """Looks on while a cell runs: called in this order, the last one always."""

    traces = False

    def look_before(self, runtime: Runtime) -> None:
        """Nothing has been waited for yet."""

    def start(self, runtime: Runtime) -> None:
        """All devices are idle; what a tracer leaves on them is waited for again."""

    def begin(self) -> None:
        """The clock is about to be read."""

    def code_ended(self) -> None:
        """The waits that follow are ours; it may be told so twice."""

    def all_idle(self, unwaited: str | None) -> None:
        """All devices are idle again, or why nobody may wait for that."""

    def look_after(self, runtime: Runtime, *, idle: bool) -> None:
        """All is over; `runtime` is what the cell turned out to run on."""

    def close(self) -> None:
        """It does not run on, however the cell has ended."""


@dataclass(frozen=True)
class Ended:
    """What came of a cell."""

    # what it turned out to run on; that of the CPU where no device is used
    runtime: Runtime
    found: Runtime  # what there was to run on, be it used or not
    started_ns: int  # when it began, by the clock that the times are on
    elapsed_s: float  # from all idle to all idle; after an error, until that was raised
    host_s: float  # the same by the host's clock, where that of the device is simulated
    naive_s: float  # until the code returned
    # how long work ran on after the starting streams; None is unknown
    tail_s: float | None
    # by device, what events say of its starting stream
    device_times: tuple[tuple[int, float | None], ...]
    trouble: Trouble | None  # why the end was not seen, with what was said of that
    said: str
    # what the caller has to raise: nobody else has told of it
    late_error: BaseException | None
    failed: str | None  # the error of the code or of the wait, in one line

    @property
    def uses_device(self) -> bool:
        """Whether there was a device to wait for."""
        return self.runtime.kind != CpuRuntime.kind


class AroundCell:
    """What is done before a cell and after it."""

    def __init__(
        self,
        open_runtime: Callable[[], Runtime],
        observers: Sequence[Observer] = (),
        *,
        after_swap: Callable[[], Runtime] = CpuRuntime,
        waits_after_error: bool = True,
    ) -> None:
        self.backlog_s: float | None = None
        self.has_backlog = self.began_capturing = False
        self.is_idle = True
        self._ran_on = CellRuntime(open_runtime)
        self._after_swap = after_swap
        self._waits_after_error = waits_after_error
        self._observers = observers
        self._traced = any(each.traces for each in observers)
        self._window = Window(self._ran_on.runtime)
        self._host_started_ns = 0

    def begin(self) -> None:
        """Wait until all devices are idle, let the observers look, start the clock."""
        runtime = self._ran_on.begin()
        with ExitStack() as undo:
            undo.callback(self._close)
            try:
                self._make_ready(runtime)
            except RuntimeError as error:
                raise _broken(error) from error
            undo.pop_all()
        self._host_started_ns = time.perf_counter_ns()
        self._window.open()

    def end(
        self,
        *,
        started_ns: int | None = None,
        ended_ns: int | None = None,
        error: BaseException | None = None,
    ) -> Ended:
        """Stop the clock when all devices are idle again; call it just once."""
        returned_ns = self._ran_on.runtime.now_ns()
        host_ns = time.perf_counter_ns()
        try:
            if self._ran_on.has_simulated_clock:
                stamps = self._window.started_ns, returned_ns
            else:
                stamps = started_ns or self._host_started_ns, ended_ns or host_ns
            return self._conclude(*stamps, error)
        finally:
            self._close()
            self._window.forget()

    def _make_ready(self, runtime: Runtime) -> None:
        for each in self._observers:
            each.look_before(runtime)
        self.began_capturing = is_capturing(runtime)
        self._window = Window(
            runtime, waits=not self.began_capturing, traced=self._traced
        )
        self.backlog_s = waited_s = self._window.drain()
        if waited_s and waited_s > _BACKLOG_TOLD_S:
            # On a busy machine a wait for nothing may take that long as well.
            empty_s = self._window.drain() or 0.0
            self.has_backlog = waited_s > empty_s + _BACKLOG_TOLD_S
        for each in self._observers:
            each.start(runtime)
            if each.traces:
                self._window.drain()  # what the tracer has tried out
        self._window.prepare()
        for each in self._observers:
            each.begin()

    def _conclude(
        self, started_ns: int, returned_ns: int, error: BaseException | None
    ) -> Ended:
        window, last = self._window_at_end(started_ns), LastWait()
        ended_ns = returned_ns
        if window.uses_device:
            if error is None or self._waits_after_error:
                last = last_wait(window, error, self._code_ended)
            else:
                last = LastWait(trouble=Trouble.NOT_DRAINED)
            self.is_idle = bool(last.waited)
            if error is None:  # else it is the time until the error
                ended_ns = self._idle_ns(window, last)
        host_s = (time.perf_counter_ns() - self._host_started_ns) / 1e9
        self._code_ended()
        for each in self._observers:
            each.all_idle(_UNWAITED.get(last.trouble))
        elapsed_s = (ended_ns - started_ns) / 1e9
        ended = Ended(
            runtime=window.runtime if window.uses_device else CpuRuntime(),
            found=window.runtime,
            started_ns=started_ns,
            elapsed_s=elapsed_s,
            host_s=host_s if self._ran_on.has_simulated_clock else elapsed_s,
            naive_s=(returned_ns - started_ns) / 1e9,
            tail_s=window.tail_s(last.waited) if error is None else None,
            device_times=window.device_times() if last.waited else (),
            trouble=last.trouble,
            said=last.said,
            late_error=last.late_error,
            failed=error_line(last.late_error if error is None else error),
        )
        window.forget()
        for each in self._observers:
            each.look_after(ended.runtime, idle=self.is_idle)
        return ended

    def _window_at_end(self, started_ns: int) -> Window:
        """As it was opened, or another where the cell has started a device."""
        if not self._ran_on.same_machine:
            return Window(self._after_swap())
        if self._window.uses_device:
            return self._window
        window = Window(self._ran_on.now(), traced=self._traced)
        window.started_ns = started_ns
        return window if window.uses_device else self._window

    def _idle_ns(self, window: Window, last: LastWait) -> int:
        if not self._ran_on.same_machine:
            return time.perf_counter_ns()  # a simulated clock began in mid-cell
        return last.waited.all_ns if last.waited else window.runtime.now_ns()

    def _code_ended(self) -> None:
        for each in self._observers:
            each.code_ended()

    def _close(self) -> None:
        with ExitStack() as closing:
            for each in self._observers:  # the last one is closed first
                closing.callback(each.close)


@dataclass(frozen=True)
class LastWait:
    """What came of the wait at the end."""

    waited: Waited | None = None  # when what had ended; None if that could not be seen
    trouble: Trouble | None = None  # why not, with what was said of it
    said: str = ""
    # what the caller has to raise: nobody else has told of it. Where it was met says
    # nothing of the code, so that this is not in its traceback.
    late_error: BaseException | None = None


def last_wait(
    window: Window,
    error: BaseException | None,
    before_waiting: Callable[[], object] = lambda: None,
) -> LastWait:
    """Wait until all devices are idle; never raises.

    After an error of the code the wait is short, and an error of its own is told
    only: it would hide the one that matters.
    """
    try:
        if is_capturing(window.runtime):
            return LastWait(trouble=Trouble.CAPTURING)
        window.mark_end()
        before_waiting()
        limit_s = math.inf if error is None else _LONGEST_AFTER_ERROR_S
        return LastWait(window.close(limit_s))
    except NotInTime:
        reason = f"it was still at work {_LONGEST_AFTER_ERROR_S:.0f} s later"
        return LastWait(trouble=Trouble.NOT_DRAINED, said=reason)
    except KeyboardInterrupt as interrupt:
        stopped = interrupt.with_traceback(None) if error is None else None
        return LastWait(trouble=Trouble.INTERRUPTED, late_error=stopped)
    except Exception as failure:  # noqa: BLE001 - it is handed out, or told
        said = first_line(failure)
        if error is not None:
            return LastWait(trouble=Trouble.NOT_DRAINED, said=said)
        late = failure.with_traceback(None)
        return LastWait(trouble=Trouble.ERROR_AT_END, said=said, late_error=late)


def wait_for_earlier_cells(runtime: Runtime) -> None:
    """Wait until all devices in use are idle, unless a graph is being captured."""
    try:
        Window(runtime, waits=not is_capturing(runtime)).drain()
    except RuntimeError as error:
        raise _broken(error) from error


def _broken(error: BaseException) -> DeviceError:
    return DeviceError(
        f"an earlier cell has left an error on the device: {first_line(error)}",
        "if that is still so when you run this again, restart the kernel: "
        "CUDA does not recover from it",
    )
