"""How does this tensor lie in memory: a picture, its dims, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import (
    Column,
    Details,
    Drawing,
    Grid,
    Note,
    Paragraph,
    Property,
    Table,
    one_screen,
)
from gpumagic.drawing import how_measured as how
from gpumagic.report.units import bytes_text
from gpumagic.tensor_info.answer_values import (
    values_headline,
    values_note,
    values_parts,
)
from gpumagic.tensor_info.answer_warp import (
    is_drawn,
    warp_headline,
    warp_parts,
    warp_reads,
)
from gpumagic.tensor_info.axes import visible_tensor
from gpumagic.tensor_info.figure import index_panel, memory_strip
from gpumagic.tensor_info.geometry import fresh_strides
from gpumagic.tensor_info.sentences import (
    headline,
    kept_bytes,
    misfit_bytes,
    numbers_text,
    shape_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpumagic.drawing import Cell, Part
    from gpumagic.tensor_info.report import TensorReport

_MOST_INNER = 4
_MOST_GRID_DIMS = 3
_HOW = (
    "Looking has run no operation and has read no element.",
    "The values were read piece by piece where they lie; no copy was made.",
    "That ran operations on the device, and waited for it at the end.",
    "A place is counted in elements from the beginning of the storage.",
)
_IN_PLACE = {
    "yes": "unsafe: indices share elements",
    "no": "safe: each index has its own element",
}


def draw(
    report: TensorReport, *, warp: bool = False, failures: tuple[str, ...] = ()
) -> Drawing:
    """The values, what a warp fetches or the layout, whatever was asked for."""
    said = headline(report)
    if report.values is not None:
        said = values_headline(report, report.values)
    elif warp and is_drawn(report):
        said = warp_headline(report)
    failed = (Note("problem", failure) for failure in failures)
    return drawn(said, (*failed, *_parts(report, warp=warp)), report.simulated)


def drawn(said: str, parts: Iterable[Part], simulated: object) -> Drawing:
    """A report of this room as one screen."""
    return Drawing(said, one_screen(parts), "simulated GPU" if simulated else "")


def _parts(report: TensorReport, *, warp: bool = False) -> Iterator[Part]:
    """What is in sight of one tensor, then all else by its word.

    Values come first where they have been read; then what a warp fetches, where that
    was asked for; else the elements.
    """
    values = report.values
    reads = warp and values is None and is_drawn(report)
    visible = visible_tensor(report)
    grid: tuple[Part, ...] = ()
    if visible is not None and visible.ndim <= _MOST_GRID_DIMS:
        grid = (index_panel(visible),)
    if values is not None:
        yield from values_parts(values)
    elif reads:
        yield warp_reads(report)
    else:
        yield from grid
        grid = ()
    dims = (dims_table(report),) if report.size and report.stride is not None else ()
    if values is None:
        yield from dims
        dims = ()
    yield from values_note(report)
    yield from _notes(report)
    if visible is not None and visible.is_in_order and report.storage_bytes != 0:
        grid = (*grid, memory_strip(visible))
    if grid:
        yield Details("The places in the order of addresses", grid, "memory")
    yield Details("Layout, bytes and flags", (*dims, facts_table(report)), "facts")
    if (warp or report.on_accelerator) and not reads and is_drawn(report):
        yield Details("What a warp fetches", tuple(warp_parts((report,))), "warp")
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
    guessed = [each for each in reports if is_drawn(each) and each.address is None]
    said += [
        f"The address of {each.expression} is unknown: its sectors are a guess, as if "
        "its storage began at 0."
        for each in guessed
    ]
    return how(Paragraph("\n".join(said)))


def dims_table(report: TensorReport) -> Table:
    """Size and stride of each dim, and what they mean."""
    size, stride, itemsize = report.size or (), report.stride or (), report.itemsize
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

    def step_bytes(dim: int) -> str | None:
        return None if itemsize is None else f"{stride[dim] * itemsize:,}"

    properties = (
        Property(Column("Dim"), str),
        Property(Column("Size", number=True), lambda dim: f"{size[dim]:,}"),
        Property(Column("Stride", number=True), lambda dim: f"{stride[dim]:,}"),
        Property(Column("Bytes", number=True), step_bytes),
        Property(Column("Meaning"), meaning),
    )
    caption = "One step along each dim"
    return Table.of(caption, properties, range(len(size)), name="dims")


def _notes(report: TensorReport) -> Iterator[Note]:
    """What to do, from the most urgent on."""
    needed, unused = misfit_bytes(report), kept_bytes(report)
    name = report.expression
    copy = f"{name if name.isidentifier() else 'y'} = {name}.clone()"
    if needed is not None:
        yield Note(
            "problem",
            f"reading it is not safe: it needs {bytes_text(needed)}, and its storage "
            f"has {bytes_text(report.storage_bytes)}",
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
    if report.overlap == "yes":
        yield Note(
            "warning",
            "writing in place is unsafe, as indices share elements: "
            f"{report.overlap_why}",
            f"{copy} before writing to it",
        )
    for on, word, method in (
        (report.conj_bit, "conjugated", "resolve_conj"),
        (report.neg_bit, "negated", "resolve_neg"),
    ):
        if on:
            yield Note(
                "note",
                f"its values are {word} when they are read; in memory they are not",
                f"{name}.{method}() writes them out",
            )
    yield from (Note("note", remark) for remark in report.remarks)


def facts_table(report: TensorReport) -> Grid:
    """What one would ask of a tensor, answered where it could be told."""
    facts = *_facts(report), *_memory_facts(report)
    return Grid("Facts", tuple(each for each in facts if each[1]))


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
    if report.overlap is not None:
        undecided = "not decided whether indices share elements"
        safe = _IN_PLACE.get(report.overlap, undecided)
        yield "writing in place", f"{safe} ({report.overlap_why})"
    if report.requires_grad is not None:
        yield "gradient", "required" if report.requires_grad else "not required"


def _memory_facts(report: TensorReport) -> Iterator[tuple[str, Cell]]:
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
    if report.base_shape is not None:
        yield "keeps alive", f"one of size {shape_text(report.base_shape)}"
