"""Who holds the memory: names with what they reach, adding up to what is allocated."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing import Column, Note, Paragraph, Table
from gpumagic.gpu_mem.device_words import device_name, on_device, short_name
from gpumagic.gpu_mem.names_together import shown_of, together
from gpumagic.gpu_mem.records.names import HolderKind
from gpumagic.report.units import (
    bytes_text,
    change_text,
    count_text,
    devices_text,
    seconds_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpumagic.drawing import Cell, Part
    from gpumagic.gpu_mem.names_together import Together
    from gpumagic.gpu_mem.records.names import Holder, Holdings
    from gpumagic.gpu_mem.records.setting import Setting

_NAMELESS = (HolderKind.LIBRARY, HolderKind.UNATTRIBUTED)
_WORTH_NAMING = 0.1  # of what the first one holds
_MOST_PARTS = 3
_MOST_APART = 2  # devices on which a name has rows of its own
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
    if holdings is None:
        return ""
    all_of_them = sorted(
        (each.holder for each in together(holdings.holders)),
        key=lambda holder: -holder.reachable_bytes,
    )
    named = [each for each in all_of_them if each.kind not in _NAMELESS]
    if not named:
        return ""
    first, least = named[0], "at least " if holdings.partial else ""
    held = f"{least}{bytes_text(first.reachable_bytes)}"
    for library in all_of_them:
        if library.kind is HolderKind.LIBRARY and _is_larger(library, first):
            theirs = bytes_text(library.own_bytes)
            return f"{library.name} hold {theirs}, {short_name(first.name)} {held}"
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
        if not any(nbytes != 0 for _, nbytes in holdings.allocated_bytes):
            return  # there is nothing to hold
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
    shown, more = shown_of(together(named, _MOST_APART), top)
    properties = tuple(_properties(holdings, setting))
    rows = [tuple(each.cell(row) for each in properties) for row in shown]
    if more and sums:
        name = count_text(len({row.holder.name for row in more}), "more name")
        rows.append(_sum_row(properties, name, _alone(row.holder for row in more)))
    rows += [tuple(each.cell(row) for each in properties) for row in together(nameless)]
    if sums:
        rows += (_sum_row(properties, *each) for each in _sums(holdings))
    columns = tuple(each.column for each in properties)
    return Table("Who holds it", columns, tuple(rows))


class _Property(NamedTuple):
    """A column, and what a holder has in it."""

    column: Column
    cell: Callable[[Together], Cell]


def _of(cell: Callable[[Holder], Cell]) -> Callable[[Together], Cell]:
    """A cell that does not depend on the device."""
    return lambda row: cell(row.holder)


def _properties(holdings: Holdings, setting: Setting) -> Iterator[_Property]:
    """The columns; one that would be empty in every row is left out."""
    holders, partial = holdings.holders, holdings.partial
    yield _Property(Column("Name"), _of(_name))
    yield _Property(Column("Kind"), _of(lambda each: each.kind.value))
    devices = {each.device for each in holders}
    if len(devices) > 1:
        yield _Property(
            Column("Device"), lambda row: _devices(row, setting, len(devices))
        )
    yield _Property(
        Column("Holds at least" if partial else "Holds", number=True),
        _of(lambda each: bytes_text(each.reachable_bytes)),
    )
    if any(each.delta_bytes is not None for each in holders):
        yield _Property(Column("Change", number=True), _of(_change))
    yield _Property(
        Column("Alone so far" if partial else "Alone", number=True),
        _of(lambda each: bytes_text(each.own_bytes)),
    )
    if any(each.parts for each in holders):
        yield _Property(Column("Made of"), _of(_made_of))
    if any(each.shares_with for each in holders):
        shared = _of(lambda each: each.shares_with or "")
        yield _Property(Column("Shared with"), shared)


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


def _alone(holders: Iterable[Holder]) -> int:
    return sum(each.own_bytes for each in holders)


def _devices(row: Together, setting: Setting, of_all: int) -> str:
    """Where it lies; on several devices, how much of it on which."""
    if len(row.held) == 1:
        return device_name(setting, row.held[0][0])
    if len(row.held) < of_all:
        where = devices_text(setting.kind, (device for device, _ in row.held))
    elif row.holder.kind in _NAMELESS:
        return "all"
    else:
        where = f"all {of_all}"
    sizes = {bytes_text(nbytes) for _, nbytes in row.held}
    if len(sizes) == 1:
        return f"{where}, {sizes.pop()} each"
    device, most = max(row.held, key=lambda each: each[1])
    return f"{where}, most on {device_name(setting, device)}: {bytes_text(most)}"


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
    alike: dict[tuple[str, str], list[int]] = {}
    for device, allocated in holdings.allocated_bytes:
        kinds = [
            f"{kind.value} {bytes_text(nbytes)}"
            for each, kind, nbytes in holdings.sums
            if each == device and nbytes
        ]
        if kinds:
            said = bytes_text(allocated), " + ".join(kinds)
            alike.setdefault(said, []).append(device)
    for (whole, sums), devices in alike.items():
        if len(devices) > _MOST_APART:
            where = f"on each of {devices_text(setting.kind, devices)}"
            yield f"{whole} {where} = {sums}."
        else:
            wheres = (on_device(setting, device) for device in devices)
            yield from (f"{whole} {where} = {sums}." for where in wheres)


def _is_larger(library: Holder, name: Holder) -> bool:
    return library.own_bytes > name.reachable_bytes
