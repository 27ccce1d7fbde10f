"""Which names share memory: one group after the other, the largest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Note, Table
from gpumagic.report.units import bytes_text, count_text
from gpumagic.tensor_info.beside_section import relation_text
from gpumagic.tensor_info.diagram.lane_bars import BarLane, LaneBars
from gpumagic.tensor_info.words import shape_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Part
    from gpumagic.tensor_info.report import AliasReport, Group, Name

_MOST_GROUPS, _MOST_NAMES, _MOST_RELATIONS = 8, 12, 12


def sharing_headline(report: AliasReport) -> str:
    """How much memory is shared, and by how many names."""
    alone = count_text(report.alone, "tensor")
    alone_text = f"{alone} of {bytes_text(report.alone_bytes)} without another name"
    if not report.alone:
        alone_text = "no other tensors"
    if not report.groups:
        return f"no two names share memory; {alone_text}"
    names = sum(len(group.names) for group in report.groups)
    pieces = count_text(len(report.groups), "piece of memory", "pieces of memory")
    share = "is shared" if len(report.groups) == 1 else "are shared"
    return f"{pieces} {share} by {count_text(names, 'name')}; {alone_text}"


def sharing_parts(report: AliasReport) -> Iterator[Part]:
    """A strip with a lane for each name, then relations, holders and advice."""
    for group in report.groups[:_MOST_GROUPS]:
        yield from _group(group)
    more = len(report.groups) - _MOST_GROUPS
    if more > 0:
        yield Note("note", f"{count_text(more, 'smaller group')} not drawn")
    if not report.complete:
        yield Note("warning", "the search was cut short: there may be more names")
    yield from (Note("note", remark) for remark in report.remarks)


def _group(group: Group) -> Iterator[Part]:
    lanes = tuple(
        BarLane(
            name.name, name.first_byte, name.last_byte, _is_dense(name), _said(name)
        )
        for name in group.names[:_MOST_NAMES]
    )
    yield LaneBars(_caption(group), lanes, group.stored_bytes)
    if group.relations:
        yield _relations(group)
    if (more := len(group.names) - _MOST_NAMES) > 0:
        yield Note("note", f"{count_text(more, 'more name')} not drawn")
    if group.hidden_holders:
        yield Note(
            "note",
            f"at least {group.hidden_holders} more hold this memory that no name here "
            "leads to, such as what autograd has saved",
        )
    if group.advice:
        yield Note("warning", _waste(group), group.advice)


def _caption(group: Group) -> str:
    said = f"{bytes_text(group.stored_bytes)} on {group.device}"
    if group.used_bytes is not None:
        said += f", {bytes_text(group.used_bytes)} of it used"
    if group.kept_for_nothing_bytes:
        said += f", {bytes_text(group.kept_for_nothing_bytes)} kept for nothing"
    return said


def _waste(group: Group) -> str:
    if group.kept_for_nothing_bytes:
        kept = bytes_text(group.kept_for_nothing_bytes)
        return f"{kept} are kept for nothing:"
    return "what can be done:"


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
    rows = tuple(
        (
            group.names[pair.first].name,
            relation_text(pair),
            group.names[pair.second].name,
        )
        for pair in group.relations[:_MOST_RELATIONS]
    )
    columns = (Column("First"), Column("Relation"), Column("Second"))
    return Table("Relations", columns, rows, total_rows=len(group.relations))
