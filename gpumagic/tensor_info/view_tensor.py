"""Draws one tensor: pictures, facts, steps, views, bytes, safety, values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import (
    Badge,
    Bar,
    BarPair,
    Column,
    Details,
    Grid,
    Note,
    Paragraph,
    Property,
    Table,
)
from gpumagic.report.units import bytes_text
from gpumagic.tensor_info.geometry import fresh_strides
from gpumagic.tensor_info.panels import index_panel, memory_strip
from gpumagic.tensor_info.sentences import (
    copied,
    dims_text,
    elements_text,
    headline,
    misfits,
    numbers_text,
    odd_strides,
    repeats,
    shape_text,
)
from gpumagic.tensor_info.view_warp import warp_sections
from gpumagic.tensor_info.visible_axes import visible_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpumagic.drawing import Cell, Part
    from gpumagic.tensor_info.report import Merge, TensorReport, ValueSummary

_MOST_INNER = 4
_AS_IMAGES: dict[tuple[int, ...], str] = {
    (0, 2, 3, 1): " (N H W C, if these are images)",
    (0, 1, 2, 3): " (N C H W, if these are images)",
}
_ARRAY = "numpy array"

# What is kept for nothing is worth a word from this size on.
_WORTH_FREEING_BYTES = 4096


def tensor_parts(report: TensorReport, *, warp: bool = False) -> Iterator[Part]:
    """The diagram, then the facts that it rests on, then what to do.

    `warp` draws the warp view for a tensor of the host as well.
    """
    yield from diagram(report)
    yield facts_table(report)
    if report.size and report.stride is not None:
        yield steps_table(report)
    yield from view_summary(report)
    yield from bytes_section(report)
    yield from safety_section(report)
    if warp or report.on_accelerator:
        yield from warp_sections((report,))
    if report.values is not None:
        yield _values(report.values)
    yield from (Note("note", remark) for remark in report.remarks)
    yield from _inner(report, warp=warp)


def diagram(
    report: TensorReport, marks: Mapping[int, str] | None = None
) -> Iterator[Part]:
    """Both panels, if there is anything to draw.

    `marks` are places of the storage that the strip must show, with a word each.
    """
    visible = visible_tensor(report)
    if visible is None:
        return
    yield index_panel(visible)
    if report.storage_bytes != 0:
        yield memory_strip(visible, marks)


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


def facts_table(report: TensorReport) -> Grid:
    """What one would ask of a tensor, answered where it could be told."""
    return Grid("Facts", tuple(_facts(report)))


def steps_table(report: TensorReport) -> Table:
    """Size and stride of each dim, with what a row-major tensor would have."""
    size, stride = report.size or (), report.stride or ()
    in_bytes, fresh = report.stride_bytes, fresh_strides(size)
    properties = (
        Property(Column("Dim"), str),
        Property(Column("Size", number=True), lambda dim: f"{size[dim]:,}"),
        Property(Column("Stride", number=True), lambda dim: f"{stride[dim]:,}"),
        Property(
            Column("Bytes", number=True),
            lambda dim: None if in_bytes is None else f"{in_bytes[dim]:,}",
        ),
        Property(Column("Row-major", number=True), lambda dim: f"{fresh[dim]:,}"),
        Property(
            Column("Meaning"), lambda dim: _meaning(report, dim, size[dim], stride[dim])
        ),
    )
    caption = "One step along each dim, in elements"
    return Table.of(caption, properties, range(len(size)))


def _meaning(report: TensorReport, dim: int, size: int, stride: int) -> str:
    if size <= 1:
        odd = dim in odd_strides(report)
        return "not used, not canonical" if odd else "not used"
    if stride == 0:
        return f"the same element {size:,} times"
    if stride < 0:
        return "backwards"
    return "breaks contiguity" if dim in misfits(report) else "as row-major"


def _facts(report: TensorReport) -> Iterator[tuple[str, Cell]]:
    yield "what", _what(report)
    if report.size is not None:
        yield "size", _size(report)
        yield from _layout(report)
    yield from _place(report)
    yield from _bits(report)


def _what(report: TensorReport) -> str:
    figures = [report.kind, report.dtype, report.device]
    return ", ".join(each for each in figures if each)


def _size(report: TensorReport) -> str:
    said, numel = shape_text(report.size or ()), report.numel
    if numel is not None:
        said += f", {numel:,} el" if numel else ", no elements"
    return said if report.itemsize is None else f"{said} of {report.itemsize} B"


def _layout(report: TensorReport) -> Iterator[tuple[str, Cell]]:
    if report.is_contiguous is not None:
        yield "contiguous", _contiguous(report)
    if report.non_overlapping_and_dense is not None:
        yield "dense", _yes(report.non_overlapping_and_dense)
    if report.dim_order is not None and len(report.dim_order) > 1:
        yield "memory order", _order(report)
    if report.is_channels_last is not None and len(report.size or ()) in (4, 5):
        yield "channels_last", _yes(report.is_channels_last)
    if report.operators_treat_as and report.kind != _ARRAY:
        yield "operators treat it as", report.operators_treat_as
    if report.format_ambiguous:
        yield "ambiguous", report.format_ambiguous


def _thing(report: TensorReport) -> str:
    return "an array" if report.kind == _ARRAY else "a tensor"


def _contiguous(report: TensorReport) -> Cell:
    if not report.is_contiguous:
        return "no"
    return "yes, not canonical" if report.strides_canonical is False else "yes"


def _yes(answer: bool | None) -> Cell:  # noqa: FBT001
    return None if answer is None else ("yes" if answer else "no")


def _order(report: TensorReport) -> str:
    """The dims from the slowest to the fastest, and back to row-major."""
    order = report.dim_order or ()
    named = ", ".join(map(str, order))
    letters = _AS_IMAGES.get(order, "")
    if report.dim_order_unique is False:
        letters += ", one of several"
    if order == tuple(range(len(order))):
        return f"dims {named}{letters}"
    return f"dims {named}{letters}; .permute{numbers_text(order)} is row-major"


def _place(report: TensorReport) -> Iterator[tuple[str, Cell]]:
    if report.storage_offset:
        itemsize = report.itemsize or 1
        yield "offset", elements_text(report.storage_offset, itemsize)
    if report.byte_offset_mod_16 is not None:
        yield "alignment", _alignment(report.byte_offset_mod_16)
    if report.address is not None:
        yield "address", f"{report.address:#x}"
    if report.base_shape is not None:
        yield "keeps alive", f"{_thing(report)} of size {shape_text(report.base_shape)}"


def _alignment(past: int) -> Cell:
    if past:
        return Badge(f"{past} B past a multiple of 16 B", "warning")
    return "begins at a multiple of 16 B"


def _bits(report: TensorReport) -> Iterator[tuple[str, Cell]]:
    if report.conj_bit:
        yield "conjugated", Badge("when it is read", "note")
    if report.neg_bit:
        yield "negated", Badge("when it is read", "note")
    if report.requires_grad is not None:
        yield "gradient", "required" if report.requires_grad else "not required"


def bytes_section(report: TensorReport) -> Iterator[Part]:
    """The tensor's bytes to one scale, and what they mean."""
    figures = (
        ("logical", report.logical_bytes, "per index"),
        ("touched", report.touched_bytes, "distinct"),
        ("span", report.span_bytes, "first to last"),
        ("stored", report.storage_bytes, "whole"),
    )
    if all(count is None for _, count, _ in figures):
        return
    yield BarPair(
        "Bytes",
        tuple(
            Bar(f"{name} ({meaning})", count, bytes_text(count))
            for name, count, meaning in figures
        ),
    )
    yield from _inflated(report)
    yield from _kept(report)
    yield from _beyond(report)


