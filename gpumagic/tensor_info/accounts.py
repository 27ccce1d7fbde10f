"""Adds up what a tree of tensors takes, each memory once, and says what is odd.

Two names of one parameter, views of one storage: what several tensors reach is counted
where it is met first, in the whole and within each module for itself.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.report.units import listed
from gpumagic.tensor_info.inventory import Leaf
from gpumagic.tensor_info.overlap import clusters, covered_bytes
from gpumagic.tensor_info.report import Amount, ModelReport, Node, Oddity

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from gpumagic.tensor_info.inventory import Branch, Walk
    from gpumagic.tensor_info.overlap import Placed

_ROLES = {
    "parameter": "parameters",
    "buffer": "buffers",
    "state": "state",
    "attribute": "not registered",
    "tensor": "tensors",
}


def model_report(expression: str, kind: str, walk: Walk, whole: Branch) -> ModelReport:
    """The report on all that one walk has found."""
    leaves = walk.leaves
    return ModelReport(
        expression=expression,
        kind=kind,
        root=_node(whole)[0],
        roles=_amounts(leaves, lambda leaf: _ROLES[leaf.role]),
        types=_amounts(leaves, _type),
        odd=tuple(_oddities(leaves)),
        values=any(leaf.nan_count is not None for leaf in leaves),
        complete=walk.complete,
        remarks=tuple(dict.fromkeys(_remarks(leaves))),
        simulated=any(leaf.reading.simulated for leaf in leaves),
    )


class _Total(NamedTuple):
    """What some tensors take together, each memory counted once."""

    tensors: int
    elements: int
    stored_bytes: int


def _key(leaf: Leaf) -> Hashable:
    """The same for tensors that are one in memory."""
    return leaf.reading.placed or leaf.reading.identity or (id(leaf),)


def _total(leaves: Iterable[Leaf]) -> _Total:
    """The elements and the bytes that these reach, each counted once."""
    distinct = {_key(leaf): leaf.reading for leaf in leaves}
    elements = stored = 0
    shared: set[Placed] = set()
    chunks = {each for reading in distinct.values() for each in reading.placed}
    for cluster in clusters(chunks, lambda each: each.span):
        covered = covered_bytes(cluster)
        if covered is None:
            covered = max(each.span[2] for each in cluster) - cluster[0].span[1]
        stored += covered
        if len(cluster) > 1:
            shared.update(cluster)
            elements += covered // max(each.geometry.itemsize for each in cluster)
    for reading in distinct.values():
        if not reading.placed:  # a meta tensor, say: what a real one would take
            stored += reading.numel * (reading.itemsize or 0)
        if shared.isdisjoint(reading.placed):
            elements += reading.numel
    return _Total(len(distinct), elements, stored)


def _node(branch: Branch | Leaf) -> tuple[Node, list[Leaf]]:
    """A module or a tensor with all within, and the tensors that lie there."""
    figures: dict[str, Any] = {}
    if isinstance(branch, Leaf):
        leaves, reading = [branch], branch.reading
        plain = reading.kind in ("tensor", "parameter")
        kind = branch.role if plain else reading.kind
        figures = {"size": reading.size, "odd": tuple(_odd_words(branch))}
    else:
        found = [_node(each) for each in branch.within]
        leaves, kind = [leaf for _, below in found for leaf in below], branch.kind
        figures = {
            "children": tuple(child for child, _ in found),
            "same_as": branch.same_as,
        }
    parameters = [leaf for leaf in leaves if leaf.role == "parameter"]
    trainable = [leaf for leaf in parameters if leaf.reading.requires_grad]
    node = Node(
        branch.name,
        kind,
        **_total(leaves)._asdict(),
        parameters=_total(parameters).elements,
        trainable=_total(trainable).elements,
        dtypes=_distinct(leaf.reading.dtype for leaf in leaves),
        devices=_distinct(leaf.reading.device for leaf in leaves),
        nan_count=_added(leaf.nan_count for leaf in leaves),
        inf_count=_added(leaf.inf_count for leaf in leaves),
        **figures,
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
    leaves: Sequence[Leaf], name_of: Callable[[Leaf], str]
) -> tuple[Amount, ...]:
    """What the tensors of each name take, the largest first."""
    by_name: dict[str, list[Leaf]] = {}
    for leaf in leaves:
        by_name.setdefault(name_of(leaf), []).append(leaf)
    found = [Amount(name, *_total(each)) for name, each in by_name.items()]
    return tuple(sorted(found, key=lambda amount: (-amount.stored_bytes, amount.name)))


def _type(leaf: Leaf) -> str:
    return f"{leaf.reading.dtype or leaf.reading.kind} on {leaf.reading.device}"


def _oddities(leaves: Sequence[Leaf]) -> Iterator[Oddity]:
    """What is odd, the most urgent first."""
    by_kind: dict[str, list[tuple[Leaf, str]]] = {
        kind: []
        for kind in (
            "NaN or inf",
            "several devices",
            "not registered",
            "frozen",
            "tied",
        )
    }
    counts: Counter[str | None] = Counter()
    for leaf in leaves:
        if leaf.role != "state":
            counts[leaf.reading.device] += leaf.reading.numel
    usual = max(counts, key=counts.__getitem__, default=None)
    first: dict[Hashable, Leaf] = {}
    for leaf in leaves:
        found = (("NaN", leaf.nan_count), ("inf", leaf.inf_count))
        if odd_ones := " and ".join(f"{n:,} {word}" for word, n in found if n):
            by_kind["NaN or inf"].append((leaf, odd_ones))
        if leaf.role != "state" and leaf.reading.device != usual:
            by_kind["several devices"].append((leaf, f"on {leaf.reading.device}"))
        for word in _odd_words(leaf):
            by_kind[word].append((leaf, word))
        known = first.setdefault(_key(leaf), leaf)
        if known is not leaf and leaf.reading.numel:
            by_kind["tied"].append((leaf, f"is {known.path}"))
    for kind, odd in by_kind.items():
        if odd:
            its, said = zip(*odd, strict=True)
            paths = tuple(leaf.path for leaf in its)
            yield Oddity(kind, paths, _total(its).elements, said)


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
