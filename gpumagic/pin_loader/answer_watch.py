"""Says how long a training cell waited for its loaders, and what it copied, by line."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.drawing import (
    Column,
    Details,
    Drawing,
    Grid,
    Meter,
    Note,
    Paragraph,
    Property,
    Sparkline,
    Table,
    how_measured,
    one_screen,
)
from gpumagic.pin_loader.answer_loader import notes_of, place_lines
from gpumagic.report import robust
from gpumagic.report.record import Report
from gpumagic.report.units import (
    NOT_MEASURED,
    bytes_text,
    count_text,
    listed,
    part_text,
    seconds_text,
    share_text,
    shortened,
    time_of_text,
    time_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.drawing import Cell, Part
    from gpumagic.pin_loader.report import CopyLine, DataWait, Remark, Setting
    from gpumagic.report.events import SeenRace
    from gpumagic.report.places import Code, CodeLine

_MOST_LINES = 12
_MOST_IN_SIGHT = 4
_MUCH_WAITING = 0.1
_MOST_CURVES = 3
_FEWEST_POINTS = 4
_LONGEST_SOURCE = 100
_LONGEST_LINE, _LONGEST_NAME = 60, 30
NO_LINE = "no line of the cell"
_LONGEST_ERROR = 80
_WHAT_COPIES_ARE = """\
Blocking: copies without non_blocking=True.
A copy from pageable memory can hold the host either way.
Host held: until the calls had returned, with the host's own part in it."""


@dataclass(frozen=True)
class WatchReport(Report):
    """A training cell that was watched while it ran; its times are a little longer."""

    code: Code
    setting: Setting
    elapsed_s: float  # from all idle to all idle, on the device's clock
    host_s: float  # on this machine's clock, which waits for data are on
    copies: tuple[CopyLine, ...] = ()
    waits: tuple[DataWait, ...] = ()
    copying_s: float | None = None  # copies to a device were under way
    hidden_s: float | None = None  # of that beside kernels
    kernel_s: float | None = None
    races: tuple[SeenRace, ...] = ()
    failed: str | None = None  # the error that the code raised, in one line
    remarks: tuple[Remark, ...] = ()
    problem: str | None = None  # why there is no trace
    hint: str | None = None

    @property
    def headline(self) -> str:
        """The answer in one sentence."""
        return watch_headline(self)

    def drawing(self) -> Any:
        """The verdict and one screen."""
        return draw_watch(self)


def draw_watch(report: WatchReport) -> Drawing:
    """A cell that was watched."""
    parts = one_screen(_parts(report))
    return Drawing(watch_headline(report), parts, report.setting.label)


def _parts(report: WatchReport) -> Iterator[Part]:
    """What went wrong, what to type, and which lines held the host."""
    yield from _notes(report)
    yield Grid("The cell as a whole", tuple(_whole(report)))
    lines: Details | None = None
    held = sorted(_held(report), key=lambda each: each.seconds or 0.0, reverse=True)
    if held:
        caption = "Lines that the host waits in, the longest first"
        table = Table.of(caption, _HELD, held)
        yield table.beginning(_MOST_IN_SIGHT)
        if len(held) > _MOST_IN_SIGHT:
            lines = Details("All lines that the host waits in", (table,), "lines")
    if lines is not None:
        yield lines
    if report.waits:
        curves = tuple(_curves(report.waits))
        yield Details(
            "Each loop's waits for data", (_waits(report.waits), *curves), "waits"
        )
    if report.copies:
        inside = (_copies(report.copies), Paragraph(_WHAT_COPIES_ARE))
        yield Details("Copies to a device, by line", inside, "copies")
    yield how_measured(Paragraph("\n".join(_how(report))))


def _notes(report: WatchReport) -> Iterator[Part]:
    yield from _races(report.races)
    yield from notes_of(sorted(report.remarks, key=lambda remark: not remark.serious))
    if report.problem is not None:
        yield Note("note", report.problem, report.hint or "")
    waited = share_of(waited_s(report.waits), report.host_s) or 0.0
    hints = [each.hint for each in report.remarks]
    told = any("%pin_loader" in each for each in hints)
    wrong = report.races or report.failed is not None
    if waited >= _MUCH_WAITING and not told and not wrong:
        first = max(report.waits, key=lambda wait: wait.total_s).loader
        if first.isidentifier():
            hint = f"%pin_loader {first} --diagnose"
            yield Note("note", "whether workers or pinning would help", hint)


