"""All that is drawn of one tensor, in the order in which it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Details, Grid, Note
from gpumagic.tensor_info.bytes_section import bytes_section
from gpumagic.tensor_info.diagram.index_panel import index_panel
from gpumagic.tensor_info.diagram.memory_strip import memory_strip
from gpumagic.tensor_info.diagram.sight import sight_of
from gpumagic.tensor_info.facts_table import facts_table, steps_table
from gpumagic.tensor_info.safety_section import safety_section, view_summary
from gpumagic.tensor_info.warp_section import warp_section
from gpumagic.tensor_info.words import headline

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpumagic.drawing import Part
    from gpumagic.tensor_info.report import TensorReport, ValueSummary

_MOST_INNER = 4


def tensor_parts(report: TensorReport, *, warp: bool = False) -> Iterator[Part]:
    """The diagram, then the facts that it rests on, then what to do.

    Args:
        report: The tensor.

        warp: Whether the warp view is drawn for a tensor of the host as well.
    """
    yield from diagram(report)
    yield facts_table(report)
    if report.size and report.stride is not None:
        yield steps_table(report)
    yield from view_summary(report)
    yield from bytes_section(report)
    yield from safety_section(report)
    if warp or report.on_accelerator:
        yield from warp_section(report)
    if report.values is not None:
        yield _values(report.values)
    yield from (Note("note", remark) for remark in report.remarks)
    yield from _inner(report, warp=warp)


def diagram(
    report: TensorReport, marks: Mapping[int, str] | None = None
) -> Iterator[Part]:
    """Both panels, if there is anything to draw.

    Args:
        report: The tensor.

        marks: Places of the storage that the strip must show, with a word each.
    """
    sight = sight_of(report)
    if sight is None:
        return
    yield index_panel(sight)
    if report.storage_bytes != 0:
        yield memory_strip(sight, marks)


def _values(values: ValueSummary) -> Grid:
    figures = (
        ("lowest", _number(values.minimum)),
        ("highest", _number(values.maximum)),
        ("mean", _number(values.mean)),
        ("NaN", _count(values.nan_count)),
        ("infinite", _count(values.inf_count)),
        ("zero", _count(values.zero_count)),
    )
    caption = "Values"
    if values.sampled is not None:
        caption = f"Values of a sample of {values.sampled:,} elements"
    first = (("first", ", ".join(values.first)),) if values.first else ()
    return Grid(caption, (*figures, *first))


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.6g}"


def _count(count: int | None) -> str | None:
    return None if count is None else f"{count:,}"


def _inner(report: TensorReport, *, warp: bool) -> Iterator[Part]:
    for each in report.inner[:_MOST_INNER]:
        yield Details(headline(each), tuple(tensor_parts(each, warp=warp)))
    if (more := len(report.inner) - _MOST_INNER) > 0:
        yield Note("note", f"{more} more inside are not drawn")
