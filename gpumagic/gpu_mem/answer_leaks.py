"""What is held and probably not wanted, what was let go of, and what came back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.gpu_mem import view_terms as terms
from gpumagic.gpu_mem.records import difference
from gpumagic.report.record import Record, Report
from gpumagic.report.units import UNKNOWN, bytes_text, how_often, known_sum

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic import drawing as kit
    from gpumagic.gpu_mem.records import Counters, Leak, Setting

FREE = "%gpu_mem free"
_PARTIAL = "the search was ended early: there may be more"
_NO_LEAK = "no failed call, shown result or graph keeps memory"
_WATCH = "which lists, caches or hooks grow is seen from cell to cell"
_CYCLES = "what cycles keep is not looked for; Python's collector gives it back"
_KEPT = (
    "torch keeps what came back for its next tensors: other processes cannot have it"
)
_GIVE = "%gpu_mem free --cache gives it to the device"
_HOW = (
    "Looked at are errors and their frames, shown results, and graphs of variables; "
    "and names that hold more than at an earlier %gpu_mem or %%gpu_mem.\n"
    "What two of them hold is counted once in the sum."
)
_HOW_FREED = (
    "Before and now are torch's own counters; what is free on it is told by the driver."
)


# ------------------------------------------------------------------------- leaks


@dataclass(frozen=True)
class Growth(Record):
    """A name that holds more than when it was first looked at."""

    name: str
    device: int
    nbytes: int
    grown_bytes: int
    times: int = 1  # at how many looks it held more than at the one before
    since_cell: int | None = None  # the cell of the first look

    @property
    def since(self) -> str:
        """Which look it is compared with."""
        return "at first" if self.since_cell is None else f"at In [{self.since_cell}]"


@dataclass(frozen=True)
class LeakReport(Report):
    """What could be let go of, largest first."""

    setting: Setting
    leaks: tuple[Leak, ...]
    # by device, counting what two of them hold only once
    total_bytes: tuple[tuple[int, int], ...] = ()
    partial: bool = False
    remarks: tuple[str, ...] = ()
    # names that hold more than when they were first looked at
    grown: tuple[Growth, ...] = ()

    def drawing(self) -> kit.Drawing:
        """The answer, each holder with what to type, and the names that grew."""
        from gpumagic import drawing as kit

        parts = kit.one_screen(_leak_parts(self))
        return kit.Drawing(leaks_headline(self), parts, self.setting.label)


def leaks_headline(report: LeakReport) -> str:
    """How much could come back, and from how many holders."""
    if not report.leaks:
        first = next(iter(report.grown), None)
        if first is None:
            return _NO_LEAK
        name, more = terms.short_name(first.name), bytes_text(first.grown_bytes)
        return f"{name} holds {more} more than {first.since}"
    least = "at least " if report.partial else ""
    devices, sizes = zip(*report.total_bytes, strict=True)
    held = f"{bytes_text(sum(sizes))} {terms.on_devices(report.setting, *devices)}"
    said = f"{least}{held} is held, and probably not wanted"
    if len(report.leaks) == 1:
        return said
    largest = max(report.leaks, key=lambda leak: leak.nbytes)
    where = terms.short_name(largest.where)
    return f"{said}: {bytes_text(largest.nbytes)} by {where}"


def _leak_parts(report: LeakReport) -> Iterator[kit.Part]:
    from gpumagic import drawing as kit
    from gpumagic.drawing.document import MOST_ROWS

    leaks, grown = report.leaks, report.grown
    if leaks:
        yield leaks_table(leaks, report.setting)
        freed = [leak for leak in leaks if leak.undo.startswith(FREE)]
        if freed:
            every = "all of it" if len(freed) == len(leaks) else "all but graphs"
            yield kit.Note("note", f"one command lets go of {every}", FREE)
    if grown:
        yield _grown_table(grown, report.setting).beginning(MOST_ROWS)
    elif not leaks:
        yield kit.Note("note", _WATCH, "%%gpu_mem")
        yield kit.Note("note", _CYCLES, FREE)
    if report.partial:
        yield kit.Note("note", _PARTIAL)
    remarks = [kit.Note("note", remark) for remark in report.remarks]
    yield kit.how_measured(kit.Paragraph(_HOW), *remarks)


def leaks_table(leaks: Sequence[Leak], setting: Setting) -> kit.Table:
    """A row for each holder."""
    from gpumagic import drawing as kit

    several = len({leak.device for leak in leaks}) > 1
    properties = (
        terms.words("Held by", lambda leak: terms.short_name(leak.where)),
        terms.words("What it is", lambda leak: leak.kind.value),
        terms.figures("Bytes", lambda leak: leak.nbytes),
        *((terms.devices(setting),) if several else ()),
        terms.words("To let go of it", lambda leak: leak.undo or "-"),
        terms.words("Lost by that", lambda leak: leak.lost or "nothing"),
    )
    caption = "Held, and probably not wanted"
    return kit.Table.of(caption, properties, leaks, name="leaks")


def _grown_table(grown: Sequence[Growth], setting: Setting) -> kit.Table:
    from gpumagic import drawing as kit

    properties = (
        terms.words("Name", lambda each: terms.short_name(each.name)),
        terms.devices(setting),
        terms.figures("Holds", lambda each: each.nbytes),
        terms.figures("More by", lambda each: each.grown_bytes),
        terms.words("Than", lambda each: each.since),
        terms.words("Grew", lambda each: how_often(each.times)),
    )
    return kit.Table.of("Names that grew", properties, grown, total=len(grown))


# ------------------------------------------------------------------ what came back


@dataclass(frozen=True)
class Return(Record):
    """What one device has after letting go."""

    before: Counters
    after: Counters
    free_before_bytes: int | None = None  # by its driver's account
    free_bytes: int | None = None

    @property
    def device(self) -> int:
        """Its number."""
        return self.after.device

    @property
    def back_bytes(self) -> int | None:
        """What came back, by torch's account."""
        return difference(self.before.allocated_bytes, self.after.allocated_bytes)

    @property
    def gained_bytes(self) -> int | None:
        """What the device got back, by its driver's."""
        return difference(self.free_bytes, self.free_before_bytes)


