"""Who holds the memory: names with what they reach, adding up to what is allocated."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing import Column, Note, Paragraph, Table
from gpumagic.gpu_mem.device_words import device_name, on_device, short_name
from gpumagic.gpu_mem.records.names import Holder, HolderKind
from gpumagic.units import bytes_text, change_text, count_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpumagic.drawing import Cell, Part
    from gpumagic.gpu_mem.records.names import Holdings
    from gpumagic.gpu_mem.records.setting import Setting

_NAMELESS = (HolderKind.LIBRARY, HolderKind.UNATTRIBUTED)
_WORTH_NAMING = 0.1  # of what the first one holds
_MOST_PARTS = 3
_ALL_DEVICES = -1
_MEANING = (
    "Holds: all that is reached from a name. Alone: what comes back if only that name "
    "goes; memory that several names reach needs all of them to go."
)
_PARTIAL = (
    "the search was ended before it had seen everything: names hold at least this, and "
    "unattributed is at most this"
)


def names_headline(holdings: Holdings | None) -> str:
    """Who holds most, in half a sentence; empty where nobody is found."""
    named = [each for each in _largest_first(holdings) if each.kind not in _NAMELESS]
    if holdings is None or not named:
        return ""
    first, least = named[0], "at least " if holdings.partial else ""
    held = f"{least}{bytes_text(first.reachable_bytes)}"
    if first.shares_with is not None:
        other = short_name(first.shares_with)
        return f"{short_name(first.name)} holds {held}, some of it with {other}"
    for second in named[1:]:
        big = second.reachable_bytes >= _WORTH_NAMING * first.reachable_bytes
        if second.shares_with is None and big and second.name != first.name:
            both = bytes_text(first.reachable_bytes + second.reachable_bytes)
            names = f"{short_name(first.name)} and {short_name(second.name)}"
            return f"{names} hold {least}{both}"
    return f"{short_name(first.name)} holds {held}"


def names_parts(holdings: Holdings, setting: Setting, top: int) -> Iterator[Part]:
    """The table of names, its sums by kind, and how far the search went."""
    if not holdings.holders:
        yield Paragraph("No name was found that holds any of it.")
    else:
        yield names_table(holdings, setting, top)
        yield Paragraph("\n".join((_MEANING, *_by_kind(holdings, setting))))
    if holdings.partial:
        looked = count_text(holdings.searched, "object")
        spent = seconds_text(holdings.seconds)
        yield Note("note", f"{_PARTIAL} ({looked} in {spent})")
    yield from (Note("note", remark) for remark in holdings.remarks)


def names_table(
    holdings: Holdings, setting: Setting, top: int, *, sums: bool = True
) -> Table:
    """The largest names, then what the others hold, then the sum.

    Args:
        holdings: Who holds what.

        setting: Where.

        top: How many names are shown at most.

        sums: Whether these are all, so that their sum says something.
    """
    named = [each for each in holdings.holders if each.kind not in _NAMELESS]
    nameless = [each for each in holdings.holders if each.kind in _NAMELESS]
    shown, more = named[:top], named[top:]
    properties = tuple(_properties(holdings, setting))
    rows = [tuple(each.cell(holder) for each in properties) for holder in shown]
    if more and sums:
        name = count_text(len(more), "more name")
        rows.append(_sum_row(properties, name, _alone(more)))
    rows += [
        tuple(each.cell(holder) for each in properties)
        for holder in _together(nameless)
    ]
    if sums:
        rows += (_sum_row(properties, *each) for each in _sums(holdings))
    columns = tuple(each.column for each in properties)
    return Table("Who holds it", columns, tuple(rows))


class _Property(NamedTuple):
    """A column, and what a holder has in it."""

    column: Column
    cell: Callable[[Holder], Cell]


def _properties(holdings: Holdings, setting: Setting) -> Iterator[_Property]:
    """The columns; one that would be empty in every row is left out."""
    holders, partial = holdings.holders, holdings.partial
    yield _Property(Column("Name"), _name)
    yield _Property(Column("Kind"), lambda each: each.kind.value)
    if len({each.device for each in holders}) > 1:
        yield _Property(Column("Device"), lambda each: _device(each, setting))
    yield _Property(
        Column("Holds at least" if partial else "Holds", number=True),
        lambda each: bytes_text(each.reachable_bytes),
    )
    if any(each.delta_bytes is not None for each in holders):
        yield _Property(Column("Change", number=True), _change)
    yield _Property(
        Column("Alone so far" if partial else "Alone", number=True),
        lambda each: bytes_text(each.own_bytes),
    )
    if any(each.parts for each in holders):
        yield _Property(Column("Made of"), _made_of)
    if any(each.shares_with for each in holders):
        yield _Property(Column("Shared with"), lambda each: each.shares_with or "")


def _sum_row(
    properties: Iterable[_Property], name: str, nbytes: int
) -> tuple[Cell, ...]:
    """Several names together, of which only one figure can be told."""
    heads = [each.column.heading for each in properties]
    cells = {heads[0]: name, **_alone_cell(heads, nbytes)}
    return tuple(cells.get(head, "") for head in heads)


def _alone_cell(heads: Iterable[str], nbytes: int) -> dict[str, str]:
    return {head: bytes_text(nbytes) for head in heads if head.startswith("Alone")}


def _sums(holdings: Holdings) -> Iterator[tuple[str, int]]:
    """What the rows come to, and what lies between that and the allocator's count."""
    own = _alone(holdings.holders)
    if not holdings.allocated_bytes:
        yield "together", own
        return
    allocated = sum(nbytes for _, nbytes in holdings.allocated_bytes)
    if allocated > own:
        yield "held by several names", allocated - own
    elif allocated < own:
        yield "held, but not counted by the allocator", allocated - own
    yield "allocated", allocated


