"""Who holds the memory: names with what they reach, adding up to what is allocated."""

from __future__ import annotations

from collections import Counter
from functools import partial as partial_of
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing import (
    Cell,
    Column,
    Details,
    Note,
    Paragraph,
    Part,
    Property,
    Table,
)
from gpumagic.drawing.document import MOST_ROWS
from gpumagic.gpu_mem.options import Options
from gpumagic.gpu_mem.records import Holder, HolderKind
from gpumagic.gpu_mem.records import Part as HeldPart
from gpumagic.gpu_mem.view_terms import device_name, figures, on_device, short_name
from gpumagic.report.units import (
    bytes_text,
    change_text,
    count_text,
    devices_text,
    known_sum,
    listed,
    seconds_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpumagic.drawing import Cell
    from gpumagic.gpu_mem.records import Holdings, Setting

_NAMELESS = (HolderKind.LIBRARY, HolderKind.UNATTRIBUTED)
_WORTH_NAMING = 0.1  # of what the first one holds
_MOST_PARTS = 3
_MOST_FOLDED = 20  # names
_MOST_APART = 2  # devices on which a name has rows of its own
_MEANING = (
    "Holds: all that is reached from a name. Alone: what comes back if only that name "
    "goes.\nMemory that several names reach needs all of them to go."
)
_PARTIAL = (
    "the search for names was ended early: names hold at least this, and no name "
    "found is at most this"
)
_UNWANTED = {
    HolderKind.ERROR: "a failed call: %gpu_mem leaks",
    HolderKind.OUTPUT: "shown results: %gpu_mem leaks",
    HolderKind.UNATTRIBUTED: "no name that was found",
}
_SEVERAL = -1  # stands for a device where they are more than one


class Unwanted(NamedTuple):
    """The largest part of the memory where no name of the user's has it."""

    nbytes: int
    # how much more that is than before the cell; None where that was not compared
    delta_bytes: int | None
    words: str  # what holds it, and what to type


def unwanted(holdings: Holdings) -> Unwanted | None:
    """What is held by an error, by shown results or by nobody, if that is most."""
    sums: Counter[HolderKind] = Counter()
    for _, kind, nbytes in holdings.sums:
        sums[kind] += nbytes
    if holdings.partial:
        del sums[HolderKind.UNATTRIBUTED]
    kind = max(_UNWANTED, key=lambda kind: sums[kind])
    named = (each for each in holdings.holders if each.kind not in _UNWANTED)
    largest = max((each.reachable_bytes for each in named), default=0)
    if sums[kind] <= largest:
        return None
    deltas = [each.delta_bytes for each in holdings.holders if each.kind is kind]
    more = known_sum(deltas) if deltas else None
    return Unwanted(sums[kind], more, _UNWANTED[kind])


def names_headline(holdings: Holdings | None) -> str:
    """Who that is, in half a sentence; empty where nobody is found."""
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


def names_parts(
    holdings: Holdings, setting: Setting, top: int, *, room: int = MOST_ROWS
) -> Iterator[Part]:
    """The names that hold most, and behind them all that is known of each."""
    if not holdings.holders:
        if any(nbytes != 0 for _, nbytes in holdings.allocated_bytes):
            yield Paragraph("No name was found that holds any of it.")
        return  # there is nothing to hold
    if room:
        yield names_table(holdings, setting, top, room=room)
    if holdings.partial:
        yield Note("note", _PARTIAL, word="search ended early")
    remarks = (Note("note", remark) for remark in holdings.remarks)
    sums = Paragraph("\n".join((_MEANING, *_by_kind(holdings, setting))))
    table = names_table(holdings, setting, max(top, _MOST_FOLDED), sums=not room)
    yield Details("All that is known of the names", (table, sums, *remarks), "names")


def looked_at(holdings: Holdings | None) -> str:
    """How far the search for names went; empty where there was none."""
    if holdings is None or not holdings.searched:
        return ""
    looked = count_text(holdings.searched, "object")
    return f"Names were looked for in {looked}, in {seconds_text(holdings.seconds)}."


def names_table(
    holdings: Holdings,
    setting: Setting,
    top: int,
    *,
    sums: bool = True,
    room: int | None = None,
) -> Table:
    """The largest names, then what the others hold, then the sum."""
    named = [each for each in holdings.holders if each.kind not in _NAMELESS]
    nameless = [each for each in holdings.holders if each.kind in _NAMELESS]
    rows_of_names, below = together(named, _MOST_APART), together(nameless)
    its_sums = list(_sums(holdings)) if sums else []
    if room is not None and top <= Options.top:
        # What is small, and what nobody has a name for, is told in one row.
        rows_of_names += below
        rows_of_names.sort(key=lambda row: -row.holder.reachable_bytes)
        below, room = [], max(room - len(its_sums), 1)
        top = min(top, room if len(rows_of_names) <= room else room - 1)
    shown, more = _shown_of(rows_of_names, max(top, 1))
    properties = tuple(_properties(holdings, setting, is_brief=room is not None))
    rows = [tuple(each.cell(row) for each in properties) for row in shown]
    if more and sums:
        name = _called_together([row.holder for row in more])
        rows.append(_sum_row(properties, name, _alone(row.holder for row in more)))
    rows += [tuple(each.cell(row) for each in properties) for row in below]
    rows += (_sum_row(properties, *each) for each in its_sums)
    columns = tuple(each.column for each in properties)
    total = None if sums else len(rows_of_names) + len(below)
    return Table("Who holds it", columns, tuple(rows), total)


def _called_together(holders: Sequence[Holder]) -> str:
    """What several rows are in one."""
    names = {each.name for each in holders if each.kind not in _NAMELESS}
    rest = any(each.kind in _NAMELESS for each in holders)
    said = count_text(len(names), "more name") if names else "others"
    return f"{said}, and what has none" if names and rest else said


def _of(cell: Callable[[Holder], Cell]) -> Callable[[_Together], Cell]:
    """A cell that does not depend on the device."""
    return lambda row: cell(row.holder)


def _properties(
    holdings: Holdings, setting: Setting, *, is_brief: bool
) -> Iterator[Property]:
    """The columns; one that would be empty in every row is left out."""
    holders, partial = holdings.holders, holdings.partial
    devices = {each.device for each in holders}
    yield Property(Column("Name"), _of(_name))
    if len(devices) > 1:
        where = partial_of(_devices, setting=setting, of_all=len(devices))
        yield Property(Column("Device"), where)
    holds = "Holds at least" if partial else "Holds"
    yield figures(holds, lambda row: row.holder.reachable_bytes)
    if any(each.delta_bytes is not None for each in holders):
        yield figures("Change", lambda row: row.holder.delta_bytes, change_text)
    alone = "Alone so far" if partial else "Alone"
    yield figures(alone, lambda row: row.holder.own_bytes)
    if is_brief:
        return
    if any(each.parts for each in holders):
        yield Property(Column("Made of"), _of(_made_of))
    if any(each.shares_with for each in holders):
        yield Property(Column("Shared with"), _of(lambda each: each.shares_with or ""))


def _sum_row(
    properties: Iterable[Property], name: str, nbytes: int
) -> tuple[Cell, ...]:
    """Several names together, of which only one figure can be told."""
    _, *heads = (each.column.heading for each in properties)
    sums = (bytes_text(nbytes) if head.startswith("Alone") else "" for head in heads)
    return name, *sums


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


def _devices(row: _Together, *, setting: Setting, of_all: int) -> str:
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


def _made_of(holder: Holder) -> str:
    parts = [f"{each.name} {bytes_text(each.nbytes)}" for each in holder.parts]
    most = _MOST_PARTS if len(parts) > _MOST_PARTS else None
    return listed(parts, ", ", most)


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
            said = bytes_text(allocated), "; ".join(kinds)
            alike.setdefault(said, []).append(device)
    for (whole, sums), devices in alike.items():
        if len(devices) > _MOST_APART:
            where = f"on each of {devices_text(setting.kind, devices)}"
            yield f"{whole} {where}: {sums}."
        else:
            wheres = (on_device(setting, device) for device in devices)
            yield from (f"{whole} {where}: {sums}." for where in wheres)


def _is_larger(library: Holder, name: Holder) -> bool:
    return library.own_bytes > name.reachable_bytes


class _Together(NamedTuple):
    """A name with all that it holds."""

    holder: Holder  # its bytes on all of the devices
    held: tuple[tuple[int, int], ...]  # how much of it is reached on each of them


def together(holders: Iterable[Holder], most_apart: int = 1) -> list[_Together]:
    """Each name once, with the sums of its devices.

    They stay in their order, unless one lies on several devices: then the largest come
    first. Two holders on one device that are called the same are not the same.
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


def _shown_of(
    rows: list[_Together], top: int
) -> tuple[list[_Together], list[_Together]]:
    """So many of them, and the rest; what a cell has changed comes before the rest."""
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


def _rows(its: Sequence[Holder], most_apart: int) -> list[_Together]:
    if len(its) <= most_apart:
        return [_Together(each, ((each.device, each.reachable_bytes),)) for each in its]
    return [_sum(its)]


def _sum(its: Sequence[Holder]) -> _Together:
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
        parts=tuple(HeldPart(*each) for each in parts.most_common()),
        delta_bytes=sum(deltas) if deltas else None,
    )
    held = tuple((each.device, each.reachable_bytes) for each in its)
    return _Together(holder, tuple(sorted(held)))
