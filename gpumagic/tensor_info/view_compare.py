"""Draws several tensors beside each other: what differs, and what they share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Details, Note, Paragraph, Property, Table
from gpumagic.report.units import bytes_text, listed
from gpumagic.tensor_info.lane_bars import BarLane, LaneBars
from gpumagic.tensor_info.panels import Lane, few_places, lane_cells
from gpumagic.tensor_info.sentences import contiguity, headline, shape_text
from gpumagic.tensor_info.view_shape import obstacle, shape_headline, ways
from gpumagic.tensor_info.view_tensor import how_looked
from gpumagic.tensor_info.view_values import values_headline, values_table
from gpumagic.tensor_info.view_warp import is_drawn, warp_parts
from gpumagic.tensor_info.visible_axes import visible_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.drawing import Part
    from gpumagic.tensor_info.report import CompareReport, Pair, TensorReport

_DIFFERS = "differs: "
_MOST_TOLD = 4
_RELATIONS = {
    "identical": "the same elements",
    "contains": "the first contains the second",
    "contained": "the first is contained in the second",
    "partial": "some elements in common",
    "interleaved": "beside each other in one stretch, no element in common",
    "disjoint": "no element in common",
    "unknown": "not known",
}
_LAYOUTS = {True: "the same", False: "different", None: None}


def comparison_headline(report: CompareReport) -> str:
    """How many tensors there are, and whether they share elements."""
    names = listed([each.expression for each in report.tensors], most=_MOST_TOLD)
    pairs = len(report.pairs)
    sharing = sum(pair.elements_overlap is True for pair in report.pairs)
    if not pairs:
        return headline(report.tensors[0]) if report.tensors else "no tensor"
    if not sharing:
        return f"{names} share no elements"
    if sharing == pairs:
        return f"{names} share elements: writing to one changes what others read"
    return f"{sharing} of {pairs} pairs of {names} share elements"


def comparison_parts(report: CompareReport) -> Iterator[Part]:
    """One memory that is shared, a row for each tensor, and what to do."""
    memories = tuple(shared_memories(report))
    tensors = report.tensors
    yield from memories[:1]
    if report.views:
        yield _views(report)
    else:
        yield _tensors(tensors)
    for each in tensors:
        if each.values and (each.values.nan_count or each.values.inf_count):
            yield Note("problem", values_headline(each, each.values))
    yield from _entangled(report)
    yield from (Note("problem", remark) for remark in report.remarks)
    if report.views:
        yield Details("The tensors", (_tensors(tensors),), "tensors")
        yield Details("Why, and what works", tuple(_each_view(report)), "views")
    if len(memories) > 1:
        yield Details("More memory that is shared", memories[1:], "memory")
    read = [(each.expression, each.values) for each in tensors if each.values]
    if read:
        names, summaries = zip(*read, strict=True)
        yield Details("The values of each", (values_table(names, summaries),), "values")
    if report.pairs:
        pairs: tuple[Part, ...] = (_pairs(report), *_orders(report))
        yield Details("Pair by pair", pairs, "pairs")
    yield Details("Property by property", (_table(tensors),), "facts")
    shown = [each for each in tensors if report.warp or each.on_accelerator]
    if any(map(is_drawn, shown)):
        yield Details(
            "What a warp fetches", tuple(warp_parts(shown, named=True)), "warp"
        )
    yield how_looked(tensors)


def _tensors(tensors: Sequence[TensorReport]) -> Table:
    properties = (
        Property(Column("Tensor"), lambda each: each.expression),
        Property(Column("Size"), _size),
        Property(Column("Dtype"), lambda each: each.dtype),
        Property(Column("Device"), lambda each: each.device),
        Property(Column("Stride"), _stride),
        Property(Column("Offset", number=True), _offset),
        Property(Column("Layout"), _layout),
    )
    return Table.of("Side by side", properties, tensors, name="rows")


def _layout(report: TensorReport) -> str | None:
    return contiguity(report).partition(":")[0] or None


def _views(report: CompareReport) -> Table:
    properties = (
        Property(Column("Tensor"), lambda each: each.tensor.expression),
        Property(Column("Answer"), shape_headline),
    )
    return Table.of("What was asked", properties, report.views, name="asked")


def _each_view(report: CompareReport) -> Iterator[Part]:
    for each in report.views:
        yield Paragraph(f"{shape_headline(each)}.")
        if not each.view and not each.problem:
            yield Note("problem", obstacle(each))
        yield from ways(each)


def _table(tensors: Sequence[TensorReport]) -> Table:
    """A row for each property; what differs from the first tensor says so."""
    columns = (Column("Property"), *(Column(each.expression) for each in tensors))
    rows = [
        (name, *_marked([of(each) for each in tensors])) for name, of in _PROPERTIES
    ]
    return Table("Property by property", columns, tuple(rows))


def _marked(values: list[str | None]) -> list[str | None]:
    first, *others = values
    return [
        first,
        *(
            each if each is None or each == first else f"{_DIFFERS}{each}"
            for each in others
        ),
    ]


def _size(report: TensorReport) -> str | None:
    return None if report.size is None else shape_text(report.size)


def _stride(report: TensorReport) -> str | None:
    return None if report.stride is None else str(report.stride)


def _offset(report: TensorReport) -> str | None:
    offset = report.storage_offset
    return None if offset is None else f"{offset:,} el"


def _bytes_of(field: str) -> Callable[[TensorReport], str | None]:
    def text(report: TensorReport) -> str | None:
        count = getattr(report, field)
        return None if count is None else bytes_text(count)

    return text


_PROPERTIES: tuple[tuple[str, Callable[[TensorReport], str | None]], ...] = (
    ("kind", lambda report: report.kind),
    ("dtype", lambda report: report.dtype),
    ("device", lambda report: report.device),
    ("size", _size),
    ("stride", _stride),
    ("offset", _offset),
    ("layout", lambda report: contiguity(report) or None),
    ("operators return", lambda report: report.operators_treat_as),
    ("overlap inside", lambda report: report.overlap),
    ("logical bytes", _bytes_of("logical_bytes")),
    ("touched bytes", _bytes_of("touched_bytes")),
    ("storage bytes", _bytes_of("storage_bytes")),
)


def _pairs(report: CompareReport) -> Table:
    properties = (
        Property(Column("Pair"), lambda pair: _names(report, pair)),
        Property(Column("Storage"), _storage),
        Property(Column("Elements"), relation_text),
        Property(
            Column("Shared", number=True),
            lambda pair: (
                None if pair.shared_bytes is None else bytes_text(pair.shared_bytes)
            ),
        ),
        Property(Column("Layout"), lambda pair: _LAYOUTS[pair.same_layout]),
    )
    return Table.of("Pair by pair", properties, report.pairs)


def _storage(pair: Pair) -> str | None:
    if pair.same_storage:
        return "the same"
    if pair.storage_ranges_intersect:
        return "two objects over the same addresses"
    return None if pair.same_storage is None else "two"


def relation_text(pair: Pair) -> str:
    """How the elements of two tensors lie to each other, in words."""
    return _RELATIONS.get(pair.relation, pair.relation)


def _entangled(report: CompareReport) -> Iterator[Note]:
    """Pairs of which writing to one changes part of the other."""
    mixed = ("partial", "contains", "contained")
    entangled = [
        _names(report, pair) for pair in report.pairs if pair.relation in mixed
    ]
    if entangled:
        yield Note(
            "warning",
            "reading one while writing to the other may mix values: "
            f"{listed(entangled, ', ', most=1)}",
            "call .clone() on what is to stay as it is",
        )


def _orders(report: CompareReport) -> Iterator[Paragraph]:
    """What an element-wise operator meets that walks two of the tensors."""
    for pair in report.pairs:
        if pair.common_order is not None and pair.same_layout is False:
            order = ", ".join(map(str, pair.common_order))
            names = _names(report, pair)
            yield Paragraph(
                f"An element-wise operator walks {names} in the order of dims {order}."
            )


def _names(report: CompareReport, pair: Pair) -> str:
    first, second = (report.tensors[at] for at in (pair.first, pair.second))
    return f"{first.expression} and {second.expression}"


def shared_memories(report: CompareReport) -> Iterator[Part]:
    """A figure for each memory that more than one of the tensors lies in."""
    for numbers in _groups(len(report.tensors), report.pairs):
        lanes = _lanes([report.tensors[number] for number in numbers])
        if len(lanes) < 2:
            continue
        yield (
            lane_cells(lanes)
            if few_places(lanes)
            else _bars(lanes, [report.tensors[number] for number in numbers])
        )


def _groups(count: int, pairs: Sequence[Pair]) -> list[list[int]]:
    """Tensors that lie in one memory, directly or through another tensor."""
    group = list(range(count))
    for pair in pairs:
        if pair.same_storage or pair.storage_ranges_intersect:
            old, new = sorted((group[pair.first], group[pair.second]), reverse=True)
            group = [new if each == old else each for each in group]
    return [
        [number for number in range(count) if group[number] == each]
        for each in sorted(set(group))
    ]


def _lanes(tensors: Sequence[TensorReport]) -> list[Lane]:
    """The tensors with the place of their storages in the memory they share."""
    seen = [visible_tensor(each) for each in tensors]
    starts = _starts(tensors)
    return [
        Lane(tensor.expression, visible, start)
        for tensor, visible, start in zip(tensors, seen, starts, strict=True)
        if visible is not None
    ]


def _starts(tensors: Sequence[TensorReport]) -> list[int]:
    """Where each tensor's storage begins, from the lowest on, by address if known."""
    found = []
    for each in tensors:
        if each.address is None:
            return [0] * len(tensors)
        offset_bytes = (each.storage_offset or 0) * (each.itemsize or 1)
        found.append(each.address - offset_bytes)
    return [start - min(found) for start in found]


def _bars(lanes: Sequence[Lane], tensors: Sequence[TensorReport]) -> LaneBars:
    stops = [
        lane.start_byte + (tensor.storage_bytes or 0)
        for lane, tensor in zip(lanes, tensors, strict=False)
    ]
    total = max(*stops, *(lane.last_byte for lane in lanes))
    by_name = {tensor.expression: tensor for tensor in tensors}
    bars = tuple(
        BarLane(
            lane.name,
            lane.first_byte,
            lane.last_byte,
            by_name[lane.name].holes_in_span == 0,
            _where(lane, by_name[lane.name]),
        )
        for lane in lanes
    )
    ends = bytes_text(0), bytes_text(total)
    return LaneBars("One memory, a lane for each tensor", bars, total, ends)


def _where(lane: Lane, tensor: TensorReport) -> str:
    said = f"byte {lane.first_byte:,} to {lane.last_byte:,}"
    if tensor.holes_in_span:
        return f"{said}, {tensor.holes_in_span:,} el between are not its own"
    return said
