"""Whether a tensor can be viewed as a shape, and if not, where it breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Note, Paragraph, Table
from gpumagic.report.units import bytes_text
from gpumagic.tensor_info.words import dims_text, numbers_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Part
    from gpumagic.tensor_info.report import ViewReport


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
