"""Adds up copies to a device by line, and says what to type to wait for none."""

from __future__ import annotations

import ast
from collections import defaultdict
from typing import TYPE_CHECKING

from gpumagic.pin_loader.report import CopyLine, Remark
from gpumagic.pin_loader.watch_waits import Feeder
from gpumagic.report import robust
from gpumagic.report.places import Place, code_line
from gpumagic.report.units import (
    bytes_text,
    count_text,
    seconds_text,
    share_text,
    shortened,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpumagic.devices.copy_watch import SeenCopy
    from gpumagic.report.events import TracedCopies
    from gpumagic.report.places import CodeLine, PlaceMark

_MOST_REMARKS = 3
_LEAST_SHARE = 0.05  # of all bytes; what is less is not worth a change
_SMALL_BYTES = 1 << 16  # below this a copy takes longer to launch than to run
_MANY = 50
_MOVING = ("to", "cuda", "copy_")  # methods that take non_blocking
_LONGEST = 80
_WAYS = ((False, False), (True, False), (False, True))  # pinned, non_blocking
_MUCH_COPYING = 0.05  # of the time
_WELL_HIDDEN = 0.5
_MUCH_UNEXPLAINED = 0.3


def copy_lines(copies: Iterable[SeenCopy]) -> tuple[CopyLine, ...]:
    """The lines that copied, those with most bytes first."""
    found_by_line = by_line(copies)
    lines = (_added_up(line, found) for line, found in found_by_line.items())
    return tuple(sorted(lines, key=lambda line: line.nbytes, reverse=True))


def by_line(copies: Iterable[SeenCopy]) -> dict[CodeLine | None, list[SeenCopy]]:
    """Put together what one line has copied.

    Copies are many and places are few: each place is looked up once.
    """
    by_mark: dict[PlaceMark | None, list[SeenCopy]] = defaultdict(list)
    for each in copies:
        by_mark[each.mark].append(each)
    found_by_line: dict[CodeLine | None, list[SeenCopy]] = defaultdict(list)
    for mark, found in by_mark.items():
        found_by_line[code_line(mark)] += found
    return found_by_line


def all_bytes(found: Sequence[SeenCopy]) -> int:
    """What they come to."""
    return sum(each.nbytes for each in found)


def all_held_s(found: Sequence[SeenCopy]) -> float:
    """How long they held the host."""
    return sum(each.held_s for each in found)


def _added_up(line: CodeLine | None, found: Sequence[SeenCopy]) -> CopyLine:
    return CopyLine(
        line=line,
        times=len(found),
        nbytes=all_bytes(found),
        pageable_bytes=sum(each.nbytes for each in found if not each.pinned),
        blocking=sum(not each.non_blocking for each in found),
        held_s=all_held_s(found),
    )


def copy_remarks(
    copies: Iterable[SeenCopy], feeder_of: Callable[[int], Feeder | None]
) -> tuple[Remark, ...]:
    """What could be better about copies, and where; the most bytes first.

    Args:
        copies: What was seen.

        feeder_of: Whose batch had come last at a moment, by `time.perf_counter_ns`;
            None where none had come. Copies of that time are left alone.
    """
    in_loop = [each for each in copies if feeder_of(each.at_ns) is not None]
    worst = sorted(by_line(in_loop).values(), key=all_bytes, reverse=True)
    least = all_bytes(in_loop) * _LEAST_SHARE
    remarks = [
        _about(there, feeder_of(there[0].at_ns))
        for found in worst
        for there in _by_way(found)
        if all_bytes(there) >= least
    ]
    small = [_many_small(found) for found in worst if _are_many_small(found)]
    return (*remarks[:_MOST_REMARKS], *small[:1])


def _by_way(found: Iterable[SeenCopy]) -> Iterator[list[SeenCopy]]:
    """Those that could be better, by what is wrong with them."""
    for way in _WAYS:
        there = [each for each in found if (each.pinned, each.non_blocking) == way]
        if there:
            yield there


def _about(there: Sequence[SeenCopy], feeder: Feeder | None) -> Remark:
    held = f"which held the host for {seconds_text(all_held_s(there))}"
    what = f"{_said(there)} copies {bytes_text(all_bytes(there))} from"
    if there[0].pinned:
        text = f"{what} pinned memory and waits all the same, {held}"
        return Remark(text, f"write {_not_blocking(there)}")
    if there[0].non_blocking:
        text = f"{what} pageable memory, {held}: non_blocking=True gains nothing there"
        return Remark(text, _pinning(feeder))
    text = f"{what} pageable memory and waits for it, {held}"
    return Remark(text, f"{_pinning(feeder)}; then write {_not_blocking(there)}")


def _pinning(feeder: Feeder | None) -> str:
    if feeder is None or feeder == Feeder():
        return "pin it where it is made: pin_memory=True, or x.pin_memory() once"
    name = feeder.name or "NAME"
    if feeder.pins:
        return (
            f"%pin_loader {name} --diagnose says which tensors are not pinned, and why"
        )
    return f"let the loader pin: pin_memory=True, or %pin_loader {name}"


def _are_many_small(found: Sequence[SeenCopy]) -> bool:
    return len(found) >= _MANY and _median_bytes(found) <= _SMALL_BYTES


def _many_small(found: Sequence[SeenCopy]) -> Remark:
    return Remark(
        f"{_said(found)} makes {count_text(len(found), 'copy', 'copies')} of "
        f"{bytes_text(_median_bytes(found))} (median): each takes longer to launch "
        "than to run",
        "put small tensors together on the host, as in torch.stack, and copy once",
    )


def _median_bytes(found: Sequence[SeenCopy]) -> float:
    return robust.median([each.nbytes for each in found])


# ------------------------------------------------------------------------ words


def _said(found: Sequence[SeenCopy]) -> str:
    line = code_line(found[0].mark)
    if line is None:
        return "a thread without any code of yours"
    source = line.source
    if source is None:
        return line.where
    return f"{line.where}, `{shortened(source, _LONGEST)}`,"


def _not_blocking(found: Sequence[SeenCopy]) -> str:
    """The call as it should be typed, where it is one that takes the word."""
    mark = found[0].mark
    expression = None if mark is None else Place(*mark).expression
    typed = None if expression is None else with_non_blocking(expression)
    return f"`{typed}`" if typed else "a `.to(device, non_blocking=True)` of its own"


def with_non_blocking(expression: str) -> str | None:
    """A call as it was typed, but not blocking; None if it is no such call.

    >>> with_non_blocking("x.to(device)"), with_non_blocking("x.cuda()")
    ('x.to(device, non_blocking=True)', 'x.cuda(non_blocking=True)')
    """
    typed = " ".join(expression.split())
    try:
        call = ast.parse(typed, mode="eval").body
    except SyntaxError:
        return None
    if not (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in _MOVING
        and typed.isascii()  # Python counts columns in bytes
    ):
        return None
    for keyword in call.keywords:
        if keyword.arg == "non_blocking":
            value = keyword.value
            return f"{typed[: value.col_offset]}True{typed[value.end_col_offset :]}"
    others = call.args or call.keywords
    before = typed[:-1].rstrip().removesuffix(",")
    return f"{before}{', ' if others else ''}non_blocking=True)"


def sharing_remarks(  # noqa: PLR0913 -- each is a word of its own
    copies: Sequence[SeenCopy],
    traced: TracedCopies | None,
    *,
    elapsed_s: float,
    waited_s: float | None,
    name: str | None = None,
    copied_ahead: bool = False,
) -> tuple[Remark, ...]:
    """What the trace has to say beyond the lines.

    Args:
        copies: All that went to the device.

        traced: The sums of the trace.

        elapsed_s: How long it took altogether.

        waited_s: How much of that were waits for data; None is unknown.

        name: What the notebook calls the loader.

        copied_ahead: Whether that is a prefetcher already.
    """
    if traced is None or elapsed_s <= 0:
        return ()
    remarks = []
    if not copied_ahead:
        remarks += _queued(copies, traced, elapsed_s, name or "NAME")
    if waited_s is not None:
        explained_s = traced.kernel_s + waited_s + sum(each.held_s for each in copies)
        remarks += _unexplained(elapsed_s - explained_s, elapsed_s)
    return tuple(remarks)


def _queued(
    copies: Sequence[SeenCopy], traced: TracedCopies, elapsed_s: float, name: str
) -> list[Remark]:
    """Copies that could run beside kernels, but wait in the same stream."""
    free = sum(each.nbytes for each in copies if each.pinned and each.non_blocking)
    if free * 2 <= sum(each.nbytes for each in copies):
        return []
    could_s = min(traced.copying_s, traced.kernel_s)  # no more can be hidden
    if could_s < elapsed_s * _MUCH_COPYING or traced.hidden_s >= could_s * _WELL_HIDDEN:
        return []
    return [
        Remark(
            f"copies do not hold the host, and yet only "
            f"{share_text(traced.hidden_s / traced.copying_s)} of their "
            f"{seconds_text(traced.copying_s)} were hidden behind kernels: in one "
            "stream a copy waits for the kernels before it, and those after it wait",
            f"%pin_loader {name} makes a loader that copies ahead, on its own stream",
        )
    ]


def _unexplained(left_s: float, elapsed_s: float) -> list[Remark]:
    if left_s < elapsed_s * _MUCH_UNEXPLAINED:
        return []
    return [
        Remark(
            f"for {share_text(left_s / elapsed_s)} of the time no kernel ran, and "
            "neither loading nor copying to the device explains it",
            "%%cuda_sync_time --syncs shows what waits (.item(), .cpu(), printing), "
            "and --profile what the host does",
        )
    ]
