"""Does `.view` work on a tensor, and if not, where does the walk break?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Details, Note, Paragraph, Table
from gpumagic.report.units import bytes_text
from gpumagic.tensor_info.answer_tensor import (
    dims_table,
    drawn,
    facts_table,
    headline,
    how_looked,
    numbers_text,
)
from gpumagic.tensor_info.figure import memory_strip, visible_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Drawing, Part
    from gpumagic.tensor_info.report import ViewReport


def view_headline(report: ViewReport) -> str:
    """The answer, and what it costs not to have it."""
    view, _ = _methods(report)
    call = f"{report.tensor.expression}.{view}{numbers_text(report.shape)}"
    if report.problem:
        return f"{call} is not possible: {report.problem}"
    if report.view:
        return f"{call} works, and copies nothing"
    copy = bytes_text(report.reshape_copies_bytes)
    if report.tensor.is_numpy:
        return f"{call} copies {copy}"
    return f"{call} fails; .reshape would copy {copy}"


def _methods(report: ViewReport) -> tuple[str, str]:
    """What is called for another shape and for another order of dims."""
    if report.tensor.is_numpy:  # whose .view() takes a dtype
        return "reshape", "transpose"
    return "view", "permute"


def draw(report: ViewReport) -> Drawing:
    """The answer, where it breaks, what works, and why."""
    return drawn(
        view_headline(report), _parts(report), simulated=report.tensor.simulated
    )


def _parts(report: ViewReport) -> Iterator[Part]:
    tensor, view = report.tensor, numbers_text(report.shape)
    visible = visible_tensor(tensor)
    if visible and visible.landings:
        marks = {
            report.next_expected: "expected",
            report.last_element: "last",
            report.next_element: "next",
        }
        yield memory_strip(visible, marks)
    if report.view:
        yield Paragraph(
            f"The strides of the view are {numbers_text(report.stride)}; it shares its "
            "elements with the tensor."
        )
    elif not report.problem:
        yield _ways(report, view)
    if dims := report.blocked_between_old_dims:
        new, at = report.blocked_new_dim, [*(report.last_index or ())]
        yield Note(
            "problem",
            f"new dim {new} (of {report.shape[new]:,}) must walk old dims {dims[0]} "
            f"and {dims[1]} together: for that, dim {dims[0]} would need stride "
            f"{report.stride_needed:,} and has {report.stride_found:,}. "
            f"After {at} at place {report.last_element:,} the next element lies at "
            f"{report.next_element:,}, not at {report.next_expected:,}.",
        )
    yield from (Note("problem", remark) for remark in report.remarks)
    told: list[Part] = [Paragraph(f"{headline(tensor)}."), *dims_table(tensor)]
    yield Details("The tensor", (*told, facts_table(tensor)), "tensor")
    yield how_looked((tensor,))


def _ways(report: ViewReport, view: str) -> Table:
    """The code that works in the place of what does not."""
    name, rows, (method, permute) = report.tensor.expression, [], _methods(report)
    if report.permutation_that_works:
        order = numbers_text(report.permutation_that_works)
        rows.append(
            (f"{name}.{permute}{order}.{method}(-1)", "a view, in memory order")
        )
    copy = f"a copy of {bytes_text(report.reshape_copies_bytes)}"
    rows.append((f"{name}.reshape{view}", copy))
    columns = (Column("Code"), Column("Gives"))
    return Table("What works", columns, tuple(rows), name="works")
