"""Which lines made the host wait, and for how long altogether."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.records.run import SyncPoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumagic.report.events import CodeLine, SyncCall


def points_of(calls: Sequence[SyncCall]) -> tuple[SyncPoint, ...]:
    """The calls by line and by what they are, the dearest first.

    Those whose cost is unknown come behind all that is known; what costs the same
    stays in the order in which it was first seen. One call of unknown cost leaves
    the cost of its whole point unknown.
    """
    groups: dict[tuple[CodeLine | None, str], list[SyncCall]] = {}
    for call in calls:
        groups.setdefault((call.line, call.what), []).append(call)
    points = [
        SyncPoint(what, line, len(group), _together_s(group))
        for (line, what), group in groups.items()
    ]
    return tuple(sorted(points, key=_cheapness))


def _together_s(group: Sequence[SyncCall]) -> float | None:
    known = [call.waited_s for call in group if call.waited_s is not None]
    return sum(known) if len(known) == len(group) else None


def _cheapness(point: SyncPoint) -> tuple[bool, float]:
    return point.waited_s is None, -(point.waited_s or 0.0)
