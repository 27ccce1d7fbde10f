"""Times one run from all devices idle to all devices idle, or looks for races in it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.cuda_sync_time import observers
from gpumagic.cuda_sync_time.answer_run import TimingReport
from gpumagic.cuda_sync_time.findings import where_measured
from gpumagic.cuda_sync_time.instruments import EnvironmentWatch, unseen_flags
from gpumagic.cuda_sync_time.lines import LineWatcher
from gpumagic.cuda_sync_time.records import (
    LIBRARY,
    Activity,
    Flag,
    FlagKind,
    Options,
    Run,
    titled,
)
from gpumagic.devices.around_cell import AroundCell, Trouble, wait_for_earlier_cells
from gpumagic.devices.simulated import SIMULATED, simulated_box
from gpumagic.errors import DeviceError, error_line
from gpumagic.report.places import in_running_cell
from gpumagic.report.record import Report
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpumagic.cuda_sync_time.instruments import Instruments
    from gpumagic.cuda_sync_time.records import Setting
    from gpumagic.devices.around_cell import Ended
    from gpumagic.report.events import SeenRace, SyncCall
    from gpumagic.report.places import Code

_REPORTED_LATE = "reported at the end of the cell; the failing launch was earlier"
_WATCHERS = {"cpu": "", SIMULATED: "the simulated GPU"}  # of races, by kind of device
_TAIL_BEYOND_FLOOR_S = 50e-6
_TAIL_TOLD = 0.02  # of the time


class OneRun:
    """Times what runs between `begin` and `end`; if it `draws`, for a picture too."""

    def __init__(
        self,
        instruments: Instruments,
        options: Options | None = None,
        *,
        draws: bool = True,
    ) -> None:
        options = options or Options()
        # What the wait at the end has raised, if the code itself has not: an error of
        # the device, or KeyboardInterrupt. The caller raises it.
        self.late_error: BaseException | None = None
        self._instruments = instruments
        self._environment = EnvironmentWatch(instruments.find_driver)
        self._tracer = observers.Tracer(options, draws=draws)
        self._waits = observers.SyncWatcher(asked=options.syncs)
        self._lines = LineWatcher(in_running_cell, asked=options.lines)
        self._calls = observers.CallWatcher(for_values=draws)
        looking = (
            self._environment,
            self._tracer,
            self._waits,
            self._lines,
            self._calls,
        )
        self._around = AroundCell(instruments.runtime, looking)
        self._ended: Ended  # once it has

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
        if self.late_error and self._ended.trouble is Trouble.ERROR_AT_END:
            self.late_error.add_note(_REPORTED_LATE)

    def report(self, code: Code) -> TimingReport:
        """What came of it, once it has ended."""
        ended = self._ended
        runtime, floor_s = ended.runtime, self._floor_s(ended)
        run = Run(
            elapsed_s=ended.elapsed_s,
            naive_s=ended.naive_s,
            tail_s=ended.tail_s,
            backlog_s=self._around.backlog_s,
            events=dict(ended.device_times),
            uses_device=ended.uses_device,
            simulated_in_s=ended.host_s if ended.found.simulated else 0.0,
        )
        profile = self._tracer.profile()
        flags = (
            *self._flags(ended, run, floor_s),
            *unseen_flags(runtime),
            *self._waits.flags(runtime.kind),
            *self._tracer.flags(profile),
            *self._lines.flags(),
        )
        box = simulated_box()
        gpus = box.machine.gpus if box else ()
        syncs = self._waits.calls(runtime.kind)
        order = list(FlagKind)
        reads = self._calls.reads()
        if syncs is not None:
            syncs, reads = observers.with_costs(syncs, reads), []
        return TimingReport(
            code=code,
            setting=self._instruments.setting(runtime, floor_s=floor_s),
            run=run,
            flags=tuple(sorted(flags, key=lambda flag: order.index(flag.kind))),
            failed=ended.failed,
            syncs=None if syncs is None else observers.points_of(syncs),
            reads=observers.points_of(reads),
            profile=profile,
            activity=self._activity(ended, syncs or reads),
            lines=self._lines.lines(profile, self._tracer.began_unix_ns),
            loading=self._calls.loading(),
            guessed=tuple(sorted({name for gpu in gpus for name in gpu.unmodelled})),
        )

    def _activity(self, ended: Ended, waits: Iterable[SyncCall]) -> Activity:
        """All that is known, on a simulated machine; else the waits that were seen."""
        seen = self._tracer.activity()
        if not self._tracer.draws or (seen.length_s and ended.found.simulated):
            return seen
        return Activity(observers.spans_of(waits, ended.started_ns), ended.elapsed_s)

    def _floor_s(self, ended: Ended) -> float:
        """The floor; it is not measured while a device may still be at work."""
        floors = self._instruments.floors
        try:
            if not self._around.is_idle:
                return floors.known(ended.runtime)
            return floors.floor_s(ended.runtime, alone=True)
        except (RuntimeError, DeviceError):  # the device is broken
            return 0.0

    def _flags(self, ended: Ended, run: Run, floor_s: float) -> Iterator[Flag]:
        around, trouble = self._around, ended.trouble
        if around.has_backlog:
            yield Flag(FlagKind.BACKLOG, amount=around.backlog_s or 0.0)
        if around.began_capturing or trouble is Trouble.CAPTURING:
            yield Flag(FlagKind.CAPTURING)
        if trouble and trouble is not Trouble.CAPTURING:
            yield Flag(FlagKind[trouble.name], names=(ended.said,))
        told_s = max(floor_s + _TAIL_BEYOND_FLOOR_S, run.elapsed_s * _TAIL_TOLD)
        if (tail_s := run.tail_s or 0.0) > told_s:
            yield Flag(FlagKind.TAIL, amount=tail_s)
        yield from self._environment.flags


class RaceRun:
    """Looks for races in what runs between `begin` and `end`; it claims no time."""

    late_error: BaseException | None = None  # it waits for nothing at its end

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

    def end(self, *, error: BaseException | None = None, **_times: int | None) -> None:
        """Look no longer."""
        self._watch.close()
        self._failed = error_line(error)

    def report(self, code: Code) -> RaceReport:
        """What was seen."""
        runtime = self._runtime
        return RaceReport(
            code=code,
            setting=self._instruments.setting(runtime),
            races=tuple(self._races),
            watcher=_WATCHERS.get(runtime.kind, "torch's sanitizer"),
            failed=self._failed,
        )


_SEES = {
    "the simulated GPU": "It notes each byte that torch's operations read and write, "
    "and the waits between streams.",
    "torch's sanitizer": "It notes the tensors that torch's own operations read and "
    "write, by their first address. It sees no kernels that are launched past torch, "
    "and views that begin at different addresses are different to it. It goes on in "
    "this process: restart the kernel before you time what is very short.",
}


@dataclass(frozen=True)
class RaceReport(Report):
    """A cell that was run to find missing waits."""

    code: Code
    setting: Setting
    races: tuple[SeenRace, ...]
    # what looked: "torch's sanitizer", "the simulated GPU"; empty where nothing could
    # be looked at
    watcher: str
    failed: str | None = None

    @property
    def headline(self) -> str:
        """How many and where, or that nothing could be found out."""
        found = "no race was seen in this run"
        if not self.watcher:
            found = "races could not be looked for"
        elif self.races:
            first = self.races[0].later or self.races[0].earlier or LIBRARY
            found = f"{count_text(len(self.races), 'race')} found, the first at "
            found += f"{first.where}: its result may differ each time"
        elif self.failed:
            found = f"no race was seen until it failed ({self.failed})"
        return titled(self.code.name, found)

    def drawing(self) -> Any:
        """Each race with both its lines, then the limits of looking."""
        from gpumagic.drawing import Drawing, one_screen

        return Drawing(self.headline, one_screen(_parts(self)), self.setting.label)


def _parts(report: RaceReport) -> Iterator[Any]:
    from gpumagic.drawing import Column, Grid, Note, Paragraph, Table, how_measured

    if not report.watcher:
        yield Note(
            "warning",
            "on the CPU one call is done before the next begins: nothing can race",
            'gpumagic.simulate("h100") gives streams that can; its device is "sim"',
        )
        return
    if report.failed and report.races:
        yield Note("problem", f"the code failed: {report.failed}")
    for race in report.races:
        yield Note("problem", race.problem, race.hint)
    rows = [
        (f"{number}", access, line.where, line.source)
        for number, race in enumerate(report.races, 1)
        for access, line in (("first", race.earlier), ("then", race.later))
        if line
    ]
    if rows:
        columns = Column("Race", number=True), Column("Access"), Column("Line")
        yield Table("The lines", (*columns, Column("Code")), tuple(rows), name="lines")
    sees = _SEES[report.watcher]
    yield how_measured(
        Paragraph(
            f"Watched by {report.watcher}. {sees} It judges this run only: another "
            "input may take another way. Every access was noted, so no time is claimed."
        ),
        Grid("", tuple(where_measured(report.setting).items())),
    )
