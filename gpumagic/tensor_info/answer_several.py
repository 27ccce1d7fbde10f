"""What do several tensors share: those beside each other, or all names' memory."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from gpumagic.drawing import (
    Column,
    Details,
    Extent,
    Extents,
    Note,
    Paragraph,
    Property,
    Table,
)
from gpumagic.drawing import how_measured as how
from gpumagic.report.units import bytes_text, count_text, listed
from gpumagic.tensor_info.answer_tensor import (
    drawn,
    how_looked,
    layout,
    numbers_text,
    shape_text,
    warp_details,
)
from gpumagic.tensor_info.answer_values import values_headline, values_table
from gpumagic.tensor_info.figure import Lane, lane_cells, visible_tensor
from gpumagic.tensor_info.overlap import INTERLOCKED, clusters

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Drawing, Part
    from gpumagic.tensor_info.report import (
        AliasReport,
        CompareReport,
        Group,
        Name,
        Pair,
        TensorReport,
    )

_MOST_TOLD = 4
_RELATIONS = {
    "identical": "the same elements",
    "contains": "the first contains the second",
    "contained": "the first is contained in the second",
    "partial": "some elements in common",
    "interleaved": "beside each other in one stretch, no element in common",
    "disjoint": "no element in common",
}
_MIXED = ("partial", "contains", "contained")
_LAYOUTS = {True: "the same", False: "different", None: None}
_STORAGES = {
    "same": "the same",
    "two": "two",
    "two over one memory": "two objects over the same addresses",
}
_MOST_GROUPS, _MOST_NAMES = 8, 12
_NAMED_AT_MOST, _MOST_LANES_IN_SIGHT = 2, 6
_COPY = (
    "`y = y.detach().clone()` for each name, `y = y.copy()` in numpy, unless something "
    "else holds it, such as autograd; `%reset -f out` lets go of the outputs of cells"
)
_HOW = (
    "Looked at were the names of the notebook, and one level within them: lists, "
    "tuples, dicts, modules.\n"
    "Memory is told apart by device and address; no operation was run.\n"
    f"{INTERLOCKED}"
)


def draw_comparison(report: CompareReport) -> Drawing:
    """Several tensors beside each other."""
    simulated = any(each.simulated for each in report.tensors)
    said = comparison_headline(report)
    return drawn(said, _comparison(report), simulated=simulated)


def draw_aliases(report: AliasReport) -> Drawing:
    """The names that share memory."""
    return drawn(alias_headline(report), _aliases(report), simulated=report.simulated)


def comparison_headline(report: CompareReport) -> str:
    """Whether there are NaNs, where that was asked for, and elements in common."""
    read = [(e.expression, e.values) for e in report.tensors if e.values]
    odd = [name for name, values in read if values.not_finite]
    sharing = _sharing(report)
    if odd:
        return f"NaN or inf in {listed(odd, most=_MOST_TOLD)}; {sharing}"
    if len(read) == len(report.tensors):
        return f"no NaN or inf; {sharing}"
    return sharing


def _sharing(report: CompareReport) -> str:
    names = listed([each.expression for each in report.tensors], most=_MOST_TOLD)
    pairs = len(report.pairs)
    sharing = sum(pair.elements_overlap is True for pair in report.pairs)
    if not sharing and None in (pair.elements_overlap for pair in report.pairs):
        return f"whether {names} share elements is not decided"
    if not sharing:
        return f"{names} share no elements"
    if sharing == pairs:
        return f"{names} share elements: writing to one changes what others read"
    return f"{sharing} of {pairs} pairs of {names} share elements"


def _comparison(report: CompareReport) -> Iterator[Part]:
    """One memory that is shared, a row for each tensor, and what to do."""
    tensors = report.tensors
    yield from _shared_memory(report)
    tables = [_rows(tensors)]
    if read := [each for each in tensors if each.values]:
        name = Property(Column("Tensor"), lambda each: each.expression)
        tables.insert(0, values_table(read, name))
    yield tables[0]
    for each in tensors:
        if each.values and each.values.not_finite:
            yield Note("problem", values_headline(each, each.values))
        elif each.unread:
            said = f"the values of {each.expression} cannot be read: {each.unread}"
            yield Note("problem", said)
    mixing = [pair for pair in report.pairs if _mixes(report, pair)]
    if mixed := [_both(report, pair, " with ") for pair in mixing]:
        yield Note(
            "warning",
            "reading one while writing to the other may mix values: "
            f"{listed(mixed, most=_NAMED_AT_MOST)}",
            "call .clone() on what is to stay as it is",
        )
    yield from (Note("problem", remark) for remark in report.remarks)
    if report.pairs:
        yield Details("Pair by pair", (_pairs(report), *tables[1:]), "pairs")
    yield from warp_details([e for e in tensors if report.warp or e.on_accelerator])
    yield how_looked(tensors)


def _mixes(report: CompareReport, pair: Pair) -> bool:
    """Whether an operation on both may read what it has written, as `y += y.t()`."""
    first, second = (report.tensors[at] for at in (pair.first, pair.second))
    in_other_order = pair.same_layout is False and first.size == second.size
    return pair.relation in _MIXED or (pair.relation == "identical" and in_other_order)


def _rows(tensors: Sequence[TensorReport]) -> Table:
    properties = (
        Property(Column("Tensor"), lambda each: each.expression),
        Property(Column("Size"), lambda each: shape_text(each.size)),
        Property(Column("Dtype"), lambda each: each.dtype),
        Property(Column("Device"), lambda each: each.device),
        Property(
            Column("Stride"), lambda t: t.geometry and numbers_text(t.geometry.stride)
        ),
        Property(
            Column("Offset", number=True),
            lambda t: t.geometry and f"{t.geometry.offset:,} el",
        ),
        Property(Column("Layout"), layout),
    )
    return Table.of("Side by side", properties, tensors, name="rows")


def _pairs(report: CompareReport) -> Table:
    def shared(pair: Pair) -> str:
        at_least = "at least " if pair.at_least else ""
        return f"{at_least}{bytes_text(pair.shared_bytes)}"

    properties = (
        Property(Column("Pair"), lambda pair: _both(report, pair)),
        Property(Column("Storage"), lambda pair: _STORAGES.get(pair.storage)),
        Property(Column("Elements"), lambda pair: _RELATIONS.get(pair.relation)),
        Property(Column("Shared", number=True), shared),
        Property(Column("Layout"), lambda pair: _LAYOUTS[pair.same_layout]),
    )
    return Table.of("Pair by pair", properties, report.pairs)


def _both(report: CompareReport, pair: Pair, joint: str = " and ") -> str:
    first, second = (report.tensors[at] for at in (pair.first, pair.second))
    return f"{first.expression}{joint}{second.expression}"


def _shared_memory(report: CompareReport) -> Iterator[Part]:
    """A figure of the memory that most of the tensors lie in."""
    placed = []
    for number, tensor in enumerate(report.tensors):
        visible = visible_tensor(tensor)
        if visible and tensor.address:
            start = tensor.address - visible.offset * visible.itemsize
            end = start + (tensor.storage_bytes or 0)
            placed.append(((tensor.device, start, end), number, visible))
    together = max(clusters(placed, itemgetter(0)), key=len, default=[])
    if len(together) < 2:
        return
    together.sort(key=itemgetter(1))
    first = min(start for (_, start, _), *_ in together)
    lanes = [
        Lane(report.tensors[number].expression, visible, start - first)
        for (_, start, _), number, visible in together
    ]
    if cells := lane_cells(lanes):
        yield from cells
        return
    ends = (end - first for (_, _, end), *_ in together)
    total = max(*ends, *(lane.last_byte for lane in lanes))
    bars = (
        _extent(
            lane.name,
            (lane.first_byte, lane.last_byte),
            has_gaps=report.tensors[number].holes_in_span != 0,
        )
        for lane, (_, number, _) in zip(lanes, together, strict=True)
    )
    edges = bytes_text(0), bytes_text(total)
    yield Extents("One memory, a lane for each tensor", tuple(bars), total, edges)


def _extent(
    name: str, stretch: tuple[int, int], what: str = "", *, has_gaps: bool
) -> Extent:
    """Where something lies, drawn and in words."""
    said = f"{what}byte {stretch[0]:,} to {stretch[1]:,}"
    if has_gaps:
        said += ", with gaps"
    return Extent(name, *stretch, dense=not has_gaps, said=said)


def alias_headline(report: AliasReport) -> str:
    """Who keeps most for nothing; else how much memory is shared, by how many names."""
    groups = report.groups
    if not groups:
        return "no two names share memory"
    worst = max(groups, key=lambda group: group.kept_for_nothing_bytes)
    stored = bytes_text(sum(group.stored_bytes for group in groups))
    if worst.is_wasteful:
        kept, used = bytes_text(worst.stored_bytes), bytes_text(worst.used_bytes)
        return f"{kept} kept alive by {_names(worst)}, of which {used} are used"
    names = count_text(sum(len(group.names) for group in groups), "name")
    pieces = count_text(len(groups), "piece of memory", "pieces of memory")
    share = "is shared" if len(groups) == 1 else "are shared"
    return f"{pieces}, {stored} in all, {share} by {names}"


def _aliases(report: AliasReport) -> Iterator[Part]:
    """The largest piece of memory, all pieces in figures, and what frees some."""
    groups = report.groups
    if groups:
        yield _lanes(groups[0], _MOST_LANES_IN_SIGHT)
        properties = (
            Property(Column("Names"), _names),
            Property(Column("Memory"), lambda each: each.device),
            Property(Column("Size", number=True), lambda g: bytes_text(g.stored_bytes)),
            Property(Column("Used", number=True), lambda g: bytes_text(g.used_bytes)),
            Property(
                Column("Kept for nothing", number=True),
                lambda group: bytes_text(group.kept_for_nothing_bytes),
            ),
        )
        yield Table.of("Memory under several names", properties, groups, name="pieces")
    if not report.complete:
        said = "the search was cut short: there may be more names"
        yield Note("warning", said, "name tensors to look at: %tensor_info --alias x")
    for group in groups:
        if group.is_wasteful and group.freed_by_copies_bytes:
            freed = bytes_text(group.freed_by_copies_bytes)
            yield Note(
                "warning", f"copies of {_names(group)} would free {freed}", _COPY
            )
    yield from (Note("note", remark) for remark in report.remarks)
    if groups:
        lanes = tuple(_lanes(each, _MOST_NAMES) for each in groups[:_MOST_GROUPS])
        yield Details("Each piece, name by name", lanes, "names")
    yield how(Paragraph(_HOW))


def _names(group: Group) -> str:
    return listed([name.name for name in group.names], most=_NAMED_AT_MOST)


def _lanes(group: Group, most: int) -> Extents:
    size, names = bytes_text(group.stored_bytes), group.names
    lanes, caption = tuple(map(_lane, names[:most])), f"{size} on {group.device}"
    if more := len(names[most:]):
        caption += f"; {count_text(more, 'more name')} not drawn"
    return Extents(caption, lanes, group.stored_bytes, (bytes_text(0), size))


def _lane(name: Name) -> Extent:
    stretch = name.first_byte, name.last_byte
    what = f"{name.kind}, {shape_text(name.size)} {name.dtype}, "
    if name.is_output:
        what += "held by the output of a cell, "
    has_gaps = name.touched_bytes < name.last_byte - name.first_byte
    return _extent(name.name, stretch, what, has_gaps=has_gaps)
