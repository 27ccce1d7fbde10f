"""Draws which names share memory, and what would free some of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Details, Note, Paragraph, Property, Table
from gpumagic.drawing import how_measured as how
from gpumagic.report.units import bytes_text, count_text, listed
from gpumagic.tensor_info.lane_bars import BarLane, LaneBars
from gpumagic.tensor_info.sentences import shape_text
from gpumagic.tensor_info.view_compare import relation_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.drawing import Part
    from gpumagic.tensor_info.report import AliasReport, Group, Name

_MOST_GROUPS, _MOST_NAMES, _MOST_RELATIONS = 8, 12, 12
_NAMED_AT_MOST, _MOST_LANES_IN_SIGHT = 2, 6
_HOW = (
    "Looked at were the names of the notebook, and one level within them: lists, "
    "tuples, dicts, modules.\n"
    "Memory is told apart by device and address; no operation was run."
)


def sharing_headline(report: AliasReport) -> str:
    """Who keeps most for nothing; else how much memory is shared, by how many names."""
    groups = report.groups
    if not groups:
        return "no two names share memory"
    worst = max(groups, key=lambda group: group.kept_for_nothing_bytes or 0)
    stored = bytes_text(sum(group.stored_bytes for group in groups))
    if worst.kept_for_nothing_bytes:
        kept, used = bytes_text(worst.stored_bytes), bytes_text(worst.used_bytes)
        keep, use = ("keep", "use") if len(worst.names) > 1 else ("keeps", "uses")
        return f"{_names(worst)} {keep} {kept} alive and {use} {used}"
    names = count_text(sum(len(group.names) for group in groups), "name")
    pieces = count_text(len(groups), "piece of memory", "pieces of memory")
    share = "is shared" if len(groups) == 1 else "are shared"
    return f"{pieces}, {stored} in all, {share} by {names}"


def sharing_parts(report: AliasReport) -> Iterator[Part]:
    """The largest piece of memory, all pieces in figures, and what frees some."""
    groups = report.groups
    if groups:
        yield _lanes(groups[0], _MOST_LANES_IN_SIGHT)
        yield _pieces(groups)
    if not report.complete:
        yield Note("warning", "the search was cut short: there may be more names")
    for group in groups:
        yield from _advice(group)
    yield from (Note("note", remark) for remark in report.remarks)
    if groups:
        yield Details("Each piece, name by name", tuple(_each(groups)), "names")
    if related := [group for group in groups if group.relations]:
        tables = tuple(_relations(group) for group in related[:_MOST_GROUPS])
        yield Details("What two names have in common", tables, "pairs")
    yield how(Paragraph(f"{_HOW}\n{_alone(report)}"))


def _pieces(groups: Sequence[Group]) -> Table:
    properties = (
        Property(Column("Names"), _names),
        Property(Column("Memory"), lambda group: group.device),
        Property(
            Column("Size", number=True), lambda group: bytes_text(group.stored_bytes)
        ),
        Property(Column("Used", number=True), _bytes_of("used_bytes")),
        Property(
            Column("Kept for nothing", number=True),
            _bytes_of("kept_for_nothing_bytes"),
        ),
    )
    return Table.of("Memory under several names", properties, groups, name="pieces")


def _bytes_of(field: str) -> Callable[[Group], str | None]:
    def text(group: Group) -> str | None:
        count = getattr(group, field)
        return None if count is None else bytes_text(count)

    return text


def _names(group: Group) -> str:
    return listed([name.name for name in group.names], most=_NAMED_AT_MOST)


def _alone(report: AliasReport) -> str:
    if not report.alone:
        return "There are no other tensors."
    alone = count_text(report.alone, "tensor")
    return f"{alone} of {bytes_text(report.alone_bytes)} have no other name."


def _advice(group: Group) -> Iterator[Note]:
    if group.advice:
        yield Note("warning", f"{_names(group)} can let go of memory", group.advice)
    if group.hidden_holders:
        yield Note(
            "note",
            f"at least {group.hidden_holders} more hold the memory of {_names(group)}, "
            "such as what autograd has saved",
        )


def _each(groups: Sequence[Group]) -> Iterator[Part]:
    for group in groups[:_MOST_GROUPS]:
        yield _lanes(group, _MOST_NAMES)
        if (more := len(group.names) - _MOST_NAMES) > 0:
            yield Paragraph(f"{count_text(more, 'more name')} not drawn.")
    if (more := len(groups) - _MOST_GROUPS) > 0:
        yield Paragraph(f"{count_text(more, 'smaller piece')} not drawn.")


def _lanes(group: Group, most: int) -> LaneBars:
    lanes = tuple(
        BarLane(
            name.name, name.first_byte, name.last_byte, _is_dense(name), _said(name)
        )
        for name in group.names[:most]
    )
    size = bytes_text(group.stored_bytes)
    ends = bytes_text(0), size
    return LaneBars(f"{size} on {group.device}", lanes, group.stored_bytes, ends)


def _is_dense(name: Name) -> bool | None:
    if name.touched_bytes is None:
        return None
    return name.touched_bytes >= name.last_byte - name.first_byte


def _said(name: Name) -> str:
    shape = f"{shape_text(name.size)} {name.dtype}"
    where = f"byte {name.first_byte:,} to {name.last_byte:,}"
    holes = ", with gaps" if _is_dense(name) is False else ""
    kept = ", held by the notebook's outputs" if name.is_output else ""
    return f"{name.kind}, {shape}, {where}{holes}{kept}"


def _relations(group: Group) -> Table:
    properties = (
        Property(Column("First"), lambda pair: group.names[pair.first].name),
        Property(Column("Relation"), relation_text),
        Property(Column("Second"), lambda pair: group.names[pair.second].name),
    )
    shown, total = group.relations[:_MOST_RELATIONS], len(group.relations)
    return Table.of(_names(group), properties, shown, total)
