"""What one name holds on several devices, as one row."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.gpu_mem.records.names import Holder, HolderKind, Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SEVERAL = -1  # stands for a device where they are more than one


class Together(NamedTuple):
    """A name with all that it holds.

    Attributes:
        holder: Its bytes on all of the devices.

        held: How much of it is reached on each of them.
    """

    holder: Holder
    held: tuple[tuple[int, int], ...]


def together(holders: Iterable[Holder], most_apart: int = 1) -> list[Together]:
    """Each name once, with the sums of its devices.

    They stay in their order, unless one lies on several devices: then the largest come
    first. Two holders on one device that are called the same are not the same.

    Args:
        holders: What was found, by name and device.

        most_apart: On so many devices at most a name keeps a row for each.
    """
    groups: dict[tuple[HolderKind, str, int], list[Holder]] = {}
    met: Counter[tuple[HolderKind, str, int]] = Counter()
    for each in holders:
        place = each.kind, each.name, each.device
        groups.setdefault((each.kind, each.name, met[place]), []).append(each)
        met[place] += 1
    rows = [row for its in groups.values() for row in _rows(its, most_apart)]
    if all(len(row.held) == 1 for row in rows):
        return rows
    return sorted(rows, key=lambda row: -row.holder.reachable_bytes)


def shown_of(rows: list[Together], top: int) -> tuple[list[Together], list[Together]]:
    """So many of them, and the rest; what a cell has changed comes before the rest.

    Args:
        rows: In the order in which they are to be read.

        top: How many there is room for.
    """
    if len(rows) <= top:
        return rows, []
    by_change = sorted(rows, key=lambda row: -abs(row.holder.delta_bytes or 0))
    chosen = {id(row) for row in by_change[:top] if row.holder.delta_bytes}
    chosen |= {id(row) for row in rows[: top - len(chosen)]}
    for row in rows:
        if len(chosen) >= top:
            break
        chosen.add(id(row))
    return (
        [row for row in rows if id(row) in chosen],
        [row for row in rows if id(row) not in chosen],
    )


def _rows(its: Sequence[Holder], most_apart: int) -> list[Together]:
    if len(its) <= most_apart:
        return [Together(each, ((each.device, each.reachable_bytes),)) for each in its]
    return [_sum(its)]


def _sum(its: Sequence[Holder]) -> Together:
    deltas = [each.delta_bytes for each in its if each.delta_bytes is not None]
    parts: Counter[str] = Counter()
    for each in its:
        parts.update({part.name: part.nbytes for part in each.parts})
    holder = Holder(
        name=its[0].name,
        kind=its[0].kind,
        device=its[0].device if len(its) == 1 else _SEVERAL,
        own_bytes=sum(each.own_bytes for each in its),
        reachable_bytes=sum(each.reachable_bytes for each in its),
        storages=sum(each.storages for each in its),
        shares_with=next((each.shares_with for each in its if each.shares_with), None),
        parts=tuple(Part(*each) for each in parts.most_common()),
        delta_bytes=sum(deltas) if deltas else None,
    )
    held = tuple((each.device, each.reachable_bytes) for each in its)
    return Together(holder, tuple(sorted(held)))