@dataclass(frozen=True)
class FreeReport(Report):
    """What was let go of, and what came back."""

    setting: Setting
    returns: tuple[Return, ...] = ()  # of each device that was read both times
    lost: tuple[str, ...] = ()  # what is not there any more: `%debug`, `Out`
    remarks: tuple[str, ...] = ()

    def drawing(self) -> kit.Drawing:
        """The answer, the figures of each device, and what is gone."""
        from gpumagic import drawing as kit

        parts = kit.one_screen(_free_parts(self))
        return kit.Drawing(free_headline(self), parts, self.setting.label)


def free_headline(report: FreeReport) -> str:
    """How much came back."""
    setting, found = report.setting, report.returns
    if not found:
        return "no device is in use that memory could come back to"
    moved = [e.device for e in found if e.back_bytes != 0 or e.gained_bytes]
    where = terms.on_devices(setting, *(moved or [each.device for each in found]))
    together = known_sum([each.back_bytes for each in found])
    if together is None:
        return f"how much came back {where} is {UNKNOWN}"
    if together > 0:
        return f"{bytes_text(together)} {where} came back"
    given = sum(max(each.gained_bytes or 0, 0) for each in found)
    if given:
        return (
            f"{bytes_text(given)} of torch's cache {where} was given back to the device"
        )
    if not report.lost:
        return "there was nothing to let go of"
    return f"nothing came back {where}: what was let go of held no memory by itself"


def _free_parts(report: FreeReport) -> Iterator[kit.Part]:
    from gpumagic import drawing as kit
    from gpumagic.drawing.document import MOST_ROWS

    setting, found = report.setting, report.returns
    if found:
        properties = [
            terms.devices(setting),
            terms.figures("Allocated before", lambda e: e.before.allocated_bytes),
            terms.figures("Now", lambda each: each.after.allocated_bytes),
            terms.figures("Came back", lambda each: each.back_bytes),
            terms.figures("To the device", lambda each: each.gained_bytes),
            terms.figures("Free on it now", lambda each: each.free_bytes),
        ]
        yield kit.Table.of("What came back", properties, found).beginning(MOST_ROWS)
    if report.lost:
        yield kit.Paragraph(f"Not there any more: {terms.names_listed(report.lost)}.")
    if any(_is_kept(each) for each in found):
        yield kit.Note("note", _KEPT, _GIVE, "kept by torch")
    elif report.lost and not any(e.back_bytes or e.gained_bytes for e in found):
        yield kit.Note("note", "other names may hold it; this shows which", "%gpu_mem")
    yield from (kit.Note("note", remark) for remark in report.remarks)
    if found:
        yield kit.how_measured(kit.Paragraph(_HOW_FREED))


def _is_kept(each: Return) -> bool:
    """Whether memory came back that torch has not given to the device."""
    given = difference(each.before.reserved_bytes, each.after.reserved_bytes)
    return (each.back_bytes or 0) > 0 and given == 0
