"""Draws how tensors lie in memory: the verdict, the diagram, then what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Drawing, Note, Paragraph, Property, Table
from gpumagic.report.units import bytes_text, count_text
from gpumagic.tensor_info.report import AliasReport, CompareReport, ViewReport
from gpumagic.tensor_info.sentences import dims_text, headline, numbers_text, shape_text
from gpumagic.tensor_info.view_compare import (
    BarLane,
    LaneBars,
    comparison_headline,
    comparison_parts,
    relation_text,
)
from gpumagic.tensor_info.view_tensor import diagram, tensor_parts
from gpumagic.tensor_info.view_warp import warp_sections

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpumagic.drawing import Part
    from gpumagic.tensor_info.report import Group, Name, TensorReport

    AnyReport = TensorReport | ViewReport | CompareReport | AliasReport

_SIMULATED = "simulated GPU"
_MOST_GROUPS, _MOST_NAMES, _MOST_RELATIONS = 8, 12, 12


def draw(report: AnyReport) -> Drawing:
    """One tensor, several, one shape for a tensor, or the names that share memory."""
    match report:
        case ViewReport():
            return _view(report)
        case CompareReport(tensors=(_,), views=(only,), remarks=()):
            return _view(only)  # what was asked; the tensor itself is asked for alone
        case CompareReport():
            return _compared(report)
        case AliasReport():
            parts = tuple(sharing_parts(report))
            return Drawing(sharing_headline(report), parts, _label((report,)))
        case _:
            parts = tuple(tensor_parts(report))
            return Drawing(headline(report), parts, _label((report,)))


def _view(report: ViewReport) -> Drawing:
    parts = (*shape_parts(report), *_of_view(report))
    return Drawing(shape_headline(report), parts, _label((report.tensor,)))


def _of_view(report: ViewReport) -> Iterator[Part]:
    """The tensor, with the places where its walk breaks."""
    marks = {
        report.next_expected: "expected",
        report.last_element: "last",
        report.next_element: "next",
    }
    known = {place: word for place, word in marks.items() if place is not None}
    yield from diagram(report.tensor, known)


def _compared(report: CompareReport) -> Drawing:
    label = _label(report.tensors)
    if len(report.tensors) == 1 and not report.remarks:
        (only,) = report.tensors
        parts = tuple(tensor_parts(only, warp=report.warp))
        return Drawing(headline(only), parts, label)
    return Drawing(comparison_headline(report), tuple(_beside(report)), label)


def _beside(report: CompareReport) -> Iterator[Part]:
    if report.pairs or len(report.tensors) > 1:
        yield from comparison_parts(report)
    else:
        for each in report.tensors:
            yield from tensor_parts(each, warp=report.warp)
    yield from _views(report)
    if report.pairs:
        shown = [each for each in report.tensors if report.warp or each.on_accelerator]
        yield from warp_sections(shown, named=True)
    yield from (Note("problem", remark) for remark in report.remarks)


def _views(report: CompareReport) -> Iterator[Part]:
    for each in report.views:
        yield Note("note" if each.view else "problem", shape_headline(each))
        yield from shape_parts(each)


def _label(reports: Iterable[TensorReport | AliasReport]) -> str:
    return _SIMULATED if any(each.simulated for each in reports) else ""


def shape_headline(report: ViewReport) -> str:
    """The answer, and what it costs not to have it."""
    call = f"{report.tensor.expression}.view{numbers_text(report.shape)}"
    if report.problem:
        return f"{call} is not possible: {report.problem}"
    if report.view:
        return f"{call} works, and copies nothing"
    copy = bytes_text(report.reshape_copies_bytes)
    return f"{call} fails; .reshape would copy {copy}"


def shape_parts(report: ViewReport) -> Iterator[Part]:
    """Why, and which shapes work."""
    if report.view and report.stride is not None:
        yield Paragraph(
            f"The strides of the view are {numbers_text(report.stride)}; it shares its "
            "elements with the tensor."
        )
    if not report.view and not report.problem:
        yield Note("problem", obstacle(report))
        yield Note(
            "note",
            f".reshape{numbers_text(report.shape)} allocates "
            f"{bytes_text(report.reshape_copies_bytes)} and returns a copy: what is "
            "written there is not written here",
        )
    if not report.view:
        yield from _ways(report)


def obstacle(report: ViewReport) -> str:
    """Which dims are in the way, and where in memory it shows."""
    said = [_dims(report), _places(report)]
    return " ".join(each for each in said if each) or (
        "the dims cannot be walked in the order that this shape needs"
    )


def _dims(report: ViewReport) -> str:
    dims, needed = report.blocked_between_old_dims, report.stride_needed
    if dims is None or report.blocked_new_dim is None:
        return ""
    outer, inner = dims
    new = report.blocked_new_dim
    said = (
        f"new dim {new} (of {report.shape[new]:,}) must walk old dims {outer} and "
        f"{inner} together"
    )
    if needed is None or report.stride_found is None:
        return f"{said}."
    return (
        f"{said}: for that, dim {outer} would need stride {needed:,} and has "
        f"{report.stride_found:,}."
    )


def _places(report: ViewReport) -> str:
    if report.last_index is None or report.next_element is None:
        return ""
    at = ", ".join(map(str, report.last_index))
    return (
        f"After [{at}] at place {report.last_element:,} the next element lies at "
        f"{report.next_element:,}, not at {report.next_expected:,}."
    )


def _ways(report: ViewReport) -> Iterator[Part]:
    name = report.tensor.expression
    rows = [
        (f"{name}.view{numbers_text(shape)}", "a view")
        for shape in report.shapes_that_work
    ]
    if report.permutation_that_works is not None:
        order = numbers_text(report.permutation_that_works)
        rows.append((f"{name}.permute{order}.view(-1)", "a view, in memory order"))
    if not report.problem:
        copy = f"a copy of {bytes_text(report.reshape_copies_bytes)}"
        rows.append((f"{name}.reshape{numbers_text(report.shape)}", copy))
    if rows:
        columns = (Column("Code"), Column("Gives"))
        yield Table("What works", columns, tuple(rows))
    merged = [merge for merge in report.tensor.free_merges or () if len(merge.dims) > 1]
    for merge in merged:
        yield Note("note", f"{dims_text(merge.dims)} merge without a copy")


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
    properties = (
        Property(Column("First"), lambda pair: group.names[pair.first].name),
        Property(Column("Relation"), relation_text),
        Property(Column("Second"), lambda pair: group.names[pair.second].name),
    )
    shown, total = group.relations[:_MOST_RELATIONS], len(group.relations)
    return Table.of("Relations", properties, shown, total)
