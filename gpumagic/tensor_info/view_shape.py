"""Draws whether `.view` works on a tensor, and if not, where the walk breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Details, Note, Paragraph, Table
from gpumagic.report.units import bytes_text
from gpumagic.tensor_info.merging import mixed_dims
from gpumagic.tensor_info.panels import index_panel
from gpumagic.tensor_info.sentences import dims_text, headline, numbers_text
from gpumagic.tensor_info.view_facts import facts_table
from gpumagic.tensor_info.view_tensor import dims_table, how_looked, walk_strip
from gpumagic.tensor_info.visible_axes import visible_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Part
    from gpumagic.tensor_info.report import TensorReport, ViewReport


def shape_headline(report: ViewReport) -> str:
    """The answer, and what it costs not to have it."""
    call = f"{report.tensor.expression}.view{numbers_text(report.shape)}"
    if report.problem:
        return f"{call} is not possible: {report.problem}"
    if report.view:
        return f"{call} works, and copies nothing"
    copy = bytes_text(report.reshape_copies_bytes)
    return f"{call} fails; .reshape would copy {copy}"


def shape_parts(report: ViewReport, remarks: tuple[str, ...] = ()) -> Iterator[Part]:
    """Where it breaks, which shapes work, and why; `remarks` are on what failed."""
    yield from _walk(report)
    if report.view and report.stride is not None:
        yield Paragraph(
            f"The strides of the view are {numbers_text(report.stride)}; it shares its "
            "elements with the tensor."
        )
    yield from ways(report)
    if not report.view and not report.problem:
        yield Note("problem", obstacle(report))
    yield from (Note("problem", remark) for remark in remarks)
    yield from _folded(report)


def _walk(report: ViewReport) -> Iterator[Part]:
    """The places in memory, with those where the walk breaks."""
    marks = {
        report.next_expected: "expected",
        report.last_element: "last",
        report.next_element: "next",
    }
    known = {place: word for place, word in marks.items() if place is not None}
    yield from walk_strip(report.tensor, known)


def _folded(report: ViewReport) -> Iterator[Details]:
    tensor = report.tensor
    yield Details("The tensor", tuple(_tensor(tensor)), "tensor")
    if said := _costs(report):
        yield Details("What a copy means", (Paragraph(said),), "views")
    yield how_looked((tensor,))


def _tensor(tensor: TensorReport) -> Iterator[Part]:
    yield Paragraph(f"{headline(tensor)}.")
    visible = visible_tensor(tensor)
    if visible is not None:
        yield index_panel(visible)
    if tensor.size and tensor.stride is not None:
        yield dims_table(tensor)
    yield facts_table(tensor)


def _costs(report: ViewReport) -> str:
    said = []
    if not report.view and not report.problem:
        said.append(
            f".reshape{numbers_text(report.shape)} allocates "
            f"{bytes_text(report.reshape_copies_bytes)} and returns a copy; what is "
            "written there is not written here."
        )
    said += [
        f"{dims_text(merge.dims)} merge without a copy."
        for merge in report.tensor.free_merges or ()
        if len(merge.dims) > 1 and not report.view
    ]
    return "\n".join(said)


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


def ways(report: ViewReport) -> Iterator[Table]:
    """The code that works in the place of what does not."""
    if report.view:
        return
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
        mixed = mixed_dims(report.tensor.size or (), report.shape)
        if mixed:
            copy += f" that mixes {dims_text(mixed)}; .permute keeps them apart"
        rows.append((f"{name}.reshape{numbers_text(report.shape)}", copy))
    if rows:
        columns = (Column("Code"), Column("Gives"))
        yield Table("What works", columns, tuple(rows), name="works")
