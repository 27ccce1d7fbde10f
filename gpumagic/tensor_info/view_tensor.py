"""Draws one tensor: a picture, its dims, what to do; the rest is folded."""

from __future__ import annotations

from math import log2
from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Details, Note, Paragraph, Property, Table
from gpumagic.drawing import how_measured as how
from gpumagic.report.units import bytes_text
from gpumagic.tensor_info.geometry import fresh_strides
from gpumagic.tensor_info.lane_bars import BarLane, LaneBars
from gpumagic.tensor_info.panels import index_panel, memory_strip
from gpumagic.tensor_info.sentences import (
    copied,
    dims_text,
    headline,
    kept_bytes,
    misfit_bytes,
    misfits,
    odd_strides,
)
from gpumagic.tensor_info.view_facts import bytes_bars, facts_table, views_text
from gpumagic.tensor_info.view_values import first_values, values_note, values_parts
from gpumagic.tensor_info.view_warp import bases, is_drawn, reads_of, warp_parts
from gpumagic.tensor_info.visible_axes import visible_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpumagic.drawing import Part
    from gpumagic.tensor_info.report import TensorReport
    from gpumagic.tensor_info.visible_axes import Axis, VisibleTensor

_MOST_INNER = 4
_MOST_GRID_DIMS = 3
_MOST_DIMS_TWICE = 5
_MOST_LANES = 8
_HOW = (
    "Looking has run no operation and has read no element.\n"
    "A place is counted in elements from the beginning of the storage."
)
_HOW_VALUES = (
    "The values were read piece by piece where they lie; no copy of the tensor was "
    "made.\nA place is counted in elements from the beginning of the storage."
)

_HOW_ON_DEVICE = "\nThat ran operations on the device, and waited for it at the end."


def tensor_parts(report: TensorReport, *, warp: bool = False) -> Iterator[Part]:
    """What is in sight of one tensor, then all else by its word.

    Values come first where they have been read. `warp` is whether what a warp fetches
    was asked for: it takes the place of the elements, or waits behind its word.
    """
    values, dims = report.values, tuple(_dims(report))
    reads = warp and values is None and is_drawn(report)
    # The picture of so many dims has their sizes and steps already.
    few = reads or (values is None and len(report.size or ()) <= _MOST_DIMS_TWICE)
    if values is not None:
        yield from values_parts(values)
    elif reads:
        yield reads_of(report)
    else:
        yield from picture(report)
    yield from dims if few else ()
    yield from values_note(report)
    yield from notes(report)
    if values is not None:
        yield from first_values(values)
    if dims and not few:
        yield Details("Size and stride of each dim", dims, "dims")
    grid = values is None and not reads
    warp = (warp or bool(report.on_accelerator)) and not reads
    yield from folded_parts(report, grid_in_sight=grid, warp=warp)


def _dims(report: TensorReport) -> Iterator[Table]:
    if report.size and report.stride is not None:
        yield dims_table(report)


def folded_parts(
    report: TensorReport, *, grid_in_sight: bool, warp: bool
) -> Iterator[Details]:
    """All that is not in sight, by its word; last, how it was found out."""
    visible = visible_tensor(report)
    if visible is not None:
        hidden = not grid_in_sight or not has_grid(visible)
        grid = [index_panel(visible)] if hidden else []
        strip = [memory_strip(visible)] if report.storage_bytes != 0 else []
        if grid or strip:
            summary = "The places in the order of addresses"
            yield Details(summary, (*grid, *strip), "memory")
    if said := views_text(report):
        summary = "What .view can do, and what a copy takes"
        yield Details(summary, (Paragraph(said),), "views")
    yield from (
        Details("How much memory", (bars,), "bytes") for bars in bytes_bars(report)
    )
    yield Details("Layout, place and flags", (facts_table(report),), "facts")
    if warp and is_drawn(report):
        yield Details("What a warp fetches", tuple(warp_parts((report,))), "warp")
    yield from _inside(report)
    yield how_looked((report,))


def how_looked(reports: Sequence[TensorReport]) -> Details:
    """How the figures on tensors came about."""
    said = _HOW
    read = [each for each in reports if each.values is not None]
    if read:
        said = _HOW_VALUES
    if any(each.on_accelerator for each in read):
        said += _HOW_ON_DEVICE
    assumed = bases([each for each in reports if is_drawn(each)])
    return how(Paragraph("\n".join(filter(None, (said, assumed)))))


def _inside(report: TensorReport) -> Iterator[Details]:
    if not report.inner:
        return
    parts: list[Part] = [
        Details(headline(each), tuple(_at_a_glance(each)))
        for each in report.inner[:_MOST_INNER]
    ]
    if (more := len(report.inner) - _MOST_INNER) > 0:
        parts.append(Paragraph(f"{more} more are not drawn."))
    yield Details("What it is made of", tuple(parts), "inside")


def _at_a_glance(report: TensorReport) -> Iterator[Part]:
    yield from picture(report)
    yield from _dims(report)
    yield facts_table(report)


def has_grid(visible: VisibleTensor) -> bool:
    """Whether its elements themselves are the picture."""
    return sum(len(axis.dims) for axis in visible.axes) <= _MOST_GRID_DIMS


def picture(report: TensorReport) -> Iterator[Part]:
    """The elements by index; of more than three dims, how far each one reaches."""
    visible = visible_tensor(report)
    if visible is not None:
        yield index_panel(visible) if has_grid(visible) else reach_bars(visible)