def _together(nameless: Iterable[Holder]) -> Iterator[Holder]:
    """One row for what nobody was found for, on however many devices."""
    by_name: dict[tuple[HolderKind, str], list[Holder]] = {}
    for holder in nameless:
        by_name.setdefault((holder.kind, holder.name), []).append(holder)
    for (kind, name), its in by_name.items():
        if len(its) == 1:
            yield its[0]
            continue
        reached = sum(each.reachable_bytes for each in its)
        yield Holder(name, kind, _ALL_DEVICES, _alone(its), reached)


def _alone(holders: Iterable[Holder]) -> int:
    return sum(each.own_bytes for each in holders)


def _device(holder: Holder, setting: Setting) -> str:
    if holder.device == _ALL_DEVICES:
        return "all"
    return device_name(setting, holder.device)


def _name(holder: Holder) -> str:
    nobody = holder.kind is HolderKind.UNATTRIBUTED
    return "no name found" if nobody else holder.name


def _change(holder: Holder) -> str | None:
    return None if holder.delta_bytes is None else change_text(holder.delta_bytes)


def _made_of(holder: Holder) -> str:
    parts = [f"{each.name} {bytes_text(each.nbytes)}" for each in holder.parts]
    more = len(parts) - _MOST_PARTS
    return ", ".join(parts[:_MOST_PARTS]) + (f" and {more} more" if more > 0 else "")


def _by_kind(holdings: Holdings, setting: Setting) -> Iterator[str]:
    """For each device the sum that is allocated, by what keeps it alive."""
    for device, allocated in holdings.allocated_bytes:
        kinds = [
            f"{kind.value} {bytes_text(nbytes)}"
            for each, kind, nbytes in holdings.sums
            if each == device and nbytes
        ]
        if kinds:
            where = on_device(setting, device)
            yield f"{bytes_text(allocated)} {where} = {' + '.join(kinds)}."


def _largest_first(holdings: Holdings | None) -> Sequence[Holder]:
    holders = () if holdings is None else holdings.holders
    return sorted(holders, key=lambda each: each.reachable_bytes, reverse=True)
