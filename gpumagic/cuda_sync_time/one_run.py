"""Times one run from all devices idle to all devices idle, or looks for races in it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.environment_changes import EnvironmentWatch
from gpumagic.cuda_sync_time.instruments import unseen_flags
from gpumagic.cuda_sync_time.lines import LineWatcher
from gpumagic.cuda_sync_time.observers import (
    LoaderWatcher,
    Onlooker,
    SyncWatcher,
    Tracer,
)
from gpumagic.cuda_sync_time.options import Options
from gpumagic.cuda_sync_time.report import (
    Activity,
    DeviceTime,
    Flag,
    FlagKind,
    LineTime,
    RaceReport,
    Run,
    TimingReport,
)
from gpumagic.devices.around_cell import (
    AroundCell,
    Trouble,
    wait_for_earlier_cells,
)
from gpumagic.errors import error_line
from gpumagic.report.places import in_running_cell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.cuda_sync_time.instruments import Instruments
    from gpumagic.cuda_sync_time.report import Profile
    from gpumagic.devices.around_cell import Ended
    from gpumagic.report.events import SeenRace, TraceSpan
    from gpumagic.report.places import Code

_REPORTED_LATE = "reported at the end of the cell; the failing launch was earlier"
_TAIL_BEYOND_FLOOR_S = 50e-6
_TAIL_TOLD = 0.02  # of the time

_NO_STREAMS = "on the CPU one call is done before the next begins: nothing can race"
_SIMULATE = (
    'gpumagic.simulate("h100") gives streams that can; its device is called "sim"'
)


class OneRun:
    """Times what runs between `begin` and `end`.

    Attributes:
        late_error: What the wait at the end has raised, if the code itself has not:
            an error of the device, or KeyboardInterrupt. The caller raises it.

    Args:
        instruments: Where runtime and driver are found, and the floor is kept.

        options: What is wanted beside the time.

        draws: Whether the report is to have a picture of who was busy when.
    """

    def __init__(
        self,
        instruments: Instruments,
        options: Options | None = None,
        *,
        draws: bool = True,
    ) -> None:
        options = options or Options()
        self.late_error: BaseException | None = None
        self._instruments = instruments
        self._environment = EnvironmentWatch(lambda: instruments.driver)
        self._tracer = _tracer(options)
        self._waits = SyncWatcher() if options.syncs else None
        self._lines = LineWatcher(in_running_cell) if options.lines else None
        self._loading = LoaderWatcher()
        self._onlooker = Onlooker() if draws and self._tracer is None else None
        observers = (
            self._environment,
            self._tracer,
            self._onlooker,
            self._waits,
            self._lines,
            self._loading,
        )
        self._around = AroundCell(
            instruments.runtime, [each for each in observers if each is not None]
        )
        self._ended: Ended | None = None

    def begin(self) -> None:
        """Wait until all devices are idle, let the observers look, start the clock."""
        self._around.begin()

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
        """
        self._ended = self._around.end(
            started_ns=started_ns, ended_ns=ended_ns, error=error
        )
        self.late_error = self._ended.late_error
        if self.late_error is not None and self._ended.trouble is Trouble.ERROR_AT_END:
            self.late_error.add_note(_REPORTED_LATE)

    def report(self, code: Code) -> TimingReport:
        """What came of it, once it has ended."""
        ended = self._ended
        if ended is None:
            raise RuntimeError("this run has not ended")
        runtime, floor_s = ended.runtime, self._floor_s(ended)
        run = self._run(ended)
        profile = None if self._tracer is None else self._tracer.profile()
        flags = [
            *self._flags_of_waiting(ended),
            *self._environment.flags,
            *_tail_flag(run, floor_s or 0.0),
            *unseen_flags(runtime),
        ]
        if self._waits is not None:
            flags += self._waits.flags(runtime.kind)
        if self._tracer is not None:
            flags += self._tracer.flags(profile)
        if self._lines is not None:
            flags += self._lines.flags()
        return TimingReport(
            code=code,
            setting=self._instruments.setting(runtime, floor_s=floor_s),
            run=run,
            flags=tuple(sorted(flags, key=_place_among_flags)),
            failed=ended.failed,
            syncs=None if self._waits is None else self._waits.points(runtime.kind),
            profile=profile,
            activity=self._activity(ended),
            lines=self._by_line(profile),
            loading=self._loading.longest(),
        )

    def _by_line(self, profile: Profile | None) -> tuple[LineTime, ...] | None:
        if self._lines is None:
            return None
        began_ns = None if self._tracer is None else self._tracer.began_unix_ns
        return self._lines.lines(_spans(profile), began_ns)

    def _activity(self, ended: Ended) -> Activity | None:
        """All that is known, on a simulated machine; else the waits that were seen."""
        if self._onlooker is None:
            return None
        seen = self._onlooker.activity()
        if seen is not None and ended.found.simulated:
            return seen
        kind = ended.runtime.kind
        waits = self._waits and self._waits.spans(kind, ended.started_ns)
        return Activity(waits, ended.elapsed_s) if waits else None

    def _floor_s(self, ended: Ended) -> float | None:
        """The floor; it is not measured while a device may still be at work."""
        floors = self._instruments.floors
        try:
            ask = floors.floor_s if self._around.is_idle else floors.known
            return ask(ended.runtime)
        except RuntimeError:  # the device is broken
            return None

    def _run(self, ended: Ended) -> Run:
        return Run(
            elapsed_s=ended.elapsed_s,
            naive_s=ended.naive_s,
            tail_s=ended.tail_s,
            backlog_s=self._around.backlog_s,
            events=tuple(DeviceTime(*each) for each in ended.device_times),
            uses_device=ended.uses_device,
            simulated_in_s=ended.host_s if ended.found.simulated else None,
        )

    def _flags_of_waiting(self, ended: Ended) -> Iterator[Flag]:
        around, trouble = self._around, ended.trouble
        if around.has_backlog:
            yield Flag(FlagKind.BACKLOG, amount=around.backlog_s)
        if around.began_capturing or trouble is Trouble.CAPTURING:
            yield Flag(FlagKind.CAPTURING)
        if trouble is not None and trouble is not Trouble.CAPTURING:
            names = (ended.said,) if ended.said else ()
            yield Flag(FlagKind[trouble.name], names=names)


def _tracer(options: Options) -> Tracer | None:
    if options.traces:
        return Tracer(options.trace_file, most_s=options.trace_s)
    return Tracer(devices_only=True) if options.lines else None


def _spans(profile: Profile | None) -> tuple[TraceSpan, ...] | None:
    """What lines are held against: None where devices are missing from it."""
    return None if profile is None or profile.problem else profile.spans


def _tail_flag(run: Run, floor_s: float) -> list[Flag]:
    told_s = max(floor_s + _TAIL_BEYOND_FLOOR_S, run.elapsed_s * _TAIL_TOLD)
    if run.tail_s is None or run.tail_s <= told_s:
        return []
    return [Flag(FlagKind.TAIL, amount=run.tail_s)]


def _place_among_flags(flag: Flag) -> int:
    return list(FlagKind).index(flag.kind)


class RaceRun:
    """Looks for races in what runs between `begin` and `end`; it claims no time.

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
        """Wait for all earlier work, and look from now on."""
        wait_for_earlier_cells(self._runtime)
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