def reach_bars(visible: VisibleTensor) -> LaneBars:
    """From one step along each dim to all its steps, on a scale of powers of two.

    Where one bar ends another begins, the dims fill memory without a gap.
    """
    axes = visible.axes
    # One lane for each dim of a tensor of many would fill the screen.
    lanes = sorted(axes, key=lambda axis: -abs(axis.step))[:_MOST_LANES]
    more = f"; {len(axes) - len(lanes)} more" if len(axes) > len(lanes) else ""
    farthest = max(2, *(abs(axis.step) * axis.size for axis in axes))
    return LaneBars(
        f"How far one step and all steps along each dim lead, in elements{more}",
        tuple(_reach(axis) for axis in axes if axis in lanes),
        log2(farthest),
        ("1", f"{farthest:,} (log scale)"),
        ("dim", "size x stride"),
    )


def _reach(axis: Axis) -> BarLane:
    step = abs(axis.step)
    said = f"{axis.size:,} x {axis.step:,}"
    start, stop = 0.0, 0.0  # a dim that never steps, or not on
    if axis.size > 1 and step:
        said += f" = {axis.step * axis.size:,}"
        start, stop = log2(step), log2(step * axis.size)
    return BarLane(axis.name, start, stop, dense=True, said=said)


def walk_strip(report: TensorReport, marks: Mapping[int, str]) -> Iterator[Part]:
    """The places in the order of addresses, with a word at some of them."""
    visible = visible_tensor(report)
    if visible is not None and report.storage_bytes != 0:
        yield memory_strip(visible, marks)


def dims_table(report: TensorReport) -> Table:
    """Size and stride of each dim, and what they mean."""
    size, stride = report.size or (), report.stride or ()
    in_bytes = report.stride_bytes
    properties = (
        Property(Column("Dim"), str),
        Property(Column("Size", number=True), lambda dim: f"{size[dim]:,}"),
        Property(Column("Stride", number=True), lambda dim: f"{stride[dim]:,}"),
        Property(
            Column("Bytes", number=True),
            lambda dim: None if in_bytes is None else f"{in_bytes[dim]:,}",
        ),
        Property(
            Column("Meaning"), lambda dim: _meaning(report, dim, size[dim], stride[dim])
        ),
    )
    caption = "One step along each dim"
    return Table.of(caption, properties, range(len(size)), name="dims")


def _meaning(report: TensorReport, dim: int, size: int, stride: int) -> str:
    fresh = fresh_strides(report.size or ())[dim]
    if size <= 1:
        odd = dim in odd_strides(report)
        return f"never used; usual is {fresh:,}" if odd else "never used"
    if stride == 0:
        return f"the same element {size:,} times"
    if dim not in misfits(report):
        return "as contiguous"
    back = "backwards; " if stride < 0 else ""
    return f"{back}contiguous would be {fresh:,}"


def notes(report: TensorReport) -> Iterator[Note]:
    """What to do, from the most urgent on."""
    yield from _beyond(report)
    yield from _kept(report)
    yield from _shared(report)
    yield from _odd(report)
    yield from _format(report)
    yield from _lazy(report)
    yield from (Note("note", remark) for remark in report.remarks)


def _beyond(report: TensorReport) -> Iterator[Note]:
    needed = misfit_bytes(report)
    if needed is None:
        return
    if report.storage_bytes == 0:
        yield Note(
            "warning",
            f"reading it fails: it needs {bytes_text(needed)} and its storage is empty",
            "wait until what emptied it (such as a sharded module) fills it again",
        )
        return
    yield Note(
        "problem",
        f"reading it is not safe: it needs {bytes_text(needed)}, and its storage has "
        f"{bytes_text(report.storage_bytes)}",
    )


def _kept(report: TensorReport) -> Iterator[Note]:
    unused = kept_bytes(report)
    if unused is None:
        return
    # .contiguous() hands out the same tensor where it is contiguous already.
    why = "; .contiguous() would not, it is contiguous" if report.is_contiguous else ""
    yield Note(
        "warning",
        f"a copy frees {bytes_text(unused)} once nothing else uses the storage{why}",
        copied(report.expression),
    )


def _shared(report: TensorReport) -> Iterator[Note]:
    if report.overlap != "yes":
        return
    why = f": {report.overlap_why}" if report.overlap_why else ""
    yield Note(
        "warning",
        f"writing in place is unsafe, as indices share elements{why}",
        f"{copied(report.expression)} before writing to it",
    )


def _odd(report: TensorReport) -> Iterator[Note]:
    odd = odd_strides(report)
    if not odd or report.strides_canonical is not False or not report.is_contiguous:
        return
    yield Note(
        "note",
        f"code that compares strides may refuse it, for the stride of "
        f"{dims_text(odd)}; .contiguous() leaves it as it is",
        f"{report.expression}.clone(memory_format=torch.contiguous_format)",
    )


def _format(report: TensorReport) -> Iterator[Note]:
    if not report.format_ambiguous:
        return
    images = "channels_last" if len(report.size or ()) == 4 else "channels_last_3d"
    treated = report.operators_treat_as or "either"
    reason = report.format_ambiguous.partition(":")[0]
    yield Note(
        "note",
        f"two memory formats fit ({reason}), and operators return {treated}",
        ""
        if treated == images
        else f"{report.expression}.to(memory_format=torch.{images})",
    )


def _lazy(report: TensorReport) -> Iterator[Note]:
    for on, word, method in (
        (report.conj_bit, "conjugated", "resolve_conj"),
        (report.neg_bit, "negated", "resolve_neg"),
    ):
        if on:
            yield Note(
                "note",
                f"its values are {word} when they are read; in memory they are not",
                f"{report.expression}.{method}() writes them out",
            )
