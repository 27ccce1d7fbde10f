"""Adds up what a tree of tensors takes, each memory once, and says what is odd.

Two names of one parameter, views of one storage: what several tensors reach is counted
where it is met first, in the whole and within each module for itself.
"""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.report.units import listed
from gpumagic.tensor_info.inventory import Leaf
from gpumagic.tensor_info.overlap import (
    Placed,
    byte_range,
    covered_bytes,
    distinct_elements,
)
from gpumagic.tensor_info.report import Amount, ModelReport, Node, Oddity

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from gpumagic.tensor_info.geometry import Geometry
    from gpumagic.tensor_info.inventory import Branch, Walk
    from gpumagic.tensor_info.read import Reading

_ROLES = {
    "parameter": "parameters",
    "buffer": "buffers",
    "state": "state",
    "attribute": "not registered",
    "tensor": "tensors",
}
_FLOATS = ("float", "bfloat", "complex")


def model_report(expression: str, kind: str, walk: Walk, whole: Branch) -> ModelReport:
    """The report on all that one walk has found."""
    ledger, leaves = _Ledger(walk.leaves), walk.leaves
    root, _ = _node(ledger, whole)
    return ModelReport(
        expression=expression,
        kind=kind,
        root=root,
        roles=_amounts(ledger, leaves, lambda leaf: _ROLES[leaf.role]),
        types=_amounts(ledger, leaves, _type),
        odd=tuple(_oddities(ledger, leaves)),
        values=any(leaf.nan_count is not None for leaf in leaves),
        complete=walk.complete,
        remarks=tuple(dict.fromkeys(_remarks(leaves))),
        simulated=any(leaf.reading.simulated for leaf in leaves),
    )


class _Chunk(NamedTuple):
    """A stretch of memory that one tensor reaches."""

    device: str
    first: int
    last: int  # exclusive
    geometry: Geometry
    storage_start: int


class _Total(NamedTuple):
    """What some tensors take together, each memory counted once."""

    tensors: int
    elements: int
    stored_bytes: int


class _Ledger:
    """Which tensors reach the same memory, and what some of them take together."""

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self._chunks = {id(leaf): tuple(_chunks(leaf.reading)) for leaf in leaves}
        self._group_of: dict[_Chunk, int] = {}  # of chunks that reach into another
        before: list[_Chunk] = []
        device, end, number = "", 0, 0
        distinct = {chunk for each in self._chunks.values() for chunk in each}
        for chunk in sorted(distinct, key=lambda each: each[:3]):
            if chunk.device == device and chunk.first < end:
                self._group_of |= dict.fromkeys((*before, chunk), number)
            else:
                before, device, end, number = [], chunk.device, 0, number + 1
            before.append(chunk)
            end = max(end, chunk.last)

    def key(self, leaf: Leaf) -> Hashable:
        """The same for tensors that are one in memory."""
        return self._chunks[id(leaf)] or (leaf.reading.identity or id(leaf),)

    def _overlaps(self, leaf: Leaf) -> bool:
        """Whether it shares some of its memory with another tensor, and not all."""
        return any(chunk in self._group_of for chunk in self._chunks[id(leaf)])

    def total(self, leaves: Iterable[Leaf]) -> _Total:
        """The elements and the bytes that these reach, each counted once."""
        distinct = {self.key(leaf): leaf for leaf in leaves}
        elements = stored = 0
        shared: dict[int, set[_Chunk]] = {}
        for leaf in distinct.values():
            chunks = self._chunks[id(leaf)]
            for chunk in chunks:
                if chunk in self._group_of:
                    shared.setdefault(self._group_of[chunk], set()).add(chunk)
                else:
                    stored += _used_bytes(chunk)
            if not chunks:  # a meta tensor, say: what a real one would take
                stored += _numel(leaf.reading) * (leaf.reading.itemsize or 0)
            if not self._overlaps(leaf):
                elements += _numel(leaf.reading)
        for group in shared.values():
            start = min(chunk.storage_start for chunk in group)
            covered = covered_bytes(
                Placed(chunk.geometry, chunk.storage_start - start) for chunk in group
            )
            if covered is None:
                first = min(chunk.first for chunk in group)
                covered = max(chunk.last for chunk in group) - first
            stored += covered
            elements += covered // max(chunk.geometry.itemsize for chunk in group)
        return _Total(len(distinct), elements, stored)


def _chunks(reading: Reading) -> Iterator[_Chunk]:
    """The memory of a tensor, or of what it is made of."""
    memory, g = reading.memory, reading.geometry
    for _, part in reading.inner:
        yield from _chunks(part)
    if memory is not None and g is not None and g.numel and not reading.inner:
        first, last = byte_range(g, memory.start)
        yield _Chunk(memory.device, first, last, g, memory.start)


def _used_bytes(chunk: _Chunk) -> int:
    count = distinct_elements(chunk.geometry)
    return (
        chunk.last - chunk.first if count is None else count * chunk.geometry.itemsize
    )


def _numel(reading: Reading) -> int:
    return 0 if reading.size is None else prod(reading.size)


