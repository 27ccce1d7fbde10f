"""Adds up what a tree of tensors takes, each memory once, and says what is odd.

Two names of one parameter, views of one storage: what several tensors reach is counted
where it is met first, in the whole and within each module for itself.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.report.units import listed
from gpumagic.tensor_info.geometry import is_channels_last, is_contiguous
from gpumagic.tensor_info.inventory import Branch, Leaf
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
    from gpumagic.tensor_info.inventory import Walk
    from gpumagic.tensor_info.tensors import Reading

_ROLES = {
    "parameter": "parameters",
    "buffer": "buffers",
    "state": "state",
    "attribute": "not registered",
    "tensor": "tensors",
}
_FLOATS = ("float", "bfloat", "complex")


class Chunk(NamedTuple):
    """A stretch of memory that one tensor reaches."""

    device: str
    storage_start: int
    first: int
    last: int  # exclusive
    geometry: Geometry | None
    used_bytes: int
    # the same for all tensors that reach the same elements in the same way
    key: Hashable
    contiguous: bool = True


def model_report(expression: str, kind: str, walk: Walk, whole: Branch) -> ModelReport:
    """The report on all that one walk has found."""
    ledger = Ledger(walk.leaves)
    root = _node(ledger, whole)
    return ModelReport(
        expression=expression,
        kind=kind,
        root=root,
        roles=tuple(_amounts(ledger, lambda leaf: _ROLES[leaf.role])),
        types=tuple(_amounts(ledger, _type)),
        odd=tuple(_oddities(ledger)),
        values=any(leaf.nan_count is not None for leaf in walk.leaves),
        complete=walk.complete,
        remarks=(*dict.fromkeys((*walk.remarks, *_remarks(walk.leaves))),),
        simulated=any(leaf.reading.simulated for leaf in walk.leaves),
    )


class Ledger:
    """Which tensors reach the same memory, and what some of them take together."""

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self.leaves = leaves
        self._chunks = {id(leaf): tuple(_chunks(leaf.reading)) for leaf in leaves}
        self._keys = {id(leaf): self._key(leaf) for leaf in leaves}
        self._counts = Counter(self._keys.values())
        self._groups = self._overlapping()

    def _key(self, leaf: Leaf) -> Hashable:
        keys = tuple(chunk.key for chunk in self._chunks[id(leaf)])
        return keys or ("no memory", leaf.identity or id(leaf))

    def _overlapping(self) -> dict[Hashable, int]:
        """The chunks that reach into another one, each with the number of its group."""
        distinct = {
            chunk.key: chunk for each in self._chunks.values() for chunk in each
        }
        ordered = sorted(distinct.values(), key=lambda each: (each.device, each.first))
        groups: dict[Hashable, int] = {}
        before: list[Chunk] = []
        device, end = "", 0
        for chunk in ordered:
            if chunk.device == device and chunk.first < end:
                groups |= dict.fromkeys((one.key for one in before), id(before))
                groups[chunk.key] = id(before)
            else:
                before, device, end = [], chunk.device, 0
            before.append(chunk)
            end = max(end, chunk.last)
        return groups

    def key(self, leaf: Leaf) -> Hashable:
        """The same for tensors that are one in memory."""
        return self._keys[id(leaf)]

    def has_gaps_or_turns(self, leaf: Leaf) -> bool:
        """Whether it is known not to be contiguous, in no format of torch's."""
        return any(not chunk.contiguous for chunk in self._chunks[id(leaf)])

    def is_entangled(self, leaf: Leaf) -> bool:
        """Whether other tensors reach some of the memory, so that sums mislead."""
        return self._counts[self._keys[id(leaf)]] > 1 or self.overlaps(leaf)

    def overlaps(self, leaf: Leaf) -> bool:
        """Whether it shares some of its memory with another tensor, and not all."""
        return any(chunk.key in self._groups for chunk in self._chunks[id(leaf)])

    def total(self, leaves: Iterable[Leaf]) -> tuple[int, int]:
        """The elements and the bytes that these reach, each counted once."""
        distinct = {self.key(leaf): leaf for leaf in leaves}
        elements = stored = 0
        shared: dict[int, dict[Hashable, Chunk]] = {}
        for leaf in distinct.values():
            alone = True
            for chunk in self._chunks[id(leaf)]:
                group = self._groups.get(chunk.key)
                if group is None:
                    stored += chunk.used_bytes
                else:
                    shared.setdefault(group, {})[chunk.key] = chunk
                    alone = False
            if not self._chunks[id(leaf)]:
                stored += _logical_bytes(leaf.reading)
            elements += _numel(leaf.reading) if alone else 0
        for group_chunks in shared.values():
            covered, itemsize = _covered(list(group_chunks.values()))
            elements, stored = elements + covered // itemsize, stored + covered
        return elements, stored


