"""What is held without need, what was let go of, and what came back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import (
    Column,
    Details,
    Grid,
    Note,
    Paragraph,
    Property,
    Table,
    how_measured,
)
from gpumagic.drawing.document import MOST_ROWS
from gpumagic.gpu_mem.view_terms import (
    device_name,
    figures,
    listed,
    of_host,
    on_device,
    short_name,
)
from gpumagic.report.units import UNKNOWN, bytes_text, count_text, known_sum

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Cell, Part
    from gpumagic.gpu_mem.records import Counters, Growth, Leak, Setting
    from gpumagic.gpu_mem.report import FreeReport, LeakReport

_MOST_TOLD = 3  # devices
_MOST_ROWS = 50
_PARTIAL = "the search was ended early: there may be more"
_FREE = "%gpu_mem free"
_NO_LEAK = "no failed call, shown result or graph keeps memory"
_WATCH = "which lists, caches or hooks grow is seen from cell to cell"
_KEPT = (
    "torch keeps what came back for its next tensors: other processes cannot have it"
)
_GIVE = "%gpu_mem free --cache gives it to the device"
_HOW = (
    "Looked at are errors and their frames, shown results, and graphs of variables; "
    "and names that hold more than at an earlier %gpu_mem or %%gpu_mem.\n"
    "What two of them hold is counted once in the sum."
)
_STILL_HELD = "other names may hold the same memory; this shows which"
_HOW_FREED = (
    "Before and now are torch's own counters; what is free on it is told by the driver."
)


def leaks_headline(report: LeakReport) -> str:
    """How much could come back, and from how many holders."""
    collected = _totals(report.collected_bytes, report.setting)
    if collected:
        return f"collecting cycles has freed {collected}; {_still_held(report)}"
    return _still_held(report)


def _still_held(report: LeakReport) -> str:
    if not report.leaks:
        first = next(iter(report.grown), None)
        if first is None:
            return _NO_LEAK
        hold = "hold" if first.by_hooks else "holds"
        more = f"{bytes_text(first.grown_bytes)} more than {_since(first)}"
        return f"{_growing(first)} {hold} {more}"
    least = "at least " if report.partial else ""
    held = _totals(report.total_bytes, report.setting) or UNKNOWN
    said = f"{least}{held} is held, and probably not wanted"
    if len(report.leaks) == 1:
        return said
    largest = max(report.leaks, key=lambda leak: leak.nbytes)
    return f"{said}: {bytes_text(largest.nbytes)} by {short_name(largest.where)}"


def _totals(by_device: Sequence[tuple[int, int]], setting: Setting) -> str:
    totals = [
        f"{bytes_text(nbytes)} {on_device(setting, device)}"
        for device, nbytes in by_device[:_MOST_TOLD]
    ]
    if more := len(by_device) - len(totals):
        totals.append(count_text(more, "more device"))
    return " and ".join(totals)


def leaks_parts(report: LeakReport) -> Iterator[Part]:
    """Each holder with what to type, and what lets go of all."""
    if report.leaks:
        table = leaks_table(report.leaks, report.setting)
        yield table.beginning(MOST_ROWS)
        yield from _together(report)
        if len(report.leaks) > MOST_ROWS:
            yield Details("All that is probably not wanted", (table,), "holders")
        yield from _holding(report.leaks)
    if report.grown:
        yield _grown_table(report.grown, report.setting).beginning(MOST_ROWS)
    elif not report.leaks:
        yield Note("note", _WATCH, "%%gpu_mem")
    if report.partial:
        yield Note("note", _PARTIAL)
    remarks = [Note("note", remark) for remark in report.remarks]
    if not report.leaks:
        yield from remarks
    yield how_measured(Paragraph(_HOW), *(remarks if report.leaks else ()))


def leaks_table(leaks: Sequence[Leak], setting: Setting) -> Table:
    """A row for each holder."""
    several = len({leak.device for leak in leaks}) > 1
    of_device = Property(
        Column("Device"), lambda leak: device_name(setting, leak.device)
    )
    properties = (
        Property(Column("Held by"), lambda leak: short_name(leak.where)),
        Property(Column("What it is"), lambda leak: leak.kind.value),
        figures("Bytes", lambda leak: leak.nbytes),
        *((of_device,) if several else ()),
        Property(Column("To let go of it"), lambda leak: leak.undo or "-"),
        Property(Column("Lost by that"), lambda leak: leak.lost or "nothing"),
    )
    caption = "Held, and probably not wanted"
    return Table.of(caption, properties, leaks[:_MOST_ROWS], total=len(leaks))


def _grown_table(grown: Sequence[Growth], setting: Setting) -> Table:
    """A row for each name that holds more than at first."""
    properties = (
        Property(Column("Name"), _growing),
        Property(Column("Device"), lambda each: device_name(setting, each.device)),
        figures("Holds", lambda each: each.nbytes),
        figures("More by", lambda each: each.grown_bytes),
        Property(Column("Than"), _since),
        Property(Column("Grew", number=True), lambda each: _times(each.times)),
    )
    return Table.of("Names that grew", properties, grown, total=len(grown))


def _growing(growth: Growth) -> str:
    name = short_name(growth.name)
    return f"hooks of {name}" if growth.by_hooks else name


def _since(growth: Growth) -> str:
    return "at first" if growth.since_cell is None else f"at In [{growth.since_cell}]"


def _times(times: int) -> str:
    return "once" if times == 1 else f"{times:,} times"


def _holding(leaks: Sequence[Leak]) -> Iterator[Part]:
    """The places that have to let go at once, where there are several."""
    pairs: list[tuple[str, Cell]] = [
        (leak.where, ", ".join(leak.held_by))
        for leak in leaks[:_MOST_ROWS]
        if leak.held_by
    ]
    if pairs:
        grid = Grid("", tuple(pairs))
        yield Details("Every place that has to let go", (grid,), "places")


def _together(report: LeakReport) -> Iterator[Part]:
    """What one command lets go of."""
    freed = [leak for leak in report.leaks if _goes_with_free(leak)]
    if freed:
        lets = "one command lets go of"
        every = "all of it" if len(freed) == len(report.leaks) else "all but graphs"
        yield Note("note", f"{lets} {every}", _FREE)


def _goes_with_free(leak: Leak) -> bool:
    """Whether it needs no more than the command; a graph needs a line of its own."""
    return leak.undo.startswith(_FREE)


# ------------------------------------------------------------------- what was let go of


def free_headline(report: FreeReport) -> str:
    """How much came back."""
    if not report.dropped:
        return "there was nothing to let go of"
    back = [_back(before, after) for _, before, after in _pairs(report)]
    if not back:
        return "all was let go of; no device is in use that anything could come back to"
    together = known_sum(back)
    moved = [
        after.device
        for _, before, after in _pairs(report)
        if len(back) == 1 or _back(before, after) != 0
    ]
    if len(moved) == 1:
        where = on_device(report.setting, moved[0])
    else:
        where = f"on {count_text(len(moved) or len(back), 'device')}"
    if together is None:
        return f"all was let go of; how much came back {where} is {UNKNOWN}"
    if together <= 0 and (given := _given(report)):
        return given
    if together <= 0:
        return f"all was let go of, and nothing came back {where}"
    return f"{bytes_text(together)} {where} came back"


def _given(report: FreeReport) -> str:
    """What went back to the driver where no tensor went; empty if nothing did."""
    gains = {
        after.device: gained
        for place, _, after in _pairs(report)
        if (gained := _gained(report, place) or 0) > 0
    }
    if not gains:
        return ""
    where = on_device(report.setting, next(iter(gains)))
    if len(gains) > 1:
        where = f"on {count_text(len(gains), 'device')}"
    given = bytes_text(sum(gains.values()))
    return f"{given} of torch's cache {where} was given back to the device"


def free_parts(report: FreeReport) -> Iterator[Part]:
    """The figures of each device, what is gone, and what was done."""
    if report.after:
        yield _free_table(report).beginning(MOST_ROWS)
    if report.lost:
        yield Paragraph(f"Not there any more: {listed(report.lost)}.")
    if _kept(report):
        yield Note("note", _KEPT, _GIVE, "kept by torch")
    if _in_vain(report):
        yield Note("note", _STILL_HELD, "%gpu_mem")
    yield from (Note("note", remark) for remark in report.remarks)
    if report.dropped:
        steps = (f"{number}. {done}" for number, done in enumerate(report.dropped, 1))
        parts = (Paragraph("\n".join(steps)),)
        yield Details("What was let go of, in this order", parts, "steps")
    if len(report.after) > MOST_ROWS:
        yield Details("All devices", (_free_table(report),), "devices")
    if report.after:
        yield how_measured(Paragraph(_HOW_FREED))


def _free_table(report: FreeReport) -> Table:
    properties = [
        Property(
            Column("Device"), lambda at: device_name(report.setting, at[2].device)
        ),
        figures("Allocated before", lambda at: at[1].allocated_bytes),
        figures("Now", lambda at: at[2].allocated_bytes),
        figures("Came back", lambda at: _back(at[1], at[2])),
    ]
    if not of_host(report.setting):
        properties += (
            figures("To the device", lambda at: _gained(report, at[0])),
            figures("Free on it now", lambda at: _at(report.free_after_bytes, at[0])),
        )
    return Table.of("What came back", properties, _pairs(report))


def _gained(report: FreeReport, place: int) -> int | None:
    """How much more is free on a device than before."""
    before = _at(report.free_before_bytes, place)
    after = _at(report.free_after_bytes, place)
    return None if before is None or after is None else after - before


def _pairs(report: FreeReport) -> Iterator[tuple[int, Counters, Counters]]:
    """Each device that was read both times, with its place among them."""
    before = {counters.device: counters for counters in report.before}
    for place, after in enumerate(report.after):
        if after.device in before:
            yield place, before[after.device], after


def _back(before: Counters, after: Counters) -> int | None:
    if before.allocated_bytes is None or after.allocated_bytes is None:
        return None
    return before.allocated_bytes - after.allocated_bytes


def _kept(report: FreeReport) -> bool:
    """Whether memory came back that torch has not given to the device."""
    return any(
        (_back(before, after) or 0) > 0
        and before.reserved_bytes is not None
        and before.reserved_bytes == after.reserved_bytes
        for _, before, after in _pairs(report)
    )


def _in_vain(report: FreeReport) -> bool:
    """Whether something was let go of, and it is known that no memory came back."""
    back = known_sum([_back(before, after) for _, before, after in _pairs(report)])
    in_vain = bool(report.dropped) and back is not None and back <= 0
    return in_vain and not _given(report)


def _at(amounts: tuple[int | None, ...], place: int) -> int | None:
    return amounts[place] if place < len(amounts) else None