def _inflated(report: TensorReport) -> Iterator[Note]:
    logical, touched = report.logical_bytes, report.touched_bytes
    if logical and touched and logical > touched:
        times = (
            f"{logical / touched:,.3g}"
            if logical % touched
            else f"{logical // touched:,}"
        )
        yield Note(
            "note",
            f"inflated {times} times: {bytes_text(touched)} in memory, read as "
            f"{bytes_text(logical)}",
        )


def _kept(report: TensorReport) -> Iterator[Note]:
    unused, touched = report.unused_storage_bytes, report.touched_bytes
    if not unused or touched is None:
        return
    if unused < max(_WORTH_FREEING_BYTES, touched):
        return
    name = report.expression
    # .contiguous() hands out the same tensor where it is contiguous already.
    why = "; .contiguous() would not, it is contiguous" if report.is_contiguous else ""
    yield Note(
        "warning",
        f"{bytes_text(touched)} keep {bytes_text(unused)} of storage alive that this "
        "tensor does not use",
        f"{copied(name)} frees them once nothing else uses the storage{why}",
    )


def _beyond(report: TensorReport) -> Iterator[Note]:
    last, stored, itemsize = report.last_element, report.storage_bytes, report.itemsize
    if last is None or stored is None or itemsize is None:
        return
    needed = (last + 1) * itemsize
    if needed <= stored:
        return
    if stored == 0:
        yield Note(
            "warning",
            f"the storage is empty: its size is 0 B, and the geometry needs "
            f"{bytes_text(needed)}; reading the tensor would fail",
            "wait until what emptied it (such as a sharded module) fills it again",
        )
        return
    yield Note(
        "problem",
        f"the geometry exceeds the storage: it needs {bytes_text(needed)} and there "
        f"are {bytes_text(stored)}",
    )