def _chunks(reading: Reading) -> Iterator[Chunk]:
    """The memory of a tensor, or of what it is made of."""
    memory, g = reading.memory, reading.geometry
    if memory is None:
        for _, part in reading.inner:
            yield from _chunks(part)
    elif g is None:
        start, size = memory.start, memory.size_bytes
        whole = memory.device, start, size
        yield Chunk(memory.device, start, start, start + size, None, size, whole)
    elif g.numel:
        first, last = byte_range(g, memory.start)
        contiguous = is_contiguous(g) or is_channels_last(g)
        used = g.numel if contiguous else distinct_elements(g)
        used_bytes = last - first if used is None else used * g.itemsize
        key = memory.device, first, last, g.size, g.stride, g.itemsize
        place = memory.device, memory.start, first, last
        yield Chunk(*place, g, used_bytes, key, contiguous)


def _covered(chunks: list[Chunk]) -> tuple[int, int]:
    """The bytes that at least one chunk reaches, and those of one element."""
    base = min(chunk.storage_start for chunk in chunks)
    placed = [
        Placed(chunk.geometry, chunk.storage_start - base)
        for chunk in chunks
        if chunk.geometry is not None
    ]
    itemsize = max((each.geometry.itemsize for each in placed), default=1)
    covered = covered_bytes(placed) if len(placed) == len(chunks) else None
    if covered is None:
        covered = max(c.last for c in chunks) - min(c.first for c in chunks)
    return covered, itemsize


def _numel(reading: Reading) -> int:
    return 0 if reading.size is None else prod(reading.size)


def _logical_bytes(reading: Reading) -> int:
    """Of what has no memory, such as a meta tensor: what a real one would take."""
    return _numel(reading) * (reading.itemsize or 0)


class _Sum(NamedTuple):
    """What lies in a branch: figures that add up, and tensors that do not."""

    tensors: int = 0
    elements: int = 0
    parameters: int = 0
    trainable: int = 0
    stored_bytes: int = 0
    dtypes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    nan_count: int | None = None
    inf_count: int | None = None
    entangled: tuple[Leaf, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[_Sum]) -> _Sum:
        """All of the parts together."""
        return cls(
            sum(part.tensors for part in parts),
            sum(part.elements for part in parts),
            sum(part.parameters for part in parts),
            sum(part.trainable for part in parts),
            sum(part.stored_bytes for part in parts),
            tuple(dict.fromkeys(word for part in parts for word in part.dtypes)),
            tuple(dict.fromkeys(word for part in parts for word in part.devices)),
            _added(part.nan_count for part in parts),
            _added(part.inf_count for part in parts),
            tuple(leaf for part in parts for leaf in part.entangled),
        )


def _added(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _node(ledger: Ledger, branch: Branch) -> Node:
    return _counted(ledger, branch)[0]


def _counted(ledger: Ledger, branch: Branch) -> tuple[Node, _Sum]:
    """A module with all within, and what it adds to that which it lies in."""
    found = [
        _of_leaf(ledger, each) if isinstance(each, Leaf) else _counted(ledger, each)
        for each in branch.within
    ]
    added = _Sum.of([below for _, below in found])
    tangled = added.entangled
    parameters = [leaf for leaf in tangled if leaf.role == "parameter"]
    trained = [leaf for leaf in parameters if leaf.reading.requires_grad]
    elements, stored = ledger.total(tangled)
    node = Node(
        name=branch.name,
        kind=branch.kind,
        tensors=added.tensors + len({ledger.key(leaf) for leaf in tangled}),
        elements=added.elements + elements,
        parameters=added.parameters + ledger.total(parameters)[0],
        trainable=added.trainable + ledger.total(trained)[0],
        stored_bytes=added.stored_bytes + stored,
        dtypes=added.dtypes,
        devices=added.devices,
        nan_count=added.nan_count,
        inf_count=added.inf_count,
        children=tuple(child for child, _ in found),
        same_as=branch.same_as,
    )
    return node, added


def _of_leaf(ledger: Ledger, leaf: Leaf) -> tuple[Node, _Sum]:
    reading = leaf.reading
    elements, stored = ledger.total((leaf,))
    parameters = elements if leaf.role == "parameter" else 0
    trainable = parameters if reading.requires_grad else 0
    dtypes, devices = _distinct((reading.dtype,)), _distinct((reading.device,))
    counts = leaf.nan_count, leaf.inf_count
    node = Node(
        name=leaf.name,
        kind=leaf.role if reading.kind in ("tensor", "parameter") else reading.kind,
        tensors=1,
        elements=elements,
        parameters=parameters,
        trainable=trainable,
        stored_bytes=stored,
        dtypes=dtypes,
        devices=devices,
        size=reading.size,
        odd=tuple(_odd_words(ledger, leaf)),
        nan_count=leaf.nan_count,
        inf_count=leaf.inf_count,
    )
    if ledger.is_entangled(leaf):
        return node, _Sum(0, 0, 0, 0, 0, dtypes, devices, *counts, (leaf,))
    figures = 1, elements, parameters, trainable, stored
    return node, _Sum(*figures, dtypes, devices, *counts)


def _distinct(words: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for word in words if word))


