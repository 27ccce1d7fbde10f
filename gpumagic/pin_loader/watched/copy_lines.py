"""Copies to a device, added up by line of the user's code."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from gpumagic.pin_loader.records.watched import CopyLine
from gpumagic.report.places import code_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpumagic.devices.copy_watch import SeenCopy
    from gpumagic.report.events import CodeLine
    from gpumagic.report.places import PlaceMark


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
