"""How does this tensor lie in memory: a verdict, a picture, its dims, what to do."""

from __future__ import annotations

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
from gpumagic.report.units import bytes_text, listed, share_text, with_article
from gpumagic.tensor_info.answer_values import (
    heat_figure,
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

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpumagic.drawing import Cell, Part
    from gpumagic.tensor_info.geometry import WarpRead
    from gpumagic.tensor_info.report import TensorReport

_MOST_DIMS = 6
_MOST_INNER = 4
_MOST_GRID_DIMS, _MOST_WARP_DIMS = 3, 4
# What is kept for nothing is worth a word from this size on.
_WORTH_FREEING_BYTES = 4096
_HOW = (
    "Looking has run no operation and has read no element.",
    "The values were read piece by piece where they lie; no copy was made.",
    "That ran operations on the device, and waited for it at the end.",
    "A place is counted in elements from the beginning of the storage.",
)
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
    where = f"on {report.device}" if report.device else None
    if report.size is None:
        known = with_article(report.kind), report.dtype, where
        return f"{report.expression}: {', '.join(filter(None, known))}"
    what = " ".join(filter(None, (shape_text(report.size), report.dtype, where)))
    cost = _cost(report)
    if not cost and report.logical_bytes is not None:
        cost = f" of {bytes_text(report.logical_bytes)}"
    return f"{report.expression}: {what}, {with_article(_nature(report))}{cost}"


def _cost(report: TensorReport) -> str:
    """What the layout costs, from the worst on; empty where it costs nothing."""
    logical, touched = report.logical_bytes, report.touched_bytes
    if _kept_bytes(report):
        kept, used = bytes_text(report.storage_bytes), bytes_text(touched)
        return f" that keeps {kept} alive and uses {used}"
    if logical and touched and logical > touched:
        return f"; {bytes_text(touched)} in memory, read as {bytes_text(logical)}"
    if report.is_contiguous is False and logical:
        return f", {layout(report)}; .contiguous() copies {bytes_text(logical)}"
    return ""


def _nature(report: TensorReport) -> str:
    """What kind of tensor this is, by the way it walks through memory."""
    noun = "view" if report.is_view and report.kind == "tensor" else report.kind
    manner, order = "", report.dim_order
    steps = zip(report.size or (), report.stride or (), strict=False)
    if report.numel == 0:
        manner = "empty"
    elif any(size > 1 and step == 0 for size, step in steps):
        manner = "expanded"
    elif report.overlaps_itself:
        manner = "self-overlapping"
    elif report.holes_in_span:
        manner = "sliced"
    elif report.is_contiguous:
        manner = "contiguous"
    elif order is not None and order != tuple(range(len(order))):
        manner = "transposed" if len(order) == 2 else "permuted"
    return f"{manner} {noun}".strip()


def _kept_bytes(report: TensorReport) -> int | None:
    """What it keeps alive and does not use, where that is worth a word."""
    stored, touched = report.storage_bytes, report.touched_bytes
    if stored is None or touched is None:
        return None
    unused = stored - touched
    return unused if unused >= max(_WORTH_FREEING_BYTES, touched) else None


def layout(report: TensorReport) -> str | None:
    """Whether the elements lie in the order of their indices."""
    if report.is_contiguous is None:
        return None
    if report.is_contiguous:
        return "contiguous"
    return "channels_last" if report.is_channels_last else "not contiguous"


def shape_text(size: Sequence[int]) -> str:
    """A size as people say it.

    >>> shape_text((4, 6)), shape_text(()), shape_text((2,) * 9)
    ('4 x 6', '0-d', '2 x 2 x ... x 2 (9 dims)')
    """
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
    if report.values is not None:
        said = values_headline(report, report.values)
    elif warp and report.warp_along_dim:
        used = (
            f"{share_text(read.efficiency)} along dim {read.dim}"
            for read in report.warp_along_dim[-_MOST_WARP_DIMS:]
        )
        what = f"of what a warp fetches it uses {listed(list(used))}"
        said = f"{report.expression}: {what}"
    failed = (Note("problem", failure) for failure in failures)
    return drawn(said, (*failed, *_parts(report, warp=warp)), report.simulated)


def drawn(said: str, parts: Iterable[Part], simulated: object) -> Drawing:
    """A report of this room as one screen."""
    return Drawing(said, one_screen(parts), "simulated GPU" if simulated else "")


def _parts(report: TensorReport, *, warp: bool) -> Iterator[Part]:
    """What is in sight of one tensor, then all else by its word.

    Values come first where they have been read; then what a warp fetches, where that
    was asked for; else the elements.
    """
    values = report.values
    reads = warp and values is None and report.warp_along_dim
    visible = visible_tensor(report)
    memory: list[Part] = []
    if visible is not None and visible.ndim <= _MOST_GRID_DIMS:
        memory.append(index_panel(visible))
    if values is not None:
        if values.heat is not None:
            yield heat_figure(values.heat)
        yield values_table((report,))
    elif reads:
        yield from warp_reads(report)
    else:
        yield from memory
        memory = []
    dims = dims_table(report)
    if values is None:
        yield from dims
        dims = []
    yield from _notes(report)
    if visible is not None and visible.landings and report.storage_bytes != 0:
        memory.append(memory_strip(visible))
    if memory:
        yield Details("The places in the order of addresses", tuple(memory), "memory")
    yield Details("Layout, bytes and flags", (*dims, facts_table(report)), "facts")
    if (warp or report.on_accelerator) and not reads and report.warp_along_dim:
        yield Details("What a warp fetches", (*warp_reads(report), _WARP), "warp")
    if report.inner:
        parts = (
            Details(headline(each), (facts_table(each),))
            for each in report.inner[:_MOST_INNER]
        )
        yield Details("What it is made of", tuple(parts), "inside")
    yield how_looked((report,))


def how_looked(reports: Sequence[TensorReport]) -> Details:
    """How the figures on tensors came about."""
    looked, read, waited, counted = _HOW
    values = [each for each in reports if each.values is not None]
    said = [read if values else looked, counted]
    if any(each.on_accelerator for each in values):
        said.insert(1, waited)
    return how(Paragraph("\n".join(said)))


def dims_table(report: TensorReport) -> list[Table]:
    """Size and stride of each dim, and what they mean; none without strides."""
    size, stride, itemsize = report.size, report.stride, report.itemsize or 1
    if not size or stride is None:
        return []
    fresh = fresh_strides(size)

    def meaning(dim: int) -> str:
        if size[dim] <= 1:
            return "never used"
        if stride[dim] == 0:
            return f"the same element {size[dim]:,} times"
        if stride[dim] == fresh[dim]:
            return "as contiguous"
        back = "backwards; " if stride[dim] < 0 else ""
        return f"{back}contiguous would be {fresh[dim]:,}"

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


def warp_reads(report: TensorReport, *, named: bool = False) -> Iterator[Part]:
    """What a warp fetches along each dim, drawn and in figures; `named`: of what."""

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
    of = f" of {report.expression}" if named else ""
    caption = f"What a warp of 32 lanes fetches that reads along one dim{of}"
    reads = report.warp_along_dim[-_MOST_WARP_DIMS:]
    yield sector_figure(report, reads, of)
    yield Table.of(caption, properties, reads)


def warp_details(reports: Sequence[TensorReport]) -> Iterator[Details]:
    """The reads of each tensor, and once how all of them are to be understood."""
    drawn = [warp_reads(each, named=True) for each in reports if each.warp_along_dim]
    if drawn:
        parts = (part for each in drawn for part in each)
        yield Details("What a warp fetches", (*parts, _WARP), "warp")


def _notes(report: TensorReport) -> Iterator[Note]:
    """What to do, from the most urgent on."""
    unused, name = _kept_bytes(report), report.expression
    copy = f"{name if name.isidentifier() else 'y'} = {name}.clone()"
    if report.values is not None and report.values.nan_count and report.requires_grad:
        yield Note(
            "problem",
            "a NaN in a parameter stays: find the operation that made it",
            "torch.autograd.set_detect_anomaly(True)",
        )
    if unused is not None:
        # .contiguous() hands out the same tensor where it is contiguous already.
        why = "; .contiguous() would not, it is contiguous"
        yield Note(
            "warning",
            f"a copy frees {bytes_text(unused)} once nothing else uses the storage"
            f"{why if report.is_contiguous else ''}",
            copy,
        )
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
    known = report.kind, report.dtype, report.device
    yield "what", ", ".join(filter(None, known))
    if report.size is not None:
        count = f", {report.numel:,} el" if report.numel else ""
        each = f" of {report.itemsize} B" if report.itemsize else ""
        yield "size", f"{shape_text(report.size)}{count}{each}"
    if order := report.dim_order:
        turned = order != tuple(range(len(order)))
        back = f"; .permute{numbers_text(order)} is row-major" if turned else ""
        yield "memory order", f"dims {', '.join(map(str, order))}{back}"
    if report.kind != "numpy array":
        yield "operators return", report.operators_treat_as
    yield "writing in place", _IN_PLACE[report.overlaps_itself]
    sizes = (
        (report.logical_bytes, "by index"),
        (report.touched_bytes, "distinct"),
        (report.span_bytes, "from first to last"),
        (report.storage_bytes, "stored"),
    )
    told = (f"{bytes_text(n)} {what}" for n, what in sizes if n is not None)
    yield "memory", ", ".join(told)
    if offset := report.storage_offset:
        yield "offset", f"{offset:,} el = {offset * (report.itemsize or 1):,} B"
    if report.address is not None:
        past = report.address % 16
        aligned = f"{past} B past a multiple of 16 B" if past else "aligned to 16 B"
        yield "address", f"{report.address:#x}, {aligned}"