def view_summary(report: TensorReport) -> Iterator[Part]:
    """What `.view` may do with it, and what a contiguous copy takes."""
    said = [*_merges(report), *_copy(report)]
    if said:
        yield Paragraph("\n".join(said))


def _merges(report: TensorReport) -> Iterator[str]:
    if report.view_flat:
        yield f"Views: {report.expression}.view(-1) works without a copy."
        return
    merged = [merge for merge in report.free_merges or () if len(merge.dims) > 1]
    if report.view_flat is False:
        free = ", ".join(map(_merge_text, merged)) or "no two dims"
        yield f"Views: .view(-1) fails; {free} can be merged without a copy."


def _merge_text(merge: Merge) -> str:
    return f"{dims_text(merge.dims)} (to {merge.numel:,}, step {merge.step:,})"


def _copy(report: TensorReport) -> Iterator[str]:
    size = report.contiguous_allocates_bytes
    if size == 0:
        yield "Copies: .contiguous() returns this same tensor, and allocates nothing."
    elif size:
        yield (
            f"Copies: .contiguous() and a .reshape that does not fit allocate "
            f"{bytes_text(size)}; what is written there is not written here."
        )


def safety_section(report: TensorReport) -> Iterator[Note]:
    """Whether writing in place is safe, and what consumers may stumble over."""
    yield from _overlap(report)
    yield from _odd(report)
    yield from _format(report)
    yield from _lazy(report)


def _overlap(report: TensorReport) -> Iterator[Note]:
    why = f": {report.overlap_why}" if report.overlap_why else ""
    because = f" ({report.overlap_why})" if report.overlap_why else ""
    if report.overlap == "yes":
        name = report.expression
        yield Note(
            "warning",
            f"in-place is unsafe: indices share elements{why}",
            f"{copied(name)} before writing to it",
        )
        if repeats(report):
            yield Note(
                "note",
                f"a kernel of your own must be given the strides "
                f"{numbers_text(report.stride or ())}: stride 0 repeats an element",
            )
    elif report.overlap == "no":
        yield Note("note", f"in-place is safe: each index has its own element{because}")
    elif report.overlap is not None:
        yield Note("note", f"whether elements overlap was not decided{why}")


def _odd(report: TensorReport) -> Iterator[Note]:
    odd = odd_strides(report)
    if not odd or report.strides_canonical is not False or not report.is_contiguous:
        return
    yield Note(
        "note",
        f"the stride of {dims_text(odd)} is never used, but it is not the usual one: "
        "code that compares strides may refuse this tensor, and .contiguous() leaves "
        "it as it is",
        f"{report.expression}.clone(memory_format=torch.contiguous_format)",
    )


def _format(report: TensorReport) -> Iterator[Note]:
    if not report.format_ambiguous:
        return
    images = "channels_last" if len(report.size or ()) == 4 else "channels_last_3d"
    treated = report.operators_treat_as or "either"
    yield Note(
        "note",
        f"the memory format is ambiguous ({report.format_ambiguous}); operators treat "
        f"it as {treated}, and .contiguous(memory_format=torch.{images}) leaves it as "
        "it is",
        ""
        if treated == images
        else f"{report.expression}.to(memory_format=torch.{images}) sets the strides "
        "that operators look at",
    )


def _lazy(report: TensorReport) -> Iterator[Note]:
    for on, word, method in (
        (report.conj_bit, "conjugated", "resolve_conj"),
        (report.neg_bit, "negated", "resolve_neg"),
    ):
        if on:
            yield Note(
                "note",
                f"the values are {word} when they are read; in memory they are not",
                f"{report.expression}.{method}() writes them out",
            )
