"""How does this tensor lie in memory: a verdict, a picture, its dims, what to do."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from gpumagic.drawing import (
    Column,
    Details,
    Drawing,
    Grid,
    Meter,
    Note,
    Paragraph,
    Property,
    Table,
    one_screen,
)
from gpumagic.drawing import how_measured as how
from gpumagic.report.units import (
    UNKNOWN,
    bytes_text,
    listed,
    share_text,
    with_article,
)
from gpumagic.tensor_info.answer_values import (
    heat_figures,
    values_headline,
    values_table,
)
from gpumagic.tensor_info.figure import (
    index_panel,
    memory_strip,
    sector_figure,
    visible_tensor,
)
from gpumagic.tensor_info.geometry import fresh_strides
from gpumagic.tensor_info.overlap import WORTH_FREEING_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpumagic.drawing import Cell, Part
    from gpumagic.tensor_info.geometry import WarpRead
    from gpumagic.tensor_info.report import TensorReport

_MOST_DIMS = 6
_MOST_INNER = 4
_MOST_GRID_DIMS, _MOST_WARP_DIMS = 3, 4
_IN_PLACE = {
    True: "unsafe: indices share elements",
    False: "safe: each index has its own element",
    None: None,
}
_WARP = Paragraph(
    "Memory is fetched in sectors of 32 B; four of them are a line.\n"
    "This is the cost for a kernel whose lanes walk that dim, one element each.\n"
    "PyTorch's own element-wise kernels walk memory in the operand's order: one "
    "transposed tensor is not slow, two of different order are.\n"
    "The figures come from the addresses; nothing was measured."
)


def headline(report: TensorReport) -> str:
    """What the tensor is, how it lies, and what that costs."""
    lies = f"{report.dtype} on {report.device}"
    if report.size is None:
        return f"{report.expression}: {with_article(report.kind)}, {lies}"
    what = f"{with_article(_nature(report))}{_cost(report)}"
    return f"{report.expression}: {shape_text(report.size)} {lies}, {what}"


def _cost(report: TensorReport) -> str:
    """What the layout costs, from the worst on; else its size, where it has one."""
    logical, touched = report.logical_bytes, report.touched_bytes or 0
    if unused_bytes(report):
        kept, used = bytes_text(report.storage_bytes), bytes_text(touched)
        return f" that keeps {kept} alive and uses {used}"
    if logical is None:
        return ""
    if logical > touched > 0:
        return f"; {bytes_text(touched)} in memory, read as {bytes_text(logical)}"
    if not report.is_contiguous:
        method = ".copy()" if report.is_numpy else ".contiguous()"
        return f", {layout(report)}; {method} copies {bytes_text(logical)}"
    return f" of {bytes_text(logical)}"


def _nature(report: TensorReport) -> str:
    """What kind of tensor this is, by the way it walks through memory."""
    steps = zip(report.size or (), report.stride or (), strict=False)
    manners = {
        "empty": report.numel == 0,
        "expanded": any(size > 1 and step == 0 for size, step in steps),
        "self-overlapping": report.overlaps_itself,
        "sliced": report.holes_in_span,
        "reversed": any(step < 0 for step in report.stride or ()),
        "contiguous": report.is_contiguous,
        "transposed": len(report.dim_order) == 2,
        "permuted": report.dim_order,
    }
    manner = next((word for word, is_so in manners.items() if is_so), "")
    noun = "view" if report.is_view and report.kind == "tensor" else report.kind
    return f"{manner} {noun}".strip()


def unused_bytes(report: TensorReport) -> int:
    """What it keeps alive and does not use, where that is known and worth a word."""
    stored, touched = report.storage_bytes or 0, report.touched_bytes
    if touched is None or stored - touched < max(WORTH_FREEING_BYTES, touched):
        return 0
    return stored - touched


def layout(report: TensorReport) -> str | None:
    """Whether the elements lie in the order of their indices, if they have places."""
    words = {
        "contiguous": report.is_contiguous,
        "channels_last": report.is_channels_last,
        "not contiguous": report.geometry,
    }
    return next((word for word, is_so in words.items() if is_so), None)


def shape_text(size: Sequence[int] | None) -> str:
    """A size as people say it.

    >>> shape_text((4, 6)), shape_text(()), shape_text(None), shape_text((2,) * 9)
    ('4 x 6', '0-d', 'unknown size', '2 x 2 x ... x 2 (9 dims)')
    """
    if size is None:
        return f"{UNKNOWN} size"
    if len(size) > _MOST_DIMS:
        return f"{shape_text(size[:2])} x ... x {size[-1]:,} ({len(size)} dims)"
    return " x ".join(f"{each:,}" for each in size) or "0-d"


def numbers_text(numbers: Iterable[int]) -> str:
    """Numbers as code has them.

    >>> numbers_text((4, 6))
    '(4, 6)'
    """
    return f"({', '.join(map(str, numbers))})"


# ----------------------------------------------------------------- the screen


def draw(
    report: TensorReport, *, warp: bool = False, failures: tuple[str, ...] = ()
) -> Drawing:
    """The values, what a warp fetches or the layout, whatever was asked for."""
    said = headline(report)
    if report.values:
        said = values_headline(report, report.values)
    elif report.unread:
        said = f"{report.expression}: the values cannot be read: {report.unread}"
    elif warp and report.warp_along_dim:
        used = [
            f"{share_text(read.efficiency)} along dim {read.dim}"
            for read in report.warp_along_dim[-_MOST_WARP_DIMS:]
        ]
        said = f"{report.expression}: of what a warp fetches it uses {listed(used)}"
    failed = (Note("problem", failure) for failure in failures)
    return drawn(
        said, (*failed, *_parts(report, warp=warp)), simulated=report.simulated
    )


def drawn(said: str, parts: Iterable[Part], *, simulated: bool) -> Drawing:
    """A report of this room as one screen."""
    return Drawing(said, one_screen(parts), "simulated GPU" if simulated else "")


def _parts(report: TensorReport, *, warp: bool) -> Iterator[Part]:
    """What was asked for in sight: values, what a warp fetches, or the elements.

    Then what to do; all else by its word.
    """
    visible, values = visible_tensor(report), report.values
    elements: list[Part] = []
    if visible and visible.ndim <= _MOST_GRID_DIMS:
        elements.append(index_panel(visible))
    dims, reads = dims_table(report), warp_reads(report)
    in_sight: list[Part] = [*elements, *dims]
    if values:
        in_sight = [*heat_figures(values), values_table((report,))]
    elif warp and reads:
        in_sight = [*reads, *dims]
    yield from in_sight
    yield from _notes(report)
    if visible and visible.landings:
        elements.append(memory_strip(visible))
    if memory := [part for part in elements if part not in in_sight]:
        yield Details("The places in the order of addresses", tuple(memory), "memory")
    facts: list[Part] = [part for part in dims if part not in in_sight]
    facts.append(facts_table(report))
    yield Details("Layout, bytes and flags", tuple(facts), "facts")
    if (warp or report.on_accelerator) and reads and reads[0] not in in_sight:
        yield Details("What a warp fetches", (*reads, _WARP), "warp")
    if report.inner:
        parts = (
            Details(headline(each), (facts_table(each),))
            for each in report.inner[:_MOST_INNER]
        )
        yield Details("What it is made of", tuple(parts), "inside")
    yield how_looked((report,))


def how_looked(reports: Sequence[TensorReport]) -> Details:
    """How the figures on tensors came about."""
    read = [each for each in reports if each.values]
    said = {
        "Looking has run no operation and has read no element.": not read,
        "The values were read piece by piece where they lie; no copy was made.": read,
        "That ran operations on the device, and waited for it at the end.": any(
            each.on_accelerator for each in read
        ),
        "A place is counted in elements from the beginning of the storage.": True,
    }
    return how(Paragraph("\n".join(each for each, is_so in said.items() if is_so)))


def dims_table(report: TensorReport) -> list[Table]:
    """Size and stride of each dim, and what they mean; none without strides."""
    g = report.geometry
    if not g or not g.ndim:
        return []
    size, stride, itemsize = g.size, g.stride, g.itemsize
    fresh = fresh_strides(size)

    def meaning(dim: int) -> str:
        if size[dim] <= 1:
            return "never used"
        if stride[dim] == 0:
            return f"the same element {size[dim]:,} times"
        if stride[dim] == fresh[dim]:
            return "as contiguous"
        if stride[dim] < 0:
            return f"backwards; contiguous would be {fresh[dim]:,}"
        return f"contiguous would be {fresh[dim]:,}"

    properties = (
        Property(Column("Dim"), str),
        Property(Column("Size", number=True), lambda dim: f"{size[dim]:,}"),
        Property(Column("Stride", number=True), lambda dim: f"{stride[dim]:,}"),
        Property(
            Column("Bytes", number=True), lambda dim: f"{stride[dim] * itemsize:,}"
        ),
        Property(Column("Meaning"), meaning),
    )
    caption = "One step along each dim"
    return [Table.of(caption, properties, range(len(size)), name="dims")]


def warp_reads(report: TensorReport, of: str = "") -> list[Part]:
    """What a warp fetches along each dim, drawn and in figures, where that is known."""

    def used(read: WarpRead) -> Meter:
        said = f"{read.unique_bytes:,} of {read.fetched_bytes:,} B"
        text = f"{said}, {share_text(read.efficiency)}"
        return Meter(read.efficiency, text, is_short=True)

    properties = (
        Property(Column("Dim"), lambda read: str(read.dim)),
        Property(Column("Lanes", number=True), lambda read: f"{read.lanes}"),
        Property(Column("Sectors", number=True), lambda read: f"{read.sectors}"),
        Property(Column("At best", number=True), lambda read: f"{read.ideal_sectors}"),
        Property(Column("Lines", number=True), lambda read: f"{read.lines}"),
        Property(Column("Used"), used),
    )
    g, start = report.geometry, report.address
    reads = report.warp_along_dim[-_MOST_WARP_DIMS:]
    if not reads or not g or not start:
        return []
    caption = f"What a warp of 32 lanes fetches that reads along one dim{of}"
    return [sector_figure(g, start, reads, of), Table.of(caption, properties, reads)]


def warp_details(reports: Sequence[TensorReport]) -> Iterator[Details]:
    """The reads of each tensor, and once how all of them are to be understood."""
    parts = [
        part for each in reports for part in warp_reads(each, f" of {each.expression}")
    ]
    if parts:
        yield Details("What a warp fetches", (*parts, _WARP), "warp")


def _notes(report: TensorReport) -> Iterator[Note]:
    """What to do, from the most urgent on."""
    unused, name = unused_bytes(report), report.expression
    method = "copy" if report.is_numpy else "clone"
    copy = f"{name if name.isidentifier() else 'y'} = {name}.{method}()"
    if report.values and report.values.nan_count and report.requires_grad:
        yield Note(
            "problem",
            "a NaN in a parameter stays: find the operation that made it",
            "torch.autograd.set_detect_anomaly(True)",
        )
    if unused:
        said = f"a copy frees {bytes_text(unused)} once nothing else uses the storage"
        if report.is_contiguous and not report.is_numpy:
            said += "; .contiguous() would not, it is contiguous"
        yield Note("warning", said, copy)
    if report.overlaps_itself:
        pairs = enumerate(zip(report.size or (), report.stride or (), strict=True))
        same = (
            f"dim {dim} has stride 0: its {count} indices are one"
            for dim, (count, step) in pairs
            if count > 1 and not step
        )
        which = next(same, "steps along several dims together lead to one place")
        yield Note(
            "warning",
            f"writing in place is unsafe, as indices share elements: {which}",
            f"{copy} before writing to it",
        )
    yield from (Note("note", remark) for remark in report.remarks)


def facts_table(report: TensorReport) -> Grid:
    """What one would ask of a tensor, answered where it could be told."""
    return Grid("Facts", tuple(each for each in _facts(report) if each[1]))


def _facts(report: TensorReport) -> Iterator[tuple[str, Cell]]:
    yield "what", f"{report.kind}, {report.dtype}, {report.device}"
    if report.size is not None:
        count = f"{prod(report.size):,} el of {report.itemsize} B"
        yield "size", f"{shape_text(report.size)}, {count}"
    if order := report.dim_order:
        said = f"dims {', '.join(map(str, order))}"
        if order != tuple(range(len(order))):
            said += f"; .permute{numbers_text(order)} is row-major"
        yield "memory order", said
    if not report.is_numpy:
        yield "operators return", report.operators_treat_as
    yield "writing in place", _IN_PLACE[report.overlaps_itself]
    sizes = (
        (report.logical_bytes, "by index"),
        (report.touched_bytes, "distinct"),
        (report.span_bytes, "from first to last"),
        (report.storage_bytes, "stored"),
    )
    told = [f"{bytes_text(n)} {what}" for n, what in sizes if n is not None]
    yield "memory", ", ".join(told)
    if report.geometry and (offset := report.geometry.offset):
        yield "offset", f"{offset:,} el = {offset * report.geometry.itemsize:,} B"
    if address := report.address:
        yield "address", f"{address:#x}, aligned to {min(address & -address, 16)} B"
