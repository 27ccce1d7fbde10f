"""Draws several tensors beside each other: what differs, and what they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from gpumagic.drawing import Column, Note, Property, Table, svg
from gpumagic.drawing.html import Html, element, words
from gpumagic.drawing.ink import GAP, glyphs_for, ink, side_by_side, widest
from gpumagic.drawing.palette import BLUE, TRACK, WHITE
from gpumagic.drawing.table import (
    INDENT,
    caption_ink,
    indented,
    pictures_html,
)
from gpumagic.report.units import bytes_text
from gpumagic.tensor_info.panels import Lane, few_places, lane_cells
from gpumagic.tensor_info.sentences import contiguity, shape_text
from gpumagic.tensor_info.visible_axes import visible_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

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
_WIDTH, _HEIGHT = 360, 18
_LEAST = 3
_HOLES = 2


def comparison_headline(report: CompareReport) -> str:
    """How many tensors there are, and whether they share memory."""
    count = len(report.tensors)
    names = ", ".join(each.expression for each in report.tensors)
    sharing = sum(pair.elements_overlap is True for pair in report.pairs)
    if not report.pairs:
        return names or "no tensor"
    of = f"{sharing} of {len(report.pairs)}" if sharing else "none"
    pairs = "pair" if len(report.pairs) == 1 else "pairs"
    if not sharing:
        return f"{names}: {count} tensors, no two share elements"
    return f"{names}: {count} tensors, {of} {pairs} share elements"


def comparison_parts(report: CompareReport) -> Iterator[Part]:
    """One table, one strip for each memory that is shared, one line for each pair."""
    yield from shared_memories(report)
    yield _table(report.tensors)
    if report.pairs:
        yield _pairs(report)
    yield from _orders(report)


def _table(tensors: Sequence[TensorReport]) -> Table:
    """A row for each property; what differs from the first tensor says so."""
    columns = (Column("Property"), *(Column(each.expression) for each in tensors))
    rows = [
        (name, *_marked([of(each) for each in tensors])) for name, of in _PROPERTIES
    ]
    return Table("Side by side", columns, tuple(rows))


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
    ("operators treat as", lambda report: report.operators_treat_as),
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


def _orders(report: CompareReport) -> Iterator[Note]:
    """What an operator meets that walks two of the tensors."""
    mixed = ("partial", "contains", "contained")
    entangled = [
        _names(report, pair) for pair in report.pairs if pair.relation in mixed
    ]
    if entangled:
        more = len(entangled) - _MOST_TOLD
        named = "; ".join(entangled[:_MOST_TOLD]) + (
            f"; {more} more" if more > 0 else ""
        )
        yield Note(
            "warning",
            f"writing to one in place changes part of the other: {named}; an operation "
            "that reads one and writes the other may see values of both",
            "call .clone() on what is to stay as it is",
        )
    for pair in report.pairs:
        if pair.common_order is not None and pair.same_layout is False:
            order = ", ".join(map(str, pair.common_order))
            yield Note(
                "note",
                f"an element-wise operator walks {_names(report, pair)} in the order "
                f"of dims {order}",
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
    ends = [
        lane.start_byte + (tensor.storage_bytes or 0)
        for lane, tensor in zip(lanes, tensors, strict=False)
    ]
    total = max(*ends, *(lane.last_byte for lane in lanes))
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
    return LaneBars("One memory, a lane for each tensor", bars, total)


def _where(lane: Lane, tensor: TensorReport) -> str:
    said = f"byte {lane.first_byte:,} to {lane.last_byte:,}"
    if tensor.holes_in_span:
        return f"{said}, {tensor.holes_in_span:,} el between are not its own"
    return said


@dataclass(frozen=True)
class BarLane:
    """One tensor's stretch of a memory.

    Args:
        name: Which tensor.

        first_byte: Where it begins.

        last_byte: Where it ends; exclusive.

        dense: Whether it fills its stretch; None if unknown.

        said: Its share in words.
    """

    name: str
    first_byte: int
    last_byte: int
    dense: bool | None
    said: str


@dataclass(frozen=True)
class LaneBars:
    """Lanes over one memory, to its scale.

    Args:
        caption: Which memory.

        lanes: From top to bottom.

        total_bytes: How long the memory is.
    """

    caption: str
    lanes: tuple[BarLane, ...]
    total_bytes: int

    def html(self) -> Html:
        """A table with a picture for each lane."""
        axis = element(
            "div",
            *(element("span", words(mark)) for mark in self._marks()),
            style="display:flex;justify-content:space-between;font-weight:normal",
        )
        rows = ((lane.name, self._picture(lane), lane.said) for lane in self.lanes)
        return pictures_html(self.caption, (words("name"), axis, words("where")), rows)

    def _marks(self) -> tuple[str, str]:
        return bytes_text(0), bytes_text(self.total_bytes)

    def _picture(self, lane: BarLane) -> Html:
        left, right = self._ends(lane, _WIDTH, _LEAST)
        track = svg.path(f"M0 0h{_WIDTH}v{_HEIGHT}h-{_WIDTH}z", TRACK)
        inside = _HEIGHT - 4
        bar = svg.path(f"M{left} 2h{right - left}v{inside}h-{right - left}z", BLUE)
        holes = "".join(
            f"M{at} 2h2v{inside}h-2z" for at in range(left + 3, right - 2, 6)
        )
        shapes = (track, bar) if lane.dense else (track, bar, svg.path(holes, WHITE))
        drawn = svg.picture(_WIDTH, _HEIGHT, lane.name, *shapes)
        return svg.image(drawn, f"{lane.name}: {lane.said}", _WIDTH, _HEIGHT)

    def _ends(self, lane: BarLane, width: int, least: int) -> tuple[int, int]:
        """Where the lane begins and ends on a line; never less than a mark."""
        total = max(self.total_bytes, 1)
        left = min(lane.first_byte * width // total, width - least)
        right = -(-lane.last_byte * width // total)
        return left, min(max(right, left + least), width)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        names = [ink(lane.name, options) for lane in self.lanes]
        said = [ink(lane.said, options) for lane in self.lanes]
        room = options.max_width - INDENT - 2 * len(GAP)
        name = min(widest(text.plain for text in names), max(room // 4, 1))
        told = min(widest(text.plain for text in said), max(room // 3, 1))
        widths = (name, room - name - told, told)
        rows = [
            (each, self._ink(lane, widths[1], options), words)
            for each, lane, words in zip(names, self.lanes, said, strict=True)
        ]
        marks = self._marks()
        axis = f"{marks[0]}{marks[1]:>{max(widths[1] - len(marks[0]), 1)}}"
        rows.append((Text(), Text(axis, overflow="fold"), Text()))
        for row in rows:
            for line in side_by_side(row, widths, console):
                yield indented(line)

    def _ink(self, lane: BarLane, width: int, options: ConsoleOptions) -> Text:
        glyphs = glyphs_for(options)
        left, right = self._ends(lane, width, 1)
        mark = glyphs.kinds[0 if lane.dense else _HOLES]
        bar = mark * (right - left) + glyphs.gap * (width - right)
        return Text(glyphs.gap * left + bar)