def _races(races: Sequence[SeenRace]) -> Iterator[Part]:
    seen = Counter((race.problem, race.hint) for race in races)
    for (problem, hint), times in seen.most_common():
        often = "" if times == 1 else f" ({times:,} times)"
        yield Note("problem", f"{problem}{often}", hint)


class _Held(NamedTuple):
    """A line that the host waited in."""

    line: CodeLine | None
    what: str
    times: int
    seconds: float | None


def _held(report: WatchReport) -> Iterator[_Held]:
    for wait in report.waits:
        what = f"waits for {shortened(wait.loader, _LONGEST_NAME)}"
        yield _Held(wait.line, what, len(wait.waits.seconds), wait.total_s)
    for copy in report.copies:
        yield _Held(copy.line, _copied(copy), copy.times, copy.held_s)


def _copied(copy: CopyLine) -> str:
    said = f"copies {bytes_text(copy.nbytes)}"
    if copy.pageable_bytes is None:
        return said
    if copy.pageable_bytes == copy.nbytes:
        return f"{said}, pageable"
    if not copy.pageable_bytes:
        return f"{said}, pinned"
    return f"{said}, {bytes_text(copy.pageable_bytes)} of it pageable"


def _whole(report: WatchReport) -> Iterator[tuple[str, Cell]]:
    if report.setting.label:
        yield "on the device's clock", time_text(report.elapsed_s)
        yield "on this machine's clock", time_text(report.host_s)
    else:
        yield "elapsed", time_text(report.elapsed_s)
    if report.waits:
        yield "waiting for data", _waited(report)
    yield "kernels running", _meter(report.kernel_s, report.elapsed_s)
    if report.copies or report.copying_s:
        yield "copies running", _meter(report.copying_s, report.elapsed_s)
        yield "of that beside kernels", _meter(report.hidden_s, report.copying_s)


def _waited(report: WatchReport) -> Cell:
    """Beside the time of the cell, unless a simulated device took that."""
    waited = waited_s(report.waits)
    if report.setting.label:
        return time_text(waited)
    said = time_of_text(waited, report.host_s)
    return Meter(share_of(waited, report.host_s), said)


def _meter(part_s: float | None, whole_s: float | None) -> Cell:
    if part_s is None or whole_s is None:
        return NOT_MEASURED
    return Meter(share_of(part_s, whole_s), time_of_text(part_s, whole_s))


def _waits(waits: Sequence[DataWait]) -> Table:
    rows = sorted(waits, key=lambda wait: wait.total_s, reverse=True)
    caption = "Waits for data; median and longest are those after the first"
    return Table.of(caption, _WAIT, rows[:_MOST_LINES], len(rows))


def _loader(wait: DataWait) -> str:
    """The loader, and the two settings that matter most here."""
    said = []
    if wait.workers is not None:
        said.append(count_text(wait.workers, "worker"))
    if wait.pin_memory is not None:
        said.append("pinned" if wait.pin_memory else "not pinned")
    return f"{wait.loader} ({', '.join(said)})" if said else wait.loader


def _curves(waits: Sequence[DataWait]) -> Iterator[Part]:
    """The waits in order; the first one would flatten all others."""
    rows = sorted(waits, key=lambda wait: wait.total_s, reverse=True)
    for wait in rows[:_MOST_CURVES]:
        rest = wait.waits.seconds[1:]
        if len(rest) >= _FEWEST_POINTS:
            caption = f"Each wait for {wait.loader} after the first, in order"
            yield Sparkline(caption, rest, seconds_text)


def _copies(copies: Sequence[CopyLine]) -> Table:
    rows = sorted(copies, key=lambda copy: copy.nbytes, reverse=True)
    return Table.of("Copies to a device, by line", _COPY, rows[:_MOST_LINES], len(rows))


def _count(number: int | None) -> str | None:
    return None if number is None else f"{number:,}"


def _line(line: CodeLine | None) -> str:
    if line is None:
        return NO_LINE
    source = line.source or "its source is gone"
    return f"{line.where}: {shortened(source, _LONGEST_SOURCE)}"


