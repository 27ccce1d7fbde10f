"""What is held without need, what was let go of, and what came back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Details, Grid, Note, Paragraph, Property, Table
from gpumagic.drawing.document import known_sum
from gpumagic.gpu_mem.view_terms import (
    device_name,
    figures,
    listed,
    of_host,
    on_device,
    short_name,
)
from gpumagic.report.units import UNKNOWN, bytes_text, count_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Cell, Part
    from gpumagic.gpu_mem.records import Counters, Leak, Setting
    from gpumagic.gpu_mem.report import FreeReport, LeakReport

_MOST_TOLD = 3  # devices
_MOST_ROWS = 20
_PARTIAL = "the search was ended before it had seen everything: there may be more"
_FREE = "%gpu_mem free"
_KEPT = "what came back is kept by torch for its next tensors: others cannot have it"
_GIVE = "%gpu_mem free --cache gives it to the device"
_STILL_HELD = "other names may hold the same memory; this shows which"


def leaks_headline(report: LeakReport) -> str:
    """How much could come back, and from how many holders."""
    collected = _totals(report.collected_bytes, report.setting)
    if collected:
        return f"collecting cycles has freed {collected}; {_still_held(report)}"
    return _still_held(report)


def _still_held(report: LeakReport) -> str:
    if not report.leaks:
        other = "else " if report.collected_bytes else ""
        return f"nothing {other}was found that is held without being wanted"
    holders = count_text(len(report.leaks), "holder")
    verb = "keeps" if len(report.leaks) == 1 else "keep"
    least = "at least " if report.partial else ""
    held = _totals(report.total_bytes, report.setting) or UNKNOWN
    return f"{holders} {verb} {least}{held} that is probably not wanted"


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
        yield leaks_table(report.leaks, report.setting)
        yield from _holding(report.leaks)
        yield from _together(report)
    if report.partial:
        yield Note("note", _PARTIAL)
    yield from (Note("note", remark) for remark in report.remarks)


def leaks_table(leaks: Sequence[Leak], setting: Setting) -> Table:
    """A row for each holder."""

    def size(leak: Leak) -> str:
        return f"{bytes_text(leak.nbytes)} {on_device(setting, leak.device)}"

    properties = (
        Property(Column("Held by"), lambda leak: leak.where),
        Property(Column("What it is"), lambda leak: leak.kind.value),
        Property(Column("Bytes", number=True), size),
        Property(Column("To let go of it alone"), lambda leak: leak.undo or "-"),
        Property(Column("Lost by that"), lambda leak: leak.lost or "nothing"),
    )
    caption = "Held, and probably not wanted"
    return Table.of(caption, properties, leaks[:_MOST_ROWS], total=len(leaks))


def _holding(leaks: Sequence[Leak]) -> Iterator[Part]:
    """The places that have to let go at once, where there are several."""
    pairs: list[tuple[str, Cell]] = [
        (short_name(leak.where), ", ".join(leak.held_by))
        for leak in leaks[:_MOST_ROWS]
        if leak.held_by
    ]
    if pairs:
        yield Details("Every place that has to let go", (Grid("", tuple(pairs)),))


def _together(report: LeakReport) -> Iterator[Part]:
    """What one command lets go of, and what is lost by that."""
    freed = [leak for leak in report.leaks if _goes_with_free(leak)]
    if freed:
        yield Note("note", f"{_sum_text(report)} {_lost_text(freed)}", _FREE)


def _goes_with_free(leak: Leak) -> bool:
    """Whether it needs no more than the command; a graph needs a line of its own."""
    return leak.undo.startswith(_FREE)


def _sum_text(report: LeakReport) -> str:
    rows = sum(leak.nbytes for leak in report.leaks)
    total = sum(nbytes for _, nbytes in report.total_bytes)
    twice = "what two of them hold is counted once; " if total < rows else ""
    if all(map(_goes_with_free, report.leaks)):
        return f"{twice}all of it can be let go of together;"
    return f"{twice}what names %gpu_mem free goes with it at once;"


def _lost_text(leaks: Sequence[Leak]) -> str:
    lost = dict.fromkeys(leak.lost for leak in leaks if leak.lost)
    return f"that loses {', '.join(lost)}" if lost else "nothing is lost by that"


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
    """What was done, the figures of each device, what is gone."""
    if report.dropped:
        steps = (f"{number}. {done}" for number, done in enumerate(report.dropped, 1))
        yield Paragraph("\n".join(("Let go of, in this order:", *steps)))
    if report.after:
        yield _free_table(report)
    if report.lost:
        yield Note("note", f"not there any more: {listed(report.lost)}")
    if _kept(report):
        yield Note("note", _KEPT, _GIVE)
    if _in_vain(report):
        yield Note("note", _STILL_HELD, "%gpu_mem")
    yield from (Note("note", remark) for remark in report.remarks)


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
