"""Walks modules, optimizers, state dicts, lists and dicts, and adds up what they hold.

Each tensor is read once, without an operation on it; what is kept of it are numbers.
Two names of one parameter, views of one storage: what several tensors reach is counted
where it is met first, in the whole and within each module for itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpumagic.report.introspection import attributes_of, class_name
from gpumagic.report.units import listed
from gpumagic.tensor_info import objects
from gpumagic.tensor_info.overlap import clusters, covered_bytes
from gpumagic.tensor_info.read import Reading, read
from gpumagic.tensor_info.report import (
    Amount,
    ModelReport,
    Node,
    Oddity,
    ValueSummary,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from gpumagic.tensor_info.overlap import Placed

_LOOKED_AT_MOST = 200_000
_DEEPEST = 60

# A dict with a dot in a key is one of a module's: its keys are paths.
_DOT = "."


@dataclass
class Leaf:
    """A tensor that was found. What it has said of itself; not the tensor."""

    name: str
    path: str  # how to get at it from the whole, as code behind its name
    role: str  # "parameter", "buffer", "attribute", "state" or "tensor"
    reading: Reading
    values: ValueSummary | None = None  # where they were read
    unread: str = ""  # why they could not be, where that was tried


@dataclass
class Branch:
    """A module or a container, with what lies in it in its order."""

    name: str
    kind: str
    within: list[Branch | Leaf] = field(default_factory=list)
    same_as: str = ""


def holds_tensors(thing: Any) -> str:
    """The word for what it is, if it is something that tensors are held in."""
    if objects.is_module(thing):
        return f"module ({class_name(thing)})"
    if objects.is_optimizer(thing):
        return f"optimizer ({class_name(thing)})"
    if _is_state_dict(thing):
        return "state dict"
    return objects.kind_of_container(thing)


def _is_state_dict(thing: Any) -> bool:
    items = objects.pairs_of(thing)
    named = all(type(key) is str for key, _ in items)
    return named and any(
        _DOT in key and objects.is_tensor(value) for key, value in items
    )


class Walk:
    """One walk through all that something holds."""

    def __init__(self, *, values: bool = False) -> None:
        self._values = values
        self._seen: dict[int, str] = {}
        self._left = _LOOKED_AT_MOST
        self.leaves: list[Leaf] = []  # in the order in which they were found
        self.complete = True

    def through(self, thing: Any, name: str, path: str = "", level: int = 0) -> Branch:
        """All that lies in something, as a tree."""
        branch = Branch(name, objects.kind_of_container(thing) or class_name(thing))
        if type(thing) is _Role:
            branch.kind = ""
        elif id(thing) in self._seen:
            branch.same_as = self._seen[id(thing)]
            return branch
        else:
            self._seen[id(thing)] = path
        if level >= _DEEPEST:
            self.complete = False
            return branch
        for part, place, role, value in _parts(thing):
            self._left -= 1
            if self._left < 0:
                self.complete = False
                break
            if objects.is_tensor(value):
                self._leaf(branch, part, f"{path}{place}", role, value)
            elif role != "attribute" and holds_tensors(value):
                inner = self.through(value, part, f"{path}{place}", level + 1)
                if inner.within or inner.same_as or role == "module":
                    branch.within.append(inner)
        return branch

    def _leaf(self, at: Branch, name: str, path: str, role: str, value: Any) -> None:
        if role == "entry":  # of a state dict: its key is a path of modules
            *parts, name = name.split(_DOT)
            for part in parts:
                at = _named(at, part)
            role = "tensor"
        leaf = Leaf(name, path, role, read(value))
        if self._values:
            from gpumagic.tensor_info.values import summarise

            leaf.values, leaf.unread = summarise(value, heat=False)
        self.leaves.append(leaf)
        at.within.append(leaf)


def _named(branch: Branch, part: str) -> Branch:
    for each in reversed(branch.within):
        if isinstance(each, Branch) and each.name == part:
            return each
    made = Branch(part, "")
    branch.within.append(made)
    return made


class _Role(dict[str, Any]):
    """Tensors that an optimizer holds in one role; made for one walk."""

    role = ""


def _parts(thing: Any) -> Iterator[tuple[str, str, str, Any]]:
    """Each part: its name, the code for it, its role, itself."""
    if objects.is_module(thing):
        yield from _of_module(thing)
    elif objects.is_optimizer(thing):
        yield from _of_optimizer(thing)
    elif type(thing) is _Role:
        for number, (name, value) in enumerate(thing.items()):
            yield name, f"[{number}]", thing.role, value
    elif _is_state_dict(thing):
        for key, value in objects.pairs_of(thing):
            yield key, f"[{objects.spelled(key)}]", "entry", value
    else:
        for place, value in objects.items_of(thing):
            yield place, place, "tensor", value


def _of_module(module: Any) -> Iterator[tuple[str, str, str, Any]]:
    for role in ("parameter", "buffer", "module"):
        for name, value in objects.registered(module, f"_{role}s"):
            yield name, objects.as_code(name), role, value
    for name, value in objects.pairs_of(attributes_of(module)):
        if type(name) is str and objects.is_tensor(value):
            yield name, f".{name}", "attribute", value


def _of_optimizer(optimizer: Any) -> Iterator[tuple[str, str, str, Any]]:
    """Its groups of parameters, then what it remembers of them, by what it is."""
    held = attributes_of(optimizer) or {}
    names: dict[int, str] = {}
    groups = (value for _, value in objects.items_of(held.get("param_groups")))
    for number, group in enumerate(groups):
        told = {
            key: value for key, value in objects.pairs_of(group) if type(key) is str
        }
        values = [value for _, value in objects.items_of(told.get("params"))]
        known = [str(place) for place in range(len(values))]
        for place, (_, name) in enumerate(objects.items_of(told.get("param_names"))):
            if type(name) is str:
                known[place : place + 1] = [name]
        made = _Role()
        made.role = "parameter"
        for name, value in zip(known, values, strict=False):
            names[id(value)] = name
            made[name] = value
        yield f"group {number}", f".param_groups[{number}]['params']", "group", made
    remembered: dict[str, _Role] = {}
    for of, state in objects.pairs_of(held.get("state")):
        for key, value in objects.pairs_of(state):
            if type(key) is str:
                made = remembered.setdefault(key, _Role())
                made.role = "state"
                made[names.get(id(of), str(len(names)))] = value
    for key, of_each in remembered.items():
        yield key, f".state[...][{key!r}]", "state", of_each


# ------------------------------------------------------------------ the account

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
        values=len({_key(leaf) for leaf in leaves if leaf.values}),
        complete=walk.complete,
        remarks=tuple(dict.fromkeys(_remarks(leaves))),
        simulated=any(leaf.reading.simulated for leaf in leaves),
    )


def _key(leaf: Leaf) -> Hashable:
    """The same for tensors that are one in memory."""
    placed = leaf.reading.numel and leaf.reading.placed  # what is empty lies nowhere
    return placed or leaf.reading.identity or (id(leaf),)


def _total(leaves: Iterable[Leaf], name: str = "") -> Amount:
    """The elements and the bytes that these reach, each counted once."""
    distinct = {_key(leaf): leaf.reading for leaf in leaves}
    elements = stored = 0
    shared: set[Placed] = set()
    chunks = {each for reading in distinct.values() for each in reading.placed}
    for cluster in clusters(chunks, lambda each: each.span):
        covered = covered_bytes(cluster)
        stored += covered
        if len(cluster) > 1:
            shared.update(cluster)
            elements += covered // max(each.geometry.itemsize for each in cluster)
    for reading in distinct.values():
        if not reading.placed:  # a meta tensor, say: what a real one would take
            stored += reading.numel * (reading.itemsize or 0)
        if shared.isdisjoint(reading.placed):
            elements += reading.numel
    return Amount(name, len(distinct), elements, stored)


def _node(branch: Branch | Leaf) -> tuple[Node, list[Leaf]]:
    """A module or a tensor with all within, and the tensors that lie there."""
    figures: dict[str, Any] = {}
    if isinstance(branch, Leaf):
        leaves, reading = [branch], branch.reading
        kind, plain = reading.kind, reading.kind in ("tensor", "parameter")
        figures = {"size": reading.size, "odd": _odd_word(branch)}
        if plain:
            kind = branch.role
    else:
        found = [_node(each) for each in branch.within]
        leaves, kind = [leaf for _, below in found for leaf in below], branch.kind
        figures = {
            "children": tuple(child for child, _ in found),
            "same_as": branch.same_as,
        }
    parameters = [leaf for leaf in leaves if leaf.role == "parameter"]
    trainable = [leaf for leaf in parameters if leaf.reading.requires_grad]
    if read_values := [leaf.values for leaf in leaves if leaf.values]:
        figures["nan_count"] = sum(each.nan_count for each in read_values)
        figures["inf_count"] = sum(each.inf_count for each in read_values)
    node = Node(
        **{**vars(_total(leaves)), "name": branch.name, "kind": kind},
        parameters=_total(parameters).elements,
        trainable=_total(trainable).elements,
        dtypes=tuple(dict.fromkeys(leaf.reading.dtype for leaf in leaves)),
        devices=tuple(dict.fromkeys(leaf.reading.device for leaf in leaves)),
        **figures,
    )
    return node, leaves


def _odd_word(leaf: Leaf) -> str:
    if leaf.role == "parameter" and not leaf.reading.requires_grad:
        return "frozen"
    return {"attribute": "not registered"}.get(leaf.role, "")


def _amounts(
    leaves: Sequence[Leaf], name_of: Callable[[Leaf], str]
) -> tuple[Amount, ...]:
    """What the tensors of each name take, the largest first."""
    by_name: dict[str, list[Leaf]] = {}
    for leaf in leaves:
        by_name.setdefault(name_of(leaf), []).append(leaf)
    found = [_total(each, name) for name, each in by_name.items()]
    return tuple(sorted(found, key=lambda amount: (-amount.stored_bytes, amount.name)))


def _type(leaf: Leaf) -> str:
    return f"{leaf.reading.dtype} on {leaf.reading.device}"


def _oddities(leaves: Sequence[Leaf]) -> Iterator[Oddity]:
    """What is odd, the most urgent first."""
    kinds = "NaN or inf", "several devices", "not registered", "frozen", "tied"
    by_kind: dict[str, list[tuple[Leaf, str]]] = {kind: [] for kind in kinds}
    counts: Counter[str] = Counter()
    for leaf in leaves:
        if leaf.role != "state":
            counts[leaf.reading.device] += leaf.reading.numel
    usual = max(counts, key=counts.__getitem__, default=None)
    first: dict[Hashable, Leaf] = {}
    for leaf in leaves:
        if leaf.values and (said := leaf.values.not_finite):
            by_kind["NaN or inf"].append((leaf, said))
        if leaf.role != "state" and leaf.reading.device != usual:
            by_kind["several devices"].append((leaf, f"on {leaf.reading.device}"))
        if word := _odd_word(leaf):
            by_kind[word].append((leaf, word))
        known = first.setdefault(_key(leaf), leaf)
        if known is not leaf and leaf.reading.numel:
            by_kind["tied"].append((leaf, known.path))
    for kind, odd in by_kind.items():
        if odd:
            its = [leaf for leaf, _ in odd]
            paths = tuple(leaf.path for leaf in its)
            yield Oddity(kind, paths, _total(its).elements, odd[0][1])


def _remarks(leaves: Sequence[Leaf]) -> Iterator[str]:
    """What could not be told: one sentence for each reason."""
    unread: dict[str, list[str]] = {}
    for leaf in leaves:
        if leaf.unread:
            unread.setdefault(leaf.unread, []).append(leaf.path)
        if leaf.reading.remarks and not leaf.reading.start:
            yield f"{leaf.reading.kind}: {leaf.reading.remarks[0]}"
    for reason, paths in unread.items():
        yield f"values of {listed(paths, most=1)} cannot be read: {reason}"
