"""How long did the cell really take, what did the time go to, and what to try?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpumagic.cuda_sync_time import verdict
from gpumagic.cuda_sync_time.findings import (
    COSTS_ONCE,
    floor_text,
    is_weighty,
    measured,
    notes,
    where_measured,
)
from gpumagic.cuda_sync_time.records import NOTHING_SEEN, Bound, FlagKind
from gpumagic.report.record import Report
from gpumagic.report.units import (
    devices_text,
    seconds_text,
    shortened,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.cuda_sync_time.records import (
        Activity,
        Flag,
        LineTime,
        Profile,
        Run,
        Setting,
        SyncPoint,
    )
    from gpumagic.report.events import SpanKind
    from gpumagic.report.places import Code

_HARDLY_WAITED = 0.05  # of the time: less says that the device kept up
_MOSTLY_WAITED = 0.5
_ABOVE_THE_FLOOR = 1.1  # no figure is finer than a tenth of it
_LANES, _LANES_OF_A_TABLE = 10, 4
_LINES_IN_SIGHT = 8
_LONGEST_CODE = 34


@dataclass(frozen=True)
class TimingReport(Report):
    """One run of a cell."""

    code: Code
    setting: Setting
    run: Run
    flags: tuple[Flag, ...] = ()
    # the error that the code raised, in one line. The time is then the time until it
    # was raised.
    failed: str | None = None
    # lines that made the host wait; None if nobody looked
    syncs: tuple[SyncPoint, ...] | None = None
    # where nobody looked: the lines that were seen to wait for a value of a tensor
    reads: tuple[SyncPoint, ...] = ()
    profile: Profile | None = None
    activity: Activity = NOTHING_SEEN  # who was busy when, where there is no `profile`
    lines: tuple[LineTime, ...] = ()  # what each line took, if asked
    # the line that waited longest for batches of a DataLoader, if one did
    loading: SyncPoint | None = None
    # operations whose simulated time is a guess, be they in this cell or earlier ones
    guessed: tuple[str, ...] = ()

    @property
    def seen(self) -> Activity:
        """Who was busy when, by the profiler or without it."""
        return self.profile or self.activity

    @property
    def bound(self) -> Bound:
        """What it spent its time on; a wait that an empty cell has, too, is none."""
        waited_s, elapsed_s = self.run.waited_s, self.run.elapsed_s
        if not self.run.uses_device:
            return Bound.HOST_ONLY
        if waited_s < _HARDLY_WAITED * elapsed_s or not self.tells(waited_s):
            return Bound.HOST
        if waited_s > _MOSTLY_WAITED * elapsed_s:
            return Bound.DEVICE
        return Bound.OVERLAPPED

    def tells(self, seconds: float) -> bool:
        """Whether a time is more than an empty cell shows, as far as digits tell."""
        return seconds > self.setting.floor_s * _ABOVE_THE_FLOOR

    def seconds_of(self, kind: SpanKind) -> float:
        """How long one thread of the host did that before the code returned."""
        until_s, seen = self.run.naive_s, self.seen.spans
        its = (each for each in seen if each.kind is kind and not each.thread)
        return sum(max(min(each.end_s, until_s) - each.start_s, 0.0) for each in its)

    def text(self, seconds: float | None) -> str:
        """A measured time, with the digits that its floor leaves."""
        return measured(seconds, self.setting.floor_s)

    @property
    def headline(self) -> str:
        """The true time, what it went to, and what an untrue one would have been."""
        return verdict.headline(self)

    def drawing(self) -> Any:
        """The answer, then what it rests on."""
        from gpumagic.drawing import Drawing, one_screen

        parts = one_screen((*_in_sight(self), *_folded(self)))
        return Drawing(self.headline, parts, self.setting.label)


@dataclass(frozen=True)
class BriefReport(Report):
    """One run of a cell in a line, for when every cell is timed."""

    timing: TimingReport

    def drawing(self) -> Any:
        """The time with its flags."""
        from gpumagic.drawing import Drawing

        flags = ", ".join(flag.kind.value for flag in self.timing.flags)
        behind = f" [{flags}]" if flags else ""
        title = f"{self.timing.headline}{behind}"
        return Drawing(title, (), self.timing.setting.label)


# ---------------------------------------------------------------------- the screen


def _in_sight(report: TimingReport) -> Iterator[Any]:
    from gpumagic.cuda_sync_time.view_busy import picture

    tables = _tables(report)[:1]
    if _has_picture(report) and not report.lines:
        yield picture(report, most=_LANES - _LANES_OF_A_TABLE * len(tables))
    yield from tables
    yield from _notes(report)


def _notes(report: TimingReport) -> Iterator[Any]:
    """What makes the time untrue, then what makes it long, then all else."""
    from gpumagic.drawing import Note

    weighty = [flag for flag in report.flags if is_weighty(flag.kind)]
    # Whoever asked somebody to look on knows that it was on: that is told below.
    others = [
        flag
        for flag in report.flags
        if flag not in weighty and flag.kind is not FlagKind.LOOKED_ON
    ]
    if report.failed:
        text = "the time ends at the error: code that works takes another one"
        yield Note("problem", text)
    yield from notes(weighty, report.setting)
    if not report.failed:
        once = any(each.kind in COSTS_ONCE for each in weighty)
        yield from (Note("note", *said) for said in verdict.advice(report, once=once))
    if profile := report.profile:
        if profile.problem:
            yield Note("warning", profile.problem, profile.hint)
        if profile.saved_as:
            yield Note("note", f"{profile.saved_as} is for https://ui.perfetto.dev")
    yield from notes(others, report.setting)


def _has_picture(report: TimingReport) -> bool:
    if verdict.too_short(report):
        return False
    profile = report.profile
    has_spans = bool(profile and profile.spans and not profile.operators)
    return report.run.uses_device or has_spans


def _tables(report: TimingReport) -> list[Any]:
    """The one that was asked for most pointedly comes first."""
    from gpumagic.cuda_sync_time.view_busy import kernel_table, operators_table

    tables = []
    if report.lines:
        tables.append(_line_table(report))
    if report.syncs:
        tables.append(_wait_table(report.syncs))
    profile = report.profile
    if profile and profile.kernels:
        tables.append(kernel_table(profile, report.guessed))
    elif profile and profile.operators:
        tables.append(operators_table(profile.operators))
    return tables


def _wait_table(syncs: tuple[SyncPoint, ...]) -> Any:
    from gpumagic.drawing import Column, Property, Table

    properties = (
        Property(Column("Line"), lambda sync: sync.where),
        Property(Column("Code"), lambda sync: sync.line.source),
        Property(Column("What waits"), lambda sync: sync.what),
        Property(Column("Count", number=True), lambda sync: f"{sync.times:,}"),
        Property(
            Column("Waited", number=True), lambda sync: seconds_text(sync.waited_s)
        ),
    )
    return Table.of("Lines that make the host wait", properties, syncs, name="waits")


def _line_table(report: TimingReport) -> Any:
    """The dearest lines, in the order of the code."""
    from gpumagic.drawing import Table

    lines, most_s = report.lines, _most_of_a_line_s(report)
    most_host_s = max(each.host_s for each in lines)

    def weight(each: LineTime) -> float:
        return max(_share(each.host_s, most_host_s), _share(each.device_s, most_s))

    kept = sorted(lines, key=weight, reverse=True)[:_LINES_IN_SIGHT]
    caption = "Time by line"
    if len(kept) < len(lines):
        caption += f": the {len(kept)} that took most of {len(lines)}"
    shown = [each for each in lines if each in kept]
    return Table.of(caption, _line_columns(report), shown)


def _line_columns(report: TimingReport) -> list[Any]:
    from gpumagic.drawing import Column, Meter, Property

    most_s = _most_of_a_line_s(report)

    def bar(seconds: float | None, whole_s: float) -> Any:
        text = seconds_text(seconds)
        return Meter(_share(seconds, whole_s), text, is_short=True) if seconds else "-"

    def place(each: LineTime) -> str:
        return str(each.number or each.line.where.replace(", line ", ":"))

    def code(each: LineTime) -> str:
        return shortened(each.line.source or "", _LONGEST_CODE)

    def host(each: LineTime) -> Any:
        return bar(each.host_s, report.run.elapsed_s)

    columns = [Property(Column("Line"), place), Property(Column("Host"), host)]
    if any(each.device_s is not None for each in report.lines):
        columns.append(Property(Column("GPU"), lambda each: bar(each.device_s, most_s)))
    return [*columns, Property(Column("Code"), code)]


def _most_of_a_line_s(report: TimingReport) -> float:
    return max((each.device_s or 0.0 for each in report.lines), default=0.0)


def _share(seconds: float | None, whole_s: float) -> float:
    return min((seconds or 0.0) / (whole_s or 1.0), 1.0)


def _folded(report: TimingReport) -> Iterator[Any]:
    from gpumagic.cuda_sync_time.view_busy import picture, profile_details
    from gpumagic.drawing import (
        Column,
        Details,
        Grid,
        Paragraph,
        Property,
        Table,
        how_measured,
    )

    for table in _tables(report)[1:]:
        yield Details(table.caption, (replace(table, caption=""),), table.name)
    if report.lines:
        meaning = Paragraph(
            "Host is the time at a line, with all that it has called. GPU is what was "
            "launched meanwhile, wherever it ran: kernels and copies added up."
        )
        columns = _line_columns(report)
        runs = Property(Column("Runs", number=True), lambda each: f"{each.runs:,}")
        columns.insert(1, runs)
        table = Table.of("", columns, report.lines)
        yield Details("Time of every line", (table, meaning), "lines")
        if _has_picture(report):
            drawn = picture(report, most=_LANES)
            yield Details(drawn.caption, (replace(drawn, caption=""),), "timeline")
    if report.profile:
        yield from profile_details(report.profile, report.setting)
    yield how_measured(
        Grid("", tuple(_facts(report))), Paragraph("\n".join(_remarks(report)))
    )


def _facts(report: TimingReport) -> Iterator[tuple[str, str | None]]:
    """Each figure, and where and with what it was taken."""
    run, setting = report.run, report.setting
    if run.uses_device:
        yield "measured", "from all devices idle to all devices idle, by the host"
        yield "time", report.text(run.elapsed_s)
        yield "until the code returned", f"{report.text(run.naive_s)}, as %%time says"
        yield "wait after that", report.text(run.waited_s)
        for name, seconds in (
            ("of that, for other streams", run.tail_s),
            ("earlier work, not counted", run.backlog_s),
        ):
            yield name, "none" if seconds == 0 else report.text(seconds)
        for device, seconds in run.events.items():
            where = devices_text(setting.kind, [device])
            yield f"{where}, by events", report.text(seconds)
    else:
        yield "measured", "from the first line to the last, by the host's clock"
    if setting.floor_s:
        yield "an empty cell (the floor)", floor_text(setting.floor_s)
    if run.simulated_in_s:
        took = seconds_text(run.simulated_in_s)
        yield "simulated in", f"{took} of this machine's own time"
    yield from where_measured(setting).items()


def _remarks(report: TimingReport) -> Iterator[str]:
    """What has to be known of the figures."""
    if report.setting.floor_s:
        yield "The floor is not subtracted, and no figure is finer than a tenth of it."
    looked = [each for each in report.flags if each.kind is FlagKind.LOOKED_ON]
    for note in notes(looked, report.setting):
        yield f"{note.text}: {note.hint}."
    if report.setting.label:
        yield "The clock is that of the model: Python's own time is not on it."
    if _has_picture(report) and report.run.uses_device and report.seen.busy_s is None:
        yield (
            "Where the GPU is perhaps busy, only a trace knows: --profile takes one. "
            "Without it, copies are drawn as kernels."
        )
