"""Walks what holds tensors: modules, optimizers, state dicts, lists and dicts.

Each tensor is read once, without an operation on it; what is kept of it are numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpumagic.report.introspection import attributes_of, class_name, is_truly
from gpumagic.tensor_info import torch_private
from gpumagic.tensor_info.objects import (
    is_module,
    is_tensor,
    items_of,
    kind_of_container,
    pairs_of,
    registered,
    spelled,
)
from gpumagic.tensor_info.read import Reading, read

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    nan_count: int | None = None
    inf_count: int | None = None
    unread: str = ""  # why its values could not be read, where that was tried


@dataclass
class Branch:
    """A module or a container, with what lies in it in its order."""

    name: str
    kind: str
    within: list[Branch | Leaf] = field(default_factory=list)
    same_as: str = ""


def holds_tensors(thing: Any) -> str:
    """The word for what it is, if it is something that tensors are held in."""
    if is_module(thing):
        return f"module ({class_name(thing)})"
    if _is_optimizer(thing):
        return f"optimizer ({class_name(thing)})"
    word = kind_of_container(thing)
    return "state dict" if word == "dict" and _is_state_dict(thing) else word


def _is_optimizer(thing: Any) -> bool:
    kind = torch_private.optimizer_class()
    return kind is not None and is_truly(thing, kind)


def _is_state_dict(thing: Any) -> bool:
    items = pairs_of(thing)
    named = all(type(key) is str for key, _ in items)
    return named and any(_DOT in key and is_tensor(value) for key, value in items)


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
        branch = Branch(name, kind_of_container(thing) or class_name(thing))
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
            if is_tensor(value):
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

            summary, leaf.unread = summarise(value, heat=False)
            if summary is not None:
                leaf.nan_count, leaf.inf_count = summary.nan_count, summary.inf_count
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
    if is_module(thing):
        yield from _of_module(thing)
    elif _is_optimizer(thing):
        yield from _of_optimizer(thing)
    elif type(thing) is _Role:
        for number, (name, value) in enumerate(thing.items()):
            yield name, f"[{number}]", thing.role, value
    elif is_truly(thing, dict) and _is_state_dict(thing):
        for key, value in pairs_of(thing):
            yield key, f"[{spelled(key)}]", "entry", value
    else:
        for place, value in items_of(thing):
            yield place, place, "tensor", value


def _of_module(module: Any) -> Iterator[tuple[str, str, str, Any]]:
    for role in ("parameter", "buffer", "module"):
        for name, value in registered(module, f"_{role}s"):
            yield name, f".{name}", role, value
    for name, value in pairs_of(attributes_of(module)):
        if type(name) is str and is_tensor(value):
            yield name, f".{name}", "attribute", value


def _of_optimizer(optimizer: Any) -> Iterator[tuple[str, str, str, Any]]:
    """Its groups of parameters, then what it remembers of them, by what it is."""
    held = attributes_of(optimizer) or {}
    names: dict[int, str] = {}
    groups = (value for _, value in items_of(held.get("param_groups")))
    for number, group in enumerate(groups):
        told = {key: value for key, value in pairs_of(group) if type(key) is str}
        values = [value for _, value in items_of(told.get("params"))]
        known = [value for _, value in items_of(told.get("param_names"))]
        made = _Role()
        made.role = "parameter"
        for place, value in enumerate(values):
            name = known[place] if place < len(known) else place
            names[id(value)] = name if type(name) is str else str(place)
            made[names[id(value)]] = value
        yield f"group {number}", f".param_groups[{number}]['params']", "group", made
    remembered: dict[str, _Role] = {}
    for of, state in pairs_of(held.get("state")):
        for key, value in pairs_of(state):
            if type(key) is str:
                made = remembered.setdefault(key, _Role())
                made.role = "state"
                made[names.get(id(of), str(len(names)))] = value
    for key, of_each in remembered.items():
        yield key, f".state[...][{key!r}]", "state", of_each