def _how(report: WatchReport) -> Iterator[str]:
    if report.failed is not None:
        yield f"The code failed: {report.failed}"
    if report.copies and report.copying_s is not None:
        yield "Copies running: as the device's own trace has them."
    if report.setting.label:
        yield "Waits for data are this machine's, without pinning."
        yield f"Copies and kernels are those of the {report.setting.label}."
    yield "Watching takes time itself: the cell is a little faster without it."
    yield from place_lines(report.setting)


def watch_headline(report: WatchReport) -> str:
    """How much of the time it waited for data, and where copies came from."""
    said = "; ".join((_waiting(report), _copying(report.copies)))
    if report.failed is not None:
        failed = shortened(report.failed, _LONGEST_ERROR)
        said = f"{said}; the code failed ({failed})"
    return said


def waited_s(waits: Sequence[DataWait]) -> float:
    """All waits for all loaders."""
    return sum(wait.total_s for wait in waits)


def share_of(part_s: float, whole_s: float) -> float | None:
    """A share of a time; None where there was none."""
    return part_s / whole_s if whole_s > 0 else None


def _waiting(report: WatchReport) -> str:
    if not report.waits:
        return "No DataLoader was waited for"
    return f"{_whose(report.waits)} waited {_long(report)}for {_names(report.waits)}"


def _long(report: WatchReport) -> str:
    """A share of the time; of a simulated device the time itself.

    How long such a device takes on this machine says nothing of any loop.
    """
    waited = waited_s(report.waits)
    if report.setting.label:
        return f"{seconds_text(waited)} "
    share = share_of(waited, report.host_s)
    return "" if share is None else f"{share_text(share)} of the time "


def _whose(waits: Sequence[DataWait]) -> str:
    return "The loop" if len(waits) == 1 else "The loops"


def _names(waits: Sequence[DataWait]) -> str:
    longest = sorted(waits, key=lambda wait: wait.total_s, reverse=True)
    return listed(list(dict.fromkeys(wait.loader for wait in longest)), most=2)


def _copying(copies: Sequence[CopyLine]) -> str:
    if not copies:
        return "nothing was copied to a device"
    whole = sum(copy.nbytes for copy in copies)
    known = list(_pageable(copies))
    if not known:
        return f"{bytes_text(whole)} were copied to the device"
    pageable = sum(known)
    least = "at least " if len(known) < len(copies) else ""
    if not pageable and not least:
        return f"all {bytes_text(whole)} were copied from pinned memory"
    said = f"{least}{part_text(pageable, whole)}"
    if pageable == whole:
        said = f"all {bytes_text(whole)}"
    return f"{said} were copied from pageable memory"


def _pageable(copies: Sequence[CopyLine]) -> Iterator[int]:
    return (c.pageable_bytes for c in copies if c.pageable_bytes is not None)


def _after_first(of: Callable[[Sequence[float]], float]) -> Callable[[DataWait], str]:
    def cell(wait: DataWait) -> str:
        rest = wait.waits.seconds[1:]
        return time_text(of(rest)) if rest else "-"

    return cell


_WAIT = (
    Property(Column("Loader"), _loader),
    Property(Column("Loop"), lambda wait: _line(wait.line)),
    Property(
        Column("Batches", number=True), lambda wait: f"{len(wait.waits.seconds):,}"
    ),
    Property(Column("Waited", number=True), lambda wait: time_text(wait.total_s)),
    Property(
        Column("First", number=True),
        lambda wait: time_text(next(iter(wait.waits.seconds), None)),
    ),
    Property(Column("Median", number=True), _after_first(robust.median)),
    Property(Column("Longest", number=True), _after_first(max)),
)
_HELD = (
    Property(Column("Line"), lambda held: shortened(_line(held.line), _LONGEST_LINE)),
    Property(Column("What"), lambda held: held.what),
    Property(Column("Times", number=True), lambda held: f"{held.times:,}"),
    Property(Column("Host held", number=True), lambda held: time_text(held.seconds)),
)
_COPY = (
    Property(Column("Line"), lambda copy: _line(copy.line)),
    Property(Column("Copies", number=True), lambda copy: f"{copy.times:,}"),
    Property(Column("Blocking", number=True), lambda copy: _count(copy.blocking)),
    Property(Column("Bytes", number=True), lambda copy: bytes_text(copy.nbytes)),
    Property(
        Column("Pageable", number=True),
        lambda copy: (
            None if copy.pageable_bytes is None else bytes_text(copy.pageable_bytes)
        ),
    ),
    Property(Column("Host held", number=True), lambda copy: time_text(copy.held_s)),
)
