"""One run, from all devices idle to all devices idle.

It is told as two calls round the user's code and not as a function that is given the
code, because a cell may be awaited between them, or end in an error.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from gpumagic.cuda_sync_time.around_cell import (
    Window,
    error_line,
    first_line,
    is_capturing,
    last_wait,
)
from gpumagic.cuda_sync_time.environment_changes import Surroundings, flags_between
from gpumagic.cuda_sync_time.instruments import unseen_flags
from gpumagic.cuda_sync_time.observers import Observers
from gpumagic.cuda_sync_time.report import Flag, FlagKind, RaceReport, Run, TimingReport
from gpumagic.devices.cpu import CpuRuntime
from gpumagic.devices.simulated import simulated_box
from gpumagic.errors import DeviceError

if TYPE_CHECKING:
    from gpumagic.cuda_sync_time.around_cell import Waited
    from gpumagic.cuda_sync_time.instruments import Instruments
    from gpumagic.devices.protocols import Runtime
    from gpumagic.report.events import Code, SeenRace

_BACKLOG_TOLD_S = 1e-3
_TAIL_BEYOND_FLOOR_S = 50e-6
_TAIL_TOLD = 0.02  # of the time
_NOT_WAITED_FOR = "the devices were not waited for to the end"
# After these nobody may wait for the device, and a tracer that is ended does.
_UNTRACED = {
    FlagKind.CAPTURING: "a graph was being captured",
    FlagKind.INTERRUPTED: _NOT_WAITED_FOR,
    FlagKind.NOT_DRAINED: _NOT_WAITED_FOR,
}


class OneRun:
    """Times what runs between `begin` and `end`.

    Attributes:
        late_error: What the wait at the end has raised, if the code itself has not:
            an error of the device, or KeyboardInterrupt. The caller raises it.

    Args:
        instruments: Where runtime and driver are found, and the floor is kept.

        syncs: Whether to note what makes the host wait.

        profile: Whether to trace what runs when.

        trace_file: Where to save that trace, which implies `profile`.
    """

    def __init__(
        self,
        instruments: Instruments,
        *,
        syncs: bool = False,
        profile: bool = False,
        trace_file: str | None = None,
    ) -> None:
        self.late_error: BaseException | None = None
        self._instruments = instruments
        self._observers = Observers(syncs=syncs, profile=profile, trace_file=trace_file)
        self._runtime: Runtime = CpuRuntime()  # a device's, once one has been used
        self._window = Window(self._runtime)
        self._machine: Any = None
        self._before = Surroundings()
        self._host_started_ns = 0
        self._backlog_s: float | None = None
        self._idle = True
        self._untraced: str | None = None
        self._flags: list[Flag] = []
        self._failed: str | None = None
        self._run: Run | None = None

    def begin(self) -> None:
        """Wait until all devices are idle, let the observers look, start the clock.

        Raises:
            GpuMagicError: The devices cannot be waited for, since an earlier cell has
                broken them, or what was asked for cannot be observed. Everything is
                as before.
        """
        self._runtime = self._instruments.runtime()
        self._machine = simulated_box()
        with ExitStack() as undo:
            undo.callback(self._observers.close)
            try:
                self._make_ready()
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
    ) -> None:
        """Stop the clock when all devices are idle again; call it just once.

        An error of the code is not raised here; see `late_error` for those that come
        to light only now.

        Args:
            started_ns: When the code began, by `perf_counter_ns`, read nearer to it.

            ended_ns: When it returned.

            error: What it has raised.
        """
        returned_ns, host_ns = self._runtime.now_ns(), time.perf_counter_ns()
        try:
            if self._runtime.simulated and self._same_machine():
                stamps = self._window.started_ns, returned_ns
            else:
                stamps = started_ns or self._host_started_ns, ended_ns or host_ns
            self._conclude(*stamps, error)
        finally:
            self._observers.close()
            self._window.forget()
            self._before = Surroundings()  # it holds on to threads

    def report(self, code: Code) -> TimingReport:
        """What came of it, once it has ended.

        Args:
            code: What was timed.
        """
        if self._run is None:
            raise RuntimeError("this run has not ended")
        floor_s, profile = self._floor_s(), self._observers.profile()
        flags = [
            *self._flags,
            *_tail_flag(self._run, floor_s or 0.0),
            *unseen_flags(self._runtime),
            *self._observers.flags(self._runtime.kind),
        ]
        if profile is not None:
            from gpumagic.cuda_sync_time.observers import flags_of

            flags += flags_of(profile)
        return TimingReport(
            code=code,
            setting=self._instruments.setting(self._runtime, floor_s=floor_s),
            run=self._run,
            flags=tuple(sorted(flags, key=_place_among_flags)),
            failed=self._failed,
            syncs=self._observers.syncs(self._runtime.kind),
            profile=profile,
        )

    # ------------------------------------------------------------ the beginning

    def _make_ready(self) -> None:
        """All that comes before the clock is read."""
        self._drain()
        self._observers.start_tracing(self._runtime)
        if self._observers.traces:
            self._window.drain()  # what the tracer has tried out
        self._observers.start_watching(self._runtime)
        self._window.prepare()
        self._observers.mark_begin()

    def _drain(self) -> None:
        """Note the surroundings, and wait for what earlier cells have queued."""
        self._before = Surroundings.now(self._runtime, self._instruments.driver)
        capturing = is_capturing(self._runtime)
        if capturing:
            self._flags.append(Flag(FlagKind.CAPTURING))
        self._window = Window(
            self._runtime, waits=not capturing, traced=self._observers.traces
        )
        self._backlog_s = waited_s = self._window.drain()
        if waited_s is not None and waited_s > _BACKLOG_TOLD_S:
            # On a busy machine a wait for nothing may take that long as well.
            empty_s = self._window.drain() or 0.0
            if waited_s > empty_s + _BACKLOG_TOLD_S:
                self._flags.append(Flag(FlagKind.BACKLOG, amount=waited_s))

    # ------------------------------------------------------------------ the end

    def _conclude(
        self, started_ns: int, returned_ns: int, error: BaseException | None
    ) -> None:
        window, ended_ns = self._window_at_end(started_ns), returned_ns
        if window.uses_device:
            waited = self._wait(window, error)
            if error is None:  # else it is the time until the error
                ended_ns = waited.all_ns if waited else window.runtime.now_ns()
        else:
            waited = None
        simulated_in_s = (time.perf_counter_ns() - self._host_started_ns) / 1e9
        self._observers.stop_watching()
        self._observers.stop_tracing(self._untraced)
        self._failed = error_line(error or self.late_error)
        self._run = Run(
            elapsed_s=(ended_ns - started_ns) / 1e9,
            naive_s=(returned_ns - started_ns) / 1e9,
            tail_s=window.tail_s(waited) if error is None else None,
            backlog_s=self._backlog_s,
            events=window.device_times() if waited else (),
            uses_device=window.uses_device,
            simulated_in_s=simulated_in_s if window.runtime.simulated else None,
        )
        window.forget()
        self._look_again()

    def _window_at_end(self, started_ns: int) -> Window:
        """The window as it was opened, or another where the cell has started a device.

        torch may have been imported only by the cell, or CUDA been started by it.
        A simulated machine that came or went in between has a clock of its own,
        which says nothing of this time: then the host's has to do.
        """
        window = self._window
        if not self._same_machine():
            window = Window(CpuRuntime())
        elif not window.uses_device:
            window = Window(self._instruments.runtime(), traced=self._observers.traces)
            window.started_ns = started_ns
        self._runtime = window.runtime if window.uses_device else CpuRuntime()
        return window

    def _same_machine(self) -> bool:
        return simulated_box() is self._machine

    def _wait(self, window: Window, error: BaseException | None) -> Waited | None:
        ending = last_wait(window, error, self._observers.stop_watching)
        self._idle = ending.waited is not None
        self.late_error = ending.late_error
        if ending.flag is not None:
            self._untraced = _UNTRACED.get(ending.flag.kind)
        if ending.flag is not None and ending.flag not in self._flags:
            self._flags.append(ending.flag)
        return ending.waited

    def _look_again(self) -> None:
        """Note what has changed, unless the device is broken: then it says nothing."""
        try:
            after = Surroundings.now(self._runtime, self._instruments.driver)
        except RuntimeError:
            if self._idle:
                raise
        else:
            self._flags += flags_between(self._before, after)

    # --------------------------------------------------------------- the report

    def _floor_s(self) -> float | None:
        """The floor; it is not measured while a device may still be at work."""
        floors = self._instruments.floors
        try:
            ask = floors.floor_s if self._idle else floors.known
            return ask(self._runtime)
        except RuntimeError:  # the device is broken
            return None


def _broken(error: BaseException) -> DeviceError:
    return DeviceError(
        f"an earlier cell has left an error on the device: {first_line(error)}",
        "if that is still so when you run this again, restart the kernel: "
        "CUDA does not recover from it",
    )


def _tail_flag(run: Run, floor_s: float) -> list[Flag]:
    told_s = max(floor_s + _TAIL_BEYOND_FLOOR_S, run.elapsed_s * _TAIL_TOLD)
    if run.tail_s is None or run.tail_s <= told_s:
        return []
    return [Flag(FlagKind.TAIL, amount=run.tail_s)]


def _place_among_flags(flag: Flag) -> int:
    return list(FlagKind).index(flag.kind)


class RaceRun:
    """One run between two moments, with the race detector on.

    Args:
        instruments: Where the runtime is found; torch is imported for it.
    """

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._runtime = instruments.torch_runtime()
        self._watch = ExitStack()
        self._races: list[SeenRace] = []
        self._failed: str | None = None

    def begin(self) -> None:
        """Wait for all earlier work, and look from now on.

        Raises:
            DeviceError: This kind of device cannot be watched.
        """
        self._runtime.synchronize()
        self._races = self._watch.enter_context(self._runtime.watch_races())

    def end(self, *, error: BaseException | None = None) -> None:
        """Look no longer."""
        self._watch.close()
        self._failed = error_line(error)

    def report(self, code: Code) -> RaceReport:
        """What was seen."""
        runtime = self._runtime
        on_device = runtime.kind != "cpu"
        watcher = "the simulated GPU" if runtime.simulated else "torch's sanitizer"
        return RaceReport(
            code=code,
            setting=self._instruments.setting(runtime),
            races=tuple(self._races),
            watcher=watcher if on_device else "",
            failed=self._failed,
            problem=None if on_device else _NO_STREAMS,
            hint=None if on_device else _SIMULATE,
        )


_NO_STREAMS = "on the CPU one call is done before the next begins: nothing can race"
_SIMULATE = (
    'gpumagic.simulate("h100") gives streams that can; its device is called "sim"'
)
