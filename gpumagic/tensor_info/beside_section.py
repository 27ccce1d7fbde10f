"""Several tensors beside each other: what differs, and what they share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Column, Note, Table
from gpumagic.report.units import bytes_text
from gpumagic.tensor_info.shared_memory import shared_memories
from gpumagic.tensor_info.words import contiguity, shape_text

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


def beside_headline(report: CompareReport) -> str:
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


def beside_parts(report: CompareReport) -> Iterator[Part]:
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
    columns = (
        Column("Pair"),
        Column("Storage"),
        Column("Elements"),
        Column("Shared", number=True),
        Column("Layout"),
    )
    return Table("Pair by pair", columns, tuple(_pair(report, p) for p in report.pairs))


def _pair(report: CompareReport, pair: Pair) -> tuple[str | None, ...]:
    shared = None if pair.shared_bytes is None else bytes_text(pair.shared_bytes)
    return (
        _names(report, pair),
        _storage(pair),
        relation_text(pair),
        shared,
        {True: "the same", False: "different", None: None}[pair.same_layout],
    )


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
