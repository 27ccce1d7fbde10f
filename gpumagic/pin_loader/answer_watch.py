"""Says how long a training cell waited for its loaders, and what it copied, by line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.drawing import (
    Column,
    Drawing,
    Note,
    Paragraph,
    Table,
    how_measured,
    one_screen,
)
from gpumagic.pin_loader.answer_loader import notes_of
from gpumagic.report.record import Report
from gpumagic.report.units import (
    bytes_text,
    count_text,
    listed,
    part_text,
    seconds_text,
    share_text,
    shortened,
    time_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Part
    from gpumagic.pin_loader.records import CopyLine, DataWait, Remark
    from gpumagic.report.places import CodeLine

_MOST_LINES = 6
_LONGEST_LINE, _LONGEST_NAME, _LONGEST_ERROR = 60, 30, 80


@dataclass(frozen=True)
class WatchReport(Report):
    """A training cell that was watched while it ran; its times are a little longer."""

    label: str  # of a simulated machine
    elapsed_s: float  # from all idle to all idle, on the device's clock
    host_s: float  # on this machine's clock, which waits for data are on
    copies: tuple[CopyLine, ...] = ()
    waits: tuple[DataWait, ...] = ()
    failed: str = ""  # the error that the code raised, in one line
    remarks: tuple[Remark, ...] = ()

    @property
    def headline(self) -> str:
        """How much of the time it waited for data, and where copies came from."""
        said = f"{_waiting(self)}; {_copying(self.copies)}"
        if self.failed:
            said += f"; the code failed ({shortened(self.failed, _LONGEST_ERROR)})"
        return said

    def drawing(self) -> Any:
        """The verdict and one screen."""
        return Drawing(self.headline, one_screen(_parts(self)), self.label)


def _waiting(report: WatchReport) -> str:
    """A share of the time; of a simulated device the time itself.

    How long such a device takes on this machine says nothing of any loop.
    """
    if not report.waits:
        return "No DataLoader was waited for"
    longest = sorted(report.waits, key=lambda wait: -wait.total_s)
    names = listed(list(dict.fromkeys(wait.loader for wait in longest)), most=2)
    waited_s = sum(wait.total_s for wait in report.waits)
    long = seconds_text(waited_s)
    if not report.label and report.host_s > 0:
        long = f"{share_text(waited_s / report.host_s)} of the time"
    return f"The loop waited {long} for {names}"


def _copying(copies: Sequence[CopyLine]) -> str:
    if not copies:
        return "nothing was copied to a device"
    whole = sum(copy.nbytes for copy in copies)
    pageable = sum(copy.pageable_bytes for copy in copies)
    if not pageable:
        return f"all {bytes_text(whole)} were copied from pinned memory"
    said = f"all {bytes_text(whole)}"
    if pageable < whole:
        said = part_text(pageable, whole)
    return f"{said} were copied from pageable memory"


def _parts(report: WatchReport) -> Iterator[Part]:
    """What went wrong, what to type, and which lines held the host."""
    yield from notes_of(sorted(report.remarks, key=lambda remark: not remark.serious))
    for longest in sorted(report.waits, key=lambda wait: -wait.total_s)[:1]:
        if longest.total_s <= max(0.1 * report.host_s, 0.01):
            break
        name = longest.loader if longest.loader.isidentifier() else "NAME"
        text = f"{longest.loader} loads with {count_text(longest.workers, 'worker')}"
        hint = (
            f"%pin_loader {name} finds out how many workers, and what else, would help"
        )
        yield Note("note", text, hint)
    held = sorted(_held(report), key=lambda each: -each[0])
    if held:
        caption = "Lines that the host waits in, the longest first"
        rows = tuple(row for _, row in held[:_MOST_LINES])
        yield Table(caption, _HEADS, rows, len(held))
    yield how_measured(Paragraph("\n".join(_how(report))))


_HEADS = (
    Column("Line"),
    Column("What"),
    Column("Times", number=True),
    Column("Host held", number=True),
)


def _held(report: WatchReport) -> Iterator[tuple[float, tuple[str, ...]]]:
    """The lines that the host waited in: how long, and their row."""
    for wait in report.waits:
        first, *others = wait.waits.seconds
        what = f"waits for {shortened(wait.loader, _LONGEST_NAME)}"
        if wait.workers and first > sum(others):  # most of it is their start
            started = count_text(wait.workers, "worker")
            what += f", {time_text(first)} to start {started}"
        yield _row(wait.line, what, 1 + len(others), wait.total_s)
    for copy in report.copies:
        what = f"copies {bytes_text(copy.nbytes)}, "
        if 0 < copy.pageable_bytes < copy.nbytes:
            what += f"{bytes_text(copy.pageable_bytes)} of it "
        what += copy.memory
        yield _row(copy.line, what, copy.times, copy.held_s)


def _row(
    line: CodeLine, what: str, times: int, seconds: float
) -> tuple[float, tuple[str, ...]]:
    where = ": ".join(filter(None, [line.where, line.source]))
    shown = shortened(where, _LONGEST_LINE), what, f"{times:,}", time_text(seconds)
    return seconds, shown


def _how(report: WatchReport) -> Iterator[str]:
    if report.failed:
        yield f"The code failed: {report.failed}"
    if report.copies:
        yield "Host held: until the calls had returned, with the host's own part in it."
        yield (
            "A copy from pageable memory can hold the host even with non_blocking=True."
        )
    yield f"The whole cell: {time_text(report.elapsed_s)}, on the device's clock."
    if report.label:
        yield (
            "Waits for data are this machine's; copies are those of the "
            f"{report.label}."
        )
    yield "Watching takes time itself: the cell is a little faster without it."