def _odd_words(ledger: Ledger, leaf: Leaf) -> Iterator[str]:
    reading = leaf.reading
    if leaf.role == "parameter" and not reading.requires_grad:
        yield "frozen"
    if ledger.has_gaps_or_turns(leaf):
        yield "not contiguous"
    if leaf.role == "attribute":
        yield "not registered"
    if ledger.overlaps(leaf):
        yield "shared in part"


def _amounts(ledger: Ledger, name_of: Callable[[Leaf], str]) -> Iterator[Amount]:
    """What the tensors of each name take, the largest first."""
    by_name = sorted(ledger.leaves, key=name_of)
    found = []
    for name, group in groupby(by_name, key=name_of):
        leaves = list(group)
        elements, stored = ledger.total(leaves)
        tensors = len({ledger.key(leaf) for leaf in leaves})
        found.append(Amount(name, tensors, elements, stored))
    yield from sorted(found, key=lambda amount: -amount.stored_bytes)


def _type(leaf: Leaf) -> str:
    return f"{leaf.reading.dtype or leaf.reading.kind} on {leaf.reading.device}"


def _oddities(ledger: Ledger) -> Iterator[Oddity]:
    """What is odd, the most urgent first."""
    leaves = ledger.leaves
    bad = [leaf for leaf in leaves if leaf.nan_count or leaf.inf_count]
    yield from _oddity(ledger, "NaN or inf", bad, _not_finite)
    weights = [leaf for leaf in leaves if leaf.role != "state"]
    devices = _rarer(weights, lambda leaf: leaf.reading.device or "")
    yield from _oddity(ledger, "several devices", devices, _device)
    floats = [leaf for leaf in weights if _is_float(leaf)]
    dtypes = _rarer(floats, lambda leaf: leaf.reading.dtype or "")
    yield from _oddity(ledger, "several dtypes", dtypes, _dtype)
    for kind in ("not registered", "shared in part", "not contiguous"):
        found = [leaf for leaf in leaves if kind in _odd_words(ledger, leaf)]
        yield from _oddity(ledger, kind, found)
    parameters = [leaf for leaf in leaves if leaf.role == "parameter"]
    frozen = [leaf for leaf in parameters if not leaf.reading.requires_grad]
    yield from _oddity(ledger, "frozen", frozen)
    yield from _tied(ledger)


def _oddity(
    ledger: Ledger,
    kind: str,
    leaves: Sequence[Leaf],
    say: Callable[[Leaf], str] | None = None,
) -> Iterator[Oddity]:
    if leaves:
        names = tuple(leaf.path for leaf in leaves)
        said = () if say is None else tuple(map(say, leaves))
        yield Oddity(kind, names, ledger.total(leaves)[0], said)


def _tied(ledger: Ledger) -> Iterator[Oddity]:
    """Tensors that have two names: the later one, and which was first."""
    first: dict[Hashable, Leaf] = {}
    again: list[tuple[Leaf, Leaf]] = []
    for leaf in ledger.leaves:
        if not _numel(leaf.reading):
            continue
        known = first.setdefault(ledger.key(leaf), leaf)
        if known is not leaf:
            again.append((leaf, known))
    if again:
        yield Oddity(
            "tied",
            tuple(leaf.path for leaf, _ in again),
            ledger.total(leaf for leaf, _ in again)[0],
            tuple(f"is {known.path}" for _, known in again),
        )


def _rarer(leaves: Sequence[Leaf], of: Callable[[Leaf], str]) -> list[Leaf]:
    """Those that have not what most of the elements have."""
    counts: dict[str, int] = {}
    for leaf in leaves:
        counts[of(leaf)] = counts.get(of(leaf), 0) + _numel(leaf.reading)
    usual = max(counts, key=counts.__getitem__, default="")
    return [leaf for leaf in leaves if of(leaf) != usual]


def _is_float(leaf: Leaf) -> bool:
    return (leaf.reading.dtype or "").startswith(_FLOATS)


def _device(leaf: Leaf) -> str:
    return f"on {leaf.reading.device}"


def _dtype(leaf: Leaf) -> str:
    return leaf.reading.dtype or leaf.reading.kind


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