def _node(ledger: _Ledger, branch: Branch | Leaf) -> tuple[Node, list[Leaf]]:
    """A module or a tensor with all within, and the tensors that lie there."""
    if isinstance(branch, Leaf):
        leaf, reading = branch, branch.reading
        leaves, size = [leaf], reading.size
        children: tuple[Node, ...] = ()
        plain = reading.kind in ("tensor", "parameter")
        kind, same_as = leaf.role if plain else reading.kind, ""
        odd = tuple(_odd_words(leaf))
    else:
        found = [_node(ledger, each) for each in branch.within]
        leaves = [leaf for _, below in found for leaf in below]
        children, size, odd = tuple(child for child, _ in found), None, ()
        kind, same_as = branch.kind, branch.same_as
    whole = ledger.total(leaves)
    parameters = [leaf for leaf in leaves if leaf.role == "parameter"]
    trainable = [leaf for leaf in parameters if leaf.reading.requires_grad]
    node = Node(
        name=branch.name,
        kind=kind,
        tensors=whole.tensors,
        elements=whole.elements,
        parameters=ledger.total(parameters).elements,
        trainable=ledger.total(trainable).elements,
        stored_bytes=whole.stored_bytes,
        dtypes=_distinct(leaf.reading.dtype for leaf in leaves),
        devices=_distinct(leaf.reading.device for leaf in leaves),
        size=size,
        odd=odd,
        nan_count=_added(leaf.nan_count for leaf in leaves),
        inf_count=_added(leaf.inf_count for leaf in leaves),
        children=children,
        same_as=same_as,
    )
    return node, leaves


def _added(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _distinct(words: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for word in words if word))


def _odd_words(leaf: Leaf) -> Iterator[str]:
    if leaf.role == "parameter" and not leaf.reading.requires_grad:
        yield "frozen"
    if leaf.role == "attribute":
        yield "not registered"


def _amounts(
    ledger: _Ledger, leaves: Sequence[Leaf], name_of: Callable[[Leaf], str]
) -> tuple[Amount, ...]:
    """What the tensors of each name take, the largest first."""
    by_name: dict[str, list[Leaf]] = {}
    for leaf in leaves:
        by_name.setdefault(name_of(leaf), []).append(leaf)
    found = [Amount(name, *ledger.total(each)) for name, each in by_name.items()]
    return tuple(sorted(found, key=lambda amount: (-amount.stored_bytes, amount.name)))


def _type(leaf: Leaf) -> str:
    return f"{leaf.reading.dtype or leaf.reading.kind} on {leaf.reading.device}"


def _oddities(ledger: _Ledger, leaves: Sequence[Leaf]) -> Iterator[Oddity]:
    """What is odd, the most urgent first."""
    weights = [leaf for leaf in leaves if leaf.role != "state"]
    floats = [
        leaf for leaf in weights if (leaf.reading.dtype or "").startswith(_FLOATS)
    ]
    first: dict[Hashable, Leaf] = {}
    again: dict[int, Leaf] = {}
    for leaf in leaves:
        known = first.setdefault(ledger.key(leaf), leaf)
        if known is not leaf and _numel(leaf.reading):
            again[id(leaf)] = known
    found: tuple[tuple[str, list[Leaf], Callable[[Leaf], str] | None], ...] = (
        (
            "NaN or inf",
            [leaf for leaf in leaves if leaf.nan_count or leaf.inf_count],
            _not_finite,
        ),
        (
            "several devices",
            _rarer(weights, lambda leaf: leaf.reading.device or ""),
            lambda leaf: f"on {leaf.reading.device}",
        ),
        (
            "several dtypes",
            _rarer(floats, lambda leaf: leaf.reading.dtype or ""),
            lambda leaf: leaf.reading.dtype or leaf.reading.kind,
        ),
        *(
            (kind, [leaf for leaf in leaves if kind in _odd_words(leaf)], None)
            for kind in ("not registered", "frozen")
        ),
        (
            "tied",
            [leaf for leaf in leaves if id(leaf) in again],
            lambda leaf: f"is {again[id(leaf)].path}",
        ),
    )
    for kind, odd, say in found:
        if odd:
            names = tuple(leaf.path for leaf in odd)
            said = () if say is None else tuple(map(say, odd))
            yield Oddity(kind, names, ledger.total(odd).elements, said)


def _rarer(leaves: Sequence[Leaf], of: Callable[[Leaf], str]) -> list[Leaf]:
    """Those that have not what most of the elements have."""
    counts: Counter[str] = Counter()
    for leaf in leaves:
        counts[of(leaf)] += _numel(leaf.reading)
    usual = max(counts, key=counts.__getitem__, default="")
    return [leaf for leaf in leaves if of(leaf) != usual]


def _not_finite(leaf: Leaf) -> str:
    counts = (("NaN", leaf.nan_count), ("inf", leaf.inf_count))
    return " and ".join(f"{count:,} {word}" for word, count in counts if count)


def _remarks(leaves: Sequence[Leaf]) -> Iterator[str]:
    """What could not be told: one sentence for each reason."""
    unread: dict[str, list[str]] = {}
    for leaf in leaves:
        if leaf.unread:
            unread.setdefault(leaf.unread, []).append(leaf.path)
        if leaf.reading.remarks and leaf.reading.memory is None:
            yield f"{leaf.reading.kind}: {leaf.reading.remarks[0]}"
    for reason, paths in unread.items():
        yield f"values of {listed(paths, most=1)} cannot be read: {reason}"
